"""The chain along which an archive travels: from host to host, rack by rack, so that each uplink carries it once."""

from collections.abc import Mapping, Sequence


def chain_order(hosts: Sequence[str], racks: Mapping[str, object], first: str | None) -> list[str]:
    """Return hosts in the order of the chain: the hosts of a rack one after the other; first that of ddlrun, if any.

    >>> chain_order(["a", "b", "c", "d"], {"a": 0, "b": 1, "c": 0, "d": 1}, "d")
    ['d', 'b', 'a', 'c']
    """
    by_rack: dict[object, list[str]] = {}
    for host in sorted(hosts, key=lambda host: host != first):
        by_rack.setdefault(racks.get(host), []).append(host)
    return [host for rack in by_rack.values() for host in rack]


def predecessors(chain: Sequence[str]) -> dict[str, str | None]:
    """Return host -> the host before it in the chain; None: it gets the archive from ddlrun.

    >>> predecessors(["a", "b"])
    {'a': None, 'b': 'a'}
    """
    return dict(zip(chain, [None, *chain[:-1]], strict=True))
