"""Addresses of a host, and the subnets of --network."""

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from ddlrun.errors import InputError

Subnet: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# The digits of a speed are fewer than this.
LONGEST_SPEED = 10


class Address(NamedTuple):
    """An address of a host with the state, speed (Mbit/s, -1: unknown) and kind of its interface."""

    interface: str
    ip: str
    prefix: int
    up: bool = True
    speed: int = -1
    kind: str = "device"

    @property
    def subnet(self) -> str:
        """The subnet as CIDR."""
        return str(ipaddress.ip_interface(f"{self.ip}/{self.prefix}").network)


def parse_addresses(lines: Iterable[str]) -> tuple[Address, ...]:
    """Parse lines `NAME ADDRESS/PREFIX STATE SPEED KIND`; those without a valid address are left out.

    >>> parse_addresses(["eth0 10.0.0.1/16 up 10000 device"])
    (Address(interface='eth0', ip='10.0.0.1', prefix=16, up=True, speed=10000, kind='device'),)
    """
    addresses = (_address(*words) for words in map(str.split, lines) if len(words) == 5)
    return tuple(address for address in addresses if address is not None)


def _address(interface: str, text: str, state: str, speed: str, kind: str) -> Address | None:
    """Return an address; None if the text is none."""
    prefix = _prefix(text)
    if prefix is None:
        return None
    megabits = int(speed) if speed.isdecimal() and len(speed) < LONGEST_SPEED else -1
    return Address(interface, text.partition("/")[0], prefix, up=state != "down", speed=megabits, kind=kind)


def _prefix(text: str) -> int | None:
    """Return the length of an address's prefix, all of its bits if it has none; None if the text is not an address."""
    try:
        return ipaddress.ip_interface(text).network.prefixlen
    except ValueError:
        return None


def is_on(address: Address, subnets: Iterable[str]) -> bool:
    """Return True if an address is in one of the subnets."""
    return any(ipaddress.ip_address(address.ip) in ipaddress.ip_network(subnet) for subnet in subnets)


def split_network(text: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the subnet or the interfaces of --network.

    >>> split_network("10.0.0.0/16"), split_network("ib0,eth1"), split_network(None)
    (('10.0.0.0/16', ()), (None, ('ib0', 'eth1')), (None, ()))
    """
    if text and ("/" in text or text[0].isdigit()):
        return text, ()
    return None, tuple(filter(None, (text or "").split(",")))


def parse_cidr(text: str) -> Subnet:
    """Parse the subnet of --network. Raises InputError."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise InputError(f"`--network` {text!r} is not a subnet; write it as in 10.0.0.0/16 or fd00::/64") from error
