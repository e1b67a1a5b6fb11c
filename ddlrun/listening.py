"""The addresses at which other hosts reach this machine, and ports on them."""

import _socket  # socket itself takes 6 ms to import
import errno
import os
from collections.abc import Sequence
from contextlib import suppress

from ddlrun.errors import PreflightError

# A port that is free on loopback may be in use on another address.
MOST_PORTS = 100


def own_addresses(others: Sequence[str], preferred: str | None) -> tuple[str, ...]:
    """Return this machine's addresses that other hosts reach, the one on the job's network first if it has one."""
    routed = _routed_addresses(others[:8]) if others else ("127.0.0.1",)
    return tuple(dict.fromkeys((*(() if preferred is None else (preferred,)), *routed)))


def _routed_addresses(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses from which this machine talks to hosts; its name where no host's name resolves."""
    import socket  # noqa: PLC0415 - 1 ms, for jobs over several hosts alone

    addresses: dict[str, None] = {}
    for name in hosts:
        try:
            candidates = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, _, _, address in candidates:
            with suppress(OSError), socket.socket(family, kind) as probe_socket:
                probe_socket.connect(address)  # only looks up a route: UDP sends nothing here
                addresses[str(probe_socket.getsockname()[0])] = None
    return tuple(addresses) or (os.uname().nodename,)


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
