"""Ports for programs that a test starts."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that the kernel gives to no other program, until a server that shares addresses listens there.

    It is reserved on all addresses, on which torch's store listens.
    """
    dual_stack = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if dual_stack else socket.AF_INET) as holder:
        if dual_stack:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
