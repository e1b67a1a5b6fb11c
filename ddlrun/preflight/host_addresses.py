"""The addresses of this host and its network interfaces, from the kernel; a part of the task host_facts.py."""

from __future__ import annotations

import _socket  # socket itself takes 6 ms to import
import os
import sys

from ddlrun.preflight.host_files import read_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Numbers of linux/netlink.h, rtnetlink.h and if_addr.h, and the sizes of their structures.
_AF_NETLINK, _RTM_GETADDR, _DUMP_REQUEST, _NLMSG_ERROR, _NLMSG_DONE = 16, 22, 0x301, 2, 3
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_HEADER, _IFADDRMSG, _ATTRIBUTE = 16, 8, 4
# Flags of addresses that do not stay: deprecated or tentative ones, and the temporary ones of IPv6.
_PASSING, _TEMPORARY = 0x20 | 0x40, 0x01
_REPLY_BYTES = 1 << 16


def list_addresses() -> list[str]:
    """Return `NAME ADDRESS/PREFIX STATE SPEED KIND` for each address that stays.

    SPEED is in Mbit/s, -1 where it is unknown. The address of a link to one peer has no prefix.
    """
    return [f"{name} {address} {_describe_link(name)}" for _, name, address in sorted(_read_addresses(), key=_index)]


def _index(address: tuple[int, str, str]) -> int:
    return address[0]


def _read_addresses() -> Iterator[tuple[int, str, str]]:
    """Yield the number and the name of the interface of each address, and the address with its prefix."""
    try:
        netlink = _socket.socket(_AF_NETLINK, _socket.SOCK_RAW, 0)
    except OSError:  # a sandbox may allow none
        return
    try:
        request = _number(_HEADER + _IFADDRMSG, 4) + _number(_RTM_GETADDR, 2) + _number(_DUMP_REQUEST, 2)
        netlink.send(request + bytes(8 + _IFADDRMSG))
        kind = 0
        while kind not in (_NLMSG_ERROR, _NLMSG_DONE):
            for kind, message in _split(netlink.recv(_REPLY_BYTES), _HEADER, 4):
                if kind not in (_NLMSG_ERROR, _NLMSG_DONE):
                    yield from _parse_address(message)
    finally:
        netlink.close()


def _parse_address(message: bytes) -> Iterator[tuple[int, str, str]]:
    """Yield the address of one message as `_read_addresses` does, unless it does not stay."""
    values = dict(_split(message[_IFADDRMSG:], _ATTRIBUTE, 2))
    flags = _value(values[_IFA_FLAGS]) if _IFA_FLAGS in values else message[2]
    address = values.get(_IFA_ADDRESS, b"")
    own = values.get(_IFA_LOCAL, address)
    passing = {_socket.AF_INET: _PASSING, _socket.AF_INET6: _PASSING | _TEMPORARY}
    family, index = message[0], _value(message[4:8])
    if family in passing and not flags & passing[family]:
        prefix = f"/{message[1]}" if own == address else ""
        try:
            yield index, _socket.if_indextoname(index), _socket.inet_ntop(family, own) + prefix
        except OSError:  # it has gone
            return


def _split(data: bytes, header: int, width: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and contents of messages, or attributes, whose header begins with length and kind."""
    while len(data) >= header:
        length = _value(data[:width])
        yield _value(data[width : width + 2]), data[header:length]
        data = data[(max(length, header) + 3) // 4 * 4 :]


def _number(value: int, width: int) -> bytes:
    return value.to_bytes(width, sys.byteorder)


def _value(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)


def _describe_link(name: str) -> str:
    """Return state, speed and kind of a network interface."""
    link = f"/sys/class/net/{name}"
    speed, kind = _first_word(f"{link}/speed") or "-1", "virtual"
    if os.path.isdir(f"{link}/bridge"):
        ports = _names(f"{link}/brif")
        kind = "device" if any(os.path.exists(f"/sys/class/net/{port}/device") for port in ports) else "bridge"
    elif os.path.exists(f"{link}/device") or os.path.isdir(f"{link}/bonding"):
        kind = "device"
        if int(speed) <= 0:
            speed = next(_rates(f"{link}/device/infiniband"), speed)
    return f"{_first_word(f'{link}/operstate') or 'unknown'} {speed} {kind}"


def _rates(folder: str) -> Iterator[str]:
    """Yield the rate of each port of InfiniBand's devices, in Mbit/s; their files have Gbit/s, as in `100 Gb/sec`."""
    for device in _names(folder):
        for port in _names(f"{folder}/{device}/ports"):
            gigabits = _first_word(f"{folder}/{device}/ports/{port}/rate").split(".")[0]
            if gigabits:
                yield str(1000 * int(gigabits))


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _first_word(path: str) -> str:
    return "".join(read_line(path).split()[:1])
