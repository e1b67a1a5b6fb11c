"""Addresses of a host: the script that prints them, and its parser."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ddlrun.errors import InputError

Subnet: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# The digits of a speed are fewer than this.
LONGEST_SPEED = 10
# POSIX sh that prints one line per address, `@net NAME ADDRESS/PREFIX STATE SPEED KIND`; it writes no file.
# Without `ip` it prints the output of hostname -I, and the contents of /proc/net/route and /proc/net/if_inet6.
# SPEED is in Mbit/s, -1 where it is unknown.
SCRIPT = r"""
net() {
  there=/sys/class/net/$1 state=unknown speed=-1 kind=virtual
  { read -r state <"$there/operstate"; read -r speed <"$there/speed"; } 2>/dev/null
  [ -n "$speed" ] || speed=-1
  if [ -d "$there/bridge" ]; then
    kind=bridge
    for port in "$there"/brif/*; do [ ! -e "/sys/class/net/${port##*/}/device" ] || kind=device; done
  elif [ -e "$there/device" ] || [ -d "$there/bonding" ]; then
    kind=device
    for rate in "$there"/device/infiniband/*/ports/*/rate; do
      [ "$speed" -gt 0 ] || ! read -r gigabits _ <"$rate" || speed=$((${gigabits%%.*} * 1000))
    done 2>/dev/null
  fi
  echo "@net $1 $2 $state $speed $kind"
}
if command -v ip >/dev/null 2>&1; then
  ip -o addr show 2>/dev/null | while read -r _ name family address rest; do
    case $family,$rest in
      *,*' temporary '*|*,*' deprecated '*|*,*' tentative '*) ;;
      inet,*|inet6,*) net "$name" "$address" ;;
    esac
  done
else
  echo "@ips $(hostname -I 2>/dev/null)"
  while read -r name to gateway _ _ _ _ mask _; do echo "@route $name $to $gateway $mask"; done </proc/net/route
  while read -r address _ prefix _ _ name; do echo "@inet6 $name $address $prefix"; done </proc/net/if_inet6
  for name in /sys/class/net/*; do net "${name##*/}" -; done
fi 2>/dev/null
"""

# Destination, no gateway, and the mask of a route that is not the default one; an address of if_inet6 and its prefix.
_ROUTE, _INET6 = r"[0-9A-F]{8} 0+ (?!0+$)[0-9A-F]{8}", r"[0-9a-f]{32} [0-9a-f]{2}"


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


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse the output of SCRIPT; other lines, and those without a valid address, are left out.

    >>> parse_addresses("@net eth0 10.0.0.1/16 up 10000 device")
    (Address(interface='eth0', ip='10.0.0.1', prefix=16, up=True, speed=10000, kind='device'),)
    """
    lines = [line.split() for line in text.splitlines() if line.startswith("@")]
    links = {words[1]: words[3:6] for words in lines if words[0] == "@net" and len(words) == 6}
    named = [(words[1], words[2]) for words in lines if words[0] == "@net" and len(words) == 6]
    unknown = ["unknown", "-1", "virtual"]
    addresses = (_address(name, ip, links.get(name, unknown)) for name, ip in (*named, *_without_ip(lines)))
    return tuple(address for address in addresses if address is not None)


def _address(interface: str, text: str, link: Sequence[str]) -> Address | None:
    """Return an address with the state, speed and kind of its link; None if the text is no address."""
    prefix = _prefix(text)
    if prefix is None:
        return None
    state, speed, kind = link
    megabits = int(speed) if speed.isdecimal() and len(speed) < LONGEST_SPEED else -1
    return Address(interface, text.partition("/")[0], prefix, up=state != "down", speed=megabits, kind=kind)


def _prefix(text: str) -> int | None:
    """Return the length of an address's prefix, all of its bits if it has none; None if the text is no address."""
    try:
        return ipaddress.ip_interface(text).network.prefixlen
    except ValueError:
        return None


def _without_ip(lines: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield interface and address from the kernel's tables; the interface of an IPv4 address is found by its route."""
    routes = []
    for words in lines:
        if words[0] == "@route" and len(words) == 5 and re.fullmatch(_ROUTE, " ".join(words[2:])):
            to, mask = (int.from_bytes(bytes.fromhex(word)[::-1], "big") for word in (words[2], words[4]))
            routes.append((words[1], ipaddress.ip_network((to, mask.bit_count()), strict=False)))
        elif words[0] == "@inet6" and re.fullmatch(_INET6, " ".join(words[2:])):
            yield words[1], f"{ipaddress.IPv6Address(int(words[2], 16))}/{int(words[3], 16)}"
    for ip in (ip for words in lines if words[0] == "@ips" for ip in words[1:] if "." in ip):
        for name, network in routes:
            if _prefix(ip) is not None and ipaddress.ip_address(ip) in network:
                yield name, f"{ip}/{network.prefixlen}"
                break


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
        raise InputError(f"`--network` {text!r} is no subnet; write it as in 10.0.0.0/16 or fd00::/64") from error
