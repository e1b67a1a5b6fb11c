"""The full probe of hosts: the replies of all hardware tools, for `ddlrun probe`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ddlrun.errors import HostError, UnreachableError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.machine.probe_reply import ProbeReply, full_script, machine_of, parse_answer
from ddlrun.remote.probe import ProbeTarget, describe_failure, run_scripts
from ddlrun.remote.processes import FinishedProcess


class ProbeCache(Protocol):
    """Earlier replies by host."""

    def get(self, host: str) -> str | None:
        """Return a host's reply, or None if there is none or it is too old."""

    def put(self, host: str, text: str) -> None:
        """Store a host's reply."""


@dataclass(frozen=True, slots=True)
class ProbedHost:
    """A host's machine, or the problem with its reply."""

    machine: Machine | None
    sections: Mapping[str, str]
    """The texts from which the machine was read, by file name."""
    problem: str | None = None
    cached: bool = False


def probe_fully(hosts: HostList, reach: ProbeTarget, cache: ProbeCache | None = None) -> dict[str, ProbedHost]:
    """Return the replies of all tools of each host; a host that is as in the cache skips its tools.

    Hosts that look the same share one Machine. A host's failure is in its ProbedHost and raises nothing.
    """
    earlier = {name: _parse_cached(cache.get(name), name) for name in hosts.names} if cache else {}
    keys = {name: reply.key for name, reply in earlier.items() if reply}
    replies = run_scripts({name: full_script(keys.get(name, "")) for name in hosts.names}, reach)
    kinds: dict[Machine, Machine] = {}
    probed: dict[str, ProbedHost] = {}
    for name in hosts.names:
        reply = replies[name]
        host = _read_reply(name, reply, earlier.get(name))
        if host.problem is None and cache and not host.cached:
            cache.put(name, reply.out)
        if host.machine is not None:
            host = replace(host, machine=kinds.setdefault(host.machine, host.machine))
        probed[name] = host
    return probed


def _read_reply(name: str, reply: FinishedProcess, earlier: ProbeReply | None) -> ProbedHost:
    """Parse a host's reply; the earlier one completes that of a host that has not changed."""
    if "@ddlrun" not in reply.out:
        return ProbedHost(None, {}, describe_failure(reply))
    try:
        answer = parse_answer(reply.out, name)
        if answer.same and earlier is not None:
            sections = {**earlier.sections, **answer.sections}
            return ProbedHost(machine_of(sections, name), sections, cached=True)
        return ProbedHost(machine_of(answer.sections, name), answer.sections)
    except HostError as error:
        return ProbedHost(None, {}, error.problem)


def _parse_cached(text: str | None, name: str) -> ProbeReply | None:
    try:
        return parse_answer(text, name) if text else None
    except UnreachableError:
        return None
