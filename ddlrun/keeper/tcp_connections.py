"""The TCP sockets and connections of this host, by sock_diag(7): for the layouts see inet_diag.h and tcp.h of Linux."""

from __future__ import annotations

import _socket
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DUMP, ERROR, DONE = 4, 20, 0x301, 2, 3
FAMILIES = (_socket.AF_INET, _socket.AF_INET6)
TCP, ESTABLISHED, CONNECTING, ANY_STATE, INFO, TIMER = 6, 1 << 1, 1 << 2, 0xFFFF, 2, 1
"""The protocol, three sets of states, the attribute tcp_info, and the timer of data that is sent again."""
HEADER, ATTRIBUTE, REQUEST = Struct("=IH10x"), Struct("=HH"), Struct("=IHHIIBBBxI48x")
# An inet_diag_msg: timer, retransmissions, identifier, unacknowledged bytes, inode.
MESSAGE = Struct("=xxBB48s8xI4xI")
ERROR_NUMBER, LOCAL_PORT, PEER_PORT = Struct("=i"), Struct("!4xH"), Struct("!2xH")
# A tcp_info: acknowledged and received bytes; us of busy time, without room at the receiver, and without data to send.
TCP_INFO = Struct("=120xQQ32xQQQ")


class TcpConnection:
    """A connection between two addresses."""

    def __init__(self, family: int, message: bytes) -> None:
        """Parse an inet_diag_msg and its attributes."""
        timer, retransmissions, self.identifier, unacknowledged, self.inode = MESSAGE.unpack_from(message)
        width = 4 if family == _socket.AF_INET else 16
        addresses = (_socket.inet_ntop(family, self.identifier[at : at + width]) for at in (4, 20))
        self.ours, self.theirs = (address.replace("::ffff:", "") for address in addresses)  # IPv4 over IPv6
        self.their_port: int = PEER_PORT.unpack_from(self.identifier)[0]
        self.retransmissions: int = retransmissions if timer == TIMER and unacknowledged else 0
        """The number of times that data without an acknowledgement was sent again."""
        self.acknowledged, self.received, busy, no_room, no_data = TCP_INFO.unpack_from(
            _find_info(message[MESSAGE.size :])
        )
        self.busy: int = busy - no_room - no_data
        """The us in which data was on its way; 0, as for bytes, where the kernel does not count them."""


def _find_info(attributes: bytes) -> bytes:
    """Return the tcp_info among attributes; zeros if it is not there, or that of a kernel before 4.10."""
    while len(attributes) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(attributes)
        if kind == INFO and length >= ATTRIBUTE.size + TCP_INFO.size:
            return attributes[ATTRIBUTE.size :]
        attributes = attributes[max(length + 3 & ~3, ATTRIBUTE.size) :]
    return bytes(TCP_INFO.size)


def read_connections(states: int = ESTABLISHED) -> Iterator[TcpConnection]:
    """Yield the connections in a set of states. Raises OSError where the kernel does not answer, as in a sandbox."""
    for family in FAMILIES:
        try:
            for message in _dump(family, states, 1 << (INFO - 1)):
                yield TcpConnection(family, message)
        except UnknownFamilyError:
            continue


def list_ports() -> set[int]:
    """Return the local ports of all sockets. Raises OSError where the kernel does not answer.

    /proc/net/tcp takes 5 ms, as the kernel walks through a table for all namespaces; this takes 0.3.
    """
    return {LOCAL_PORT.unpack_from(message)[0] for family in FAMILIES for message in _dump(family, ANY_STATE)}


class UnknownFamilyError(OSError):
    """The kernel does not list the sockets of a family."""


def _dump(family: int, states: int, attributes: int = 0) -> Iterator[bytes]:
    """Yield an inet_diag_msg and its attributes for each socket in one of some states. Raises OSError."""
    kernel = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    try:
        kernel.settimeout(1)
        fields = SOCK_DIAG_BY_FAMILY, DUMP, 1, 0, family, TCP, attributes, states
        kernel.send(REQUEST.pack(REQUEST.size, *fields))
        data, kind = b"", 0
        while kind != DONE:
            data = data or kernel.recv(1 << 17)
            length, kind = HEADER.unpack_from(data)
            if kind == ERROR:
                raise UnknownFamilyError(-ERROR_NUMBER.unpack_from(data, HEADER.size)[0], "the kernel lists no sockets")
            if kind == SOCK_DIAG_BY_FAMILY:
                yield data[HEADER.size : length]
            data = data[length + 3 & ~3 :]
    finally:
        kernel.close()
