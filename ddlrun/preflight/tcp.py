"""TCP connections between hosts: the task of each host, and the findings about the replies."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ddlrun.hosts import fold
from ddlrun.network.subnet_selection import Network
from ddlrun.preflight.findings import FindingCode, PreflightFinding
from ddlrun.remote.tasks import EXIT_NO_PYTHON, TaskReply
from ddlrun.wire.authentication import Secret
from ddlrun.wording import printable

ALL_PAIRS = 8
# The hosts of a batch have to run at the same time, and ssh goes to 128 hosts at once.
BATCH_SIZE = 100
MODULE = "ddlrun.preflight.peer"
"""The module of the tasks."""
# MPI's own connections use ports from 1024 on; these are seldom in use.
LOWEST, HIGHEST, TRIES = 28000, 29900, 3
MOST_ERROR = 200


class _PeerReport(NamedTuple):
    """The reply of one host: whether it could listen, and per target the error, None if it was reached.

    It took part in the check from `since` until `until`, by its own clock.
    """

    listening: bool
    reached: Mapping[str, str | None]
    unresolved: frozenset[str]
    """The targets whose names have no address there."""
    since: float
    until: float

    def missed(self, other: "_PeerReport") -> bool:
        """Return True if another host began after this one had ended, or the reverse."""
        return self.until < other.since or other.until < self.since


def pairs(hosts: Sequence[str]) -> set[tuple[str, str]]:
    """Return the pairs (from, to) that must connect.

    These are all pairs of up to 8 hosts; of more hosts, both neighbours in a ring, and the first with each other
    host.

    >>> sorted(pairs(["a", "b"]))
    [('a', 'b'), ('b', 'a')]
    """
    if len(hosts) <= ALL_PAIRS:
        return {(source, target) for source in hosts for target in hosts if source != target}
    ring = zip(hosts, (*hosts[1:], hosts[0]), strict=True)
    star = ((hosts[0], host) for host in hosts[1:])
    return {pair for first, second in (*ring, *star) for pair in ((first, second), (second, first))}


def batches(hosts: Sequence[str]) -> list[Sequence[str]]:
    """Return the hosts that run at the same time; each batch begins with the last host of the previous one.

    >>> [len(batch) for batch in batches([f"h{n}" for n in range(250)])]
    [100, 101, 51]
    """
    slices = [hosts[max(0, start - 1) : start + BATCH_SIZE] for start in range(0, len(hosts), BATCH_SIZE)]
    return [batch for batch in slices if len(batch) > 1]


def peer_tasks(hosts: Sequence[str], network: Network, seconds: float) -> dict[str, dict[str, Any]]:
    """Return each host's task, which listens on one of three ports and connects to its partners.

    It ends when all connections have been tried, at the latest after some seconds.
    """
    first_port = LOWEST + int.from_bytes(os.urandom(8), "big") % (HIGHEST - LOWEST)
    connections = sorted(pairs(hosts))
    secret = Secret.draw().text
    return {
        host: {
            "own": host,
            "bind": network.addresses.get(host, "::" if ":" in host else "0.0.0.0"),  # noqa: S104 - all its networks
            "to": {to: network.addresses.get(to, to) for source, to in connections if source == host},
            "ports": list(range(first_port, first_port + TRIES)),
            "secret": secret,
            "seconds": seconds,
        }
        for host in hosts
    }


def judge_tcp(hosts: Sequence[str], replies: Mapping[str, TaskReply], network: Network) -> Iterator[PreflightFinding]:
    """Yield findings about the connections between hosts, and one that passed for each host without problems."""
    parsed = {host: _parse(replies[host]) for host in hosts}
    reports = {host: report for host, report in parsed.items() if isinstance(report, _PeerReport)}
    errors, missed = _failed_connections(reports, hosts)
    on_network = f" on {', '.join(network.subnets)}" if network.subnets else ""
    for host in hosts:
        report = parsed[host]
        if isinstance(report, FindingCode):
            yield PreflightFinding(host, "tcp", report)
        elif not report.listening:
            yield PreflightFinding(host, "tcp", FindingCode.TCP_NO_PORT, {"network": on_network})
        elif host in missed:
            yield PreflightFinding(host, "tcp", FindingCode.TCP_MISSED, {"peers": fold(missed[host])})
        elif host not in errors:
            yield PreflightFinding(host, "tcp", FindingCode.PASSED)
        for error, targets in errors.get(host, {}).items():
            if isinstance(report, _PeerReport) and report.unresolved.issuperset(targets):
                for target in targets:
                    yield PreflightFinding(host, "tcp", FindingCode.NAME_UNKNOWN, {"name": target})
                continue
            reachable = [target for target in targets if host not in _all_targets(errors.get(target, {}))]
            values = {
                "peers": fold(targets), "network": on_network, "error": error, "reachable": fold(reachable),
            }  # fmt: skip
            yield PreflightFinding(host, "tcp", _failure_code(targets, reachable), values)


def _failure_code(targets: Sequence[str], reachable: Sequence[str]) -> FindingCode:
    """Return the code of failed connections, of which those from the `reachable` hosts back do work."""
    if not reachable:
        return FindingCode.TCP_FAILED
    one_way = len(reachable) == len(targets)
    return FindingCode.TCP_FAILED_ONE_WAY if one_way else FindingCode.TCP_FAILED_PARTLY_ONE_WAY


def _failed_connections(
    reports: Mapping[str, _PeerReport], hosts: Sequence[str]
) -> tuple[dict[str, dict[str, list[str]]], dict[str, list[str]]]:
    """Return the targets that could not be reached, by host and error, and those that were not there in time."""
    failed: dict[str, dict[str, list[str]]] = {}
    missed: dict[str, list[str]] = {}
    for source, target in sorted(pairs(hosts)):
        if source not in reports or target not in reports:
            continue
        error = reports[source].reached.get(target, "no answer")
        if error is not None and reports[source].missed(reports[target]):
            missed.setdefault(source, []).append(target)
        elif error is not None:
            failed.setdefault(source, {}).setdefault(error, []).append(target)
    return failed, missed


def _all_targets(by_error: Mapping[str, Sequence[str]]) -> set[str]:
    return {target for targets in by_error.values() for target in targets}


def _shorten(error: str) -> str:
    return " ".join(printable(error).split())[:MOST_ERROR]


def _parse(reply: TaskReply) -> _PeerReport | FindingCode:
    """Return a host's report; the code of a finding if it has none."""
    if reply.process.code == EXIT_NO_PYTHON:
        return FindingCode.TCP_WITHOUT_PYTHON
    try:
        return _read_report(reply.value)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return FindingCode.TCP_WITHOUT_ANSWER


def _read_report(report: Mapping[str, Any]) -> _PeerReport:
    """Return the report of a host. An error is raised where it is none."""
    errors = report["reached"].items()
    return _PeerReport(
        listening=bool(report["listening"]),
        reached={str(name): None if error is None else _shorten(str(error)) for name, error in errors},
        unresolved=frozenset(map(str, report["unresolved"])),
        since=float(report["since"]),
        until=float(report["until"]),
    )
