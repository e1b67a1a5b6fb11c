"""Listening ports, bound only to the addresses that others use."""

import _socket  # socket itself takes 6 ms to import
import errno
from collections.abc import Sequence

from ddlrun.errors import PreflightError

# A port that is free on loopback may be in use on another address.
MOST_PORTS = 100


def bind_free_port(addresses: Sequence[str]) -> list[_socket.socket]:
    """Bind a free port on loopback and on the addresses, or on all if one of these is a name; return the sockets."""
    if not all(map(_is_numeric, addresses)):
        return [_bind_all()]
    for _ in range(MOST_PORTS):
        loopback = _bind("127.0.0.1", 0)
        try:
            return [loopback, *_bind_each(addresses, loopback.getsockname()[1])]
        except OSError as error:
            loopback.close()
            if error.errno != errno.EADDRINUSE:
                raise PreflightError(f"cannot listen on {', '.join(addresses)}: {error.strerror}") from error
    raise PreflightError(f"cannot listen on {', '.join(addresses)}: no port is free on all of them")


def _bind_each(addresses: Sequence[str], port: int) -> list[_socket.socket]:
    """Bind a port on each address but loopback; return the sockets. Raises OSError."""
    sockets: list[_socket.socket] = []
    try:
        for ip in addresses:
            if ip != "127.0.0.1":
                sockets.append(_bind(ip, port))  # noqa: PERF401 - bound sockets are closed on an error
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def _is_numeric(address: str) -> bool:
    """Return True for an IPv4 or IPv6 address, False for a name."""
    try:
        _socket.inet_pton(_family(address), address.partition("%")[0])
    except OSError:
        return False
    return True


def _family(address: str) -> int:
    return _socket.AF_INET6 if ":" in address else _socket.AF_INET


def _bind_all() -> _socket.socket:
    try:
        return _bind("::", 0)
    except OSError:  # this machine has no IPv6
        return _bind("0.0.0.0", 0)  # noqa: S104 - clients need the secret


def _bind(address: str, port: int) -> _socket.socket:
    family = _family(address)
    listener = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        if family == _socket.AF_INET6:
            listener.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener
