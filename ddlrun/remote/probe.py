"""Ask each host what it is made of, in one parallel round trip."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ddlrun.errors import HostError, InputError, UnreachableError
from ddlrun.hosts import HostList, fold
from ddlrun.machine import Machine
from ddlrun.machine.sysfs import SCRIPT, machine_kind, parse_sysfs
from ddlrun.remote.processes import FinishedProcess

TYPE_CHECKING = False  # typing's own is the same to a type checker
if TYPE_CHECKING:
    from ddlrun.machine.probe_reply import ProbeReply


class ProbeTarget(NamedTuple):
    """How hosts are reached: this one's name, what starts a sh script here, and runs some on others (all at once)."""

    own_name: str
    here: Callable[[str], Callable[[], FinishedProcess]]
    there: Callable[[Mapping[str, str]], Mapping[str, FinishedProcess]]
    ssh: str = "ssh"


class ProbeCache(Protocol):
    """Earlier answers by host."""

    def get(self, host: str) -> str | None:
        """Return a host's answer, None where there is none or it is too old."""

    def put(self, host: str, text: str) -> None:
        """Keep a host's answer."""


class ProbedHost(NamedTuple):
    """A host's machine and the texts that it was made of, or why there is none."""

    machine: Machine | None
    sections: Mapping[str, str]
    problem: str | None = None
    cached: bool = False


def is_local(name: str, own_name: str) -> bool:
    """Tell whether a host's name means this machine (by name alone; nothing is resolved)."""
    own = own_name.lower()
    return name.lower() in ("localhost", "127.0.0.1", "::1", own, own.partition(".")[0])


def check_distinct(hosts: HostList, own_name: str) -> None:
    """Raise InputError where two names mean this machine, or differ in upper and lower case alone."""
    seen: dict[str, str] = {}
    for name in hosts.names:
        key = "localhost" if is_local(name, own_name) else name.lower()
        if key in seen:
            which = "this machine" if key == "localhost" else "the same host"
            raise InputError(f"{hosts.source}: {seen[key]} and {name} are both {which}; name it once")
        seen[key] = name


def await_names(names: Sequence[str], seconds: float) -> None:
    """Wait until every name resolves, as those of new pods do not at once.

    Raises UnreachableError naming those that still do not after so many seconds.
    """
    import socket  # noqa: PLC0415 - for pods alone

    def unknown(name: str) -> bool:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            return True
        return False

    end = time.monotonic() + seconds
    while missing := [name for name in names if unknown(name)]:
        if time.monotonic() > end:
            raise UnreachableError(
                f"hosts {fold(missing)}: no such name after {seconds:g} s; see whether their pods run: kubectl get pods"
            )
        time.sleep(0.5)


def probe(hosts: HostList, reach: ProbeTarget) -> dict[str, Machine]:
    """Return each host's machine as /sys has it; hosts that say the same share one object.

    Raises UnreachableError naming every host that could not be asked, and why.
    """
    answers = ask(dict.fromkeys(hosts.names, SCRIPT), reach)
    failed = {name: why_silent(answers[name]) for name in hosts.names if "ddlrun:end" not in answers[name].out}
    if failed:
        raise UnreachableError(*failures(failed, reach.ssh, " (or describe the hosts: --machine)"))
    kinds: dict[str, Machine] = {}
    machines: dict[str, Machine] = {}
    for name in hosts.names:
        text = answers[name].out.strip()
        kind = machine_kind(text)
        if kind not in kinds:
            kinds[kind] = parse_sysfs(text, name)
        machines[name] = kinds[kind]
    return machines


def probe_fully(hosts: HostList, reach: ProbeTarget, cache: ProbeCache | None = None) -> dict[str, ProbedHost]:
    """Return what each host says with all its tools; a host that is as it was in the cache skips the tools.

    Hosts that look the same share one Machine. Never raises for a host: its Probed has the problem.
    """
    from ddlrun.machine.probe_reply import full_script  # noqa: PLC0415 - a launch asks /sys alone

    kept = {name: _kept(cache.get(name), name) for name in hosts.names} if cache else {}
    known = {name: answer.key for name, answer in kept.items() if answer}
    answers = ask({name: full_script(known.get(name, "")) for name in hosts.names}, reach)
    kinds: dict[Machine, Machine] = {}
    found: dict[str, ProbedHost] = {}
    for name in hosts.names:
        if "@ddlrun" not in answers[name].out:
            found[name] = ProbedHost(None, {}, why_silent(answers[name]))
            continue
        found[name] = _read(name, answers[name].out, kept.get(name))
        if found[name].problem is None and cache and not found[name].cached:
            cache.put(name, answers[name].out)
        if machine := found[name].machine:
            found[name] = found[name]._replace(machine=kinds.setdefault(machine, machine))
    return found


def _read(name: str, text: str, kept: "ProbeReply | None") -> ProbedHost:
    from ddlrun.machine.probe_reply import machine_of, parse_answer  # noqa: PLC0415 - see probe_fully

    try:
        answer = parse_answer(text, name)
        cached = answer.same and kept is not None
        sections = {**kept.sections, **answer.sections} if cached and kept else answer.sections
        return ProbedHost(machine_of(sections, name), sections, cached=cached)
    except HostError as error:
        return ProbedHost(None, {}, error.problem)


def _kept(text: str | None, name: str) -> "ProbeReply | None":
    from ddlrun.machine.probe_reply import parse_answer  # noqa: PLC0415 - see probe_fully

    try:
        return parse_answer(text, name) if text else None
    except UnreachableError:
        return None


def ask(scripts: Mapping[str, str], reach: ProbeTarget) -> dict[str, FinishedProcess]:
    """Return what each host's script printed; the local ones run here, the others all at once."""
    local = {name: reach.here(script) for name, script in scripts.items() if is_local(name, reach.own_name)}
    remote = {name: script for name, script in scripts.items() if name not in local}
    answers = dict(reach.there(remote)) if remote else {}
    return answers | {name: finish() for name, finish in local.items()}


def why_silent(answer: FinishedProcess) -> str:
    """Return in a few words why a host gave no answer."""
    said = [line for line in answer.err.strip().splitlines() if line.strip()]
    return "no answer in time" if answer.code is None else (said[-1].strip() if said else f"exit code {answer.code}")


def failures(why: Mapping[str, str], ssh: str, other: str = "") -> list[str]:
    """Return a line a host that failed, one for all where more than four failed alike; `why` has the reasons."""
    alike: dict[str, list[str]] = {}
    for name, reason in why.items():
        alike.setdefault(reason.replace(name, "*"), []).append(name)
    lines = []
    for names in alike.values():
        for one in [names] if len(names) > 4 else [[name] for name in names]:
            hosts = f"host{'s' * (len(one) > 1)} {fold(one)}"
            lines.append(f"{hosts}: {why[one[0]]}; try: {ssh} {one[0]} true{other}")
    return lines


def group(machines: Mapping[str, Machine]) -> list[tuple[Machine, Sequence[str]]]:
    """Return hosts that look the same together, the largest group first."""
    alike: dict[Machine, list[str]] = {}
    for name, machine in machines.items():
        alike.setdefault(machine, []).append(name)
    return sorted(alike.items(), key=lambda item: -len(item[1]))
