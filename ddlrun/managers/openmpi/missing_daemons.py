"""The hosts whose daemons mpirun waits for, by its TCP connections."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

# Daemons on more hosts connect to each other, in a tree.
MOST_HOSTS = 64


def find_missing_daemons(session: int, host_names: Sequence[str]) -> list[str]:
    """Return the hosts from which no daemon has connected to mpirun; none if that cannot be known.

    Args:
        session: mpirun's session.
        host_names: The hosts of the job.
    """
    if len(host_names) > MOST_HOSTS:
        return []
    addresses = {host: _resolve(host) for host in host_names}
    return match_hosts(addresses, connected=_connected_addresses(session), own=_own_addresses())


def find_name(host: str, host_names: Sequence[str]) -> str:
    """Return the job's name of a host that is named by its address; the name as it is where no host has it.

    >>> find_name("127.0.0.1", ["localhost"]), find_name("h2", ["h1", "h2"])
    ('localhost', 'h2')
    """
    if host in host_names or len(host_names) > MOST_HOSTS:
        return host
    return next((name for name in host_names if host in _resolve(name)), host)


def match_hosts(
    addresses: Mapping[str, frozenset[str]], *, connected: frozenset[str], own: frozenset[str]
) -> list[str]:
    """Return the hosts none of whose addresses is connected or this machine's own.

    A connection from an address of no host's name may come from any host: no host is returned then.

    Args:
        addresses: Host -> the addresses to which its name resolves; hosts without any are never returned.
        connected: The addresses of mpirun's connections.
        own: The addresses of this machine.

    >>> hosts = {f"h{number}": frozenset({f"10.0.0.{number}"}) for number in (1, 2, 3)}
    >>> match_hosts(hosts, connected=frozenset({"10.0.0.2"}), own=frozenset({"10.0.0.1"}))
    ['h3']
    >>> match_hosts(hosts, connected=frozenset({"10.0.9.2"}), own=frozenset({"10.0.0.1"}))
    []
    """
    reached = connected | own
    if not connected <= own.union(*addresses.values()):
        return []
    return [host for host, of_host in addresses.items() if of_host and of_host.isdisjoint(reached)]


def _connected_addresses(session: int) -> frozenset[str]:
    """Return the other ends of connections to a session's listening ports; an ssh client has no such port."""
    import psutil  # noqa: PLC0415 - 17 ms, for a job whose daemons are missing

    rows = [row for row in psutil.net_connections("tcp") if row.pid is not None and _session_of(row.pid) == session]
    ports = {row.laddr.port for row in rows if row.laddr and row.status == psutil.CONN_LISTEN}
    return _plain(row.raddr.ip for row in rows if row.raddr and row.laddr and row.laddr.port in ports)


def _session_of(pid: int) -> int:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return 0


def _own_addresses() -> frozenset[str]:
    import psutil  # noqa: PLC0415 - 17 ms, for a job whose daemons are missing

    return _plain(entry.address for entries in psutil.net_if_addrs().values() for entry in entries)


def _resolve(host: str) -> frozenset[str]:
    import socket  # noqa: PLC0415 - 1 ms, for the same

    with suppress(OSError):
        return _plain(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    return frozenset()


def _plain(addresses: Iterable[str]) -> frozenset[str]:
    """Return addresses without the prefix of IPv4 in IPv6, and without a link."""
    return frozenset(address.removeprefix("::ffff:").partition("%")[0] for address in addresses)
