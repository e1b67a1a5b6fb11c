"""Probing hosts: what each is made of, in one parallel round trip."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ddlrun.errors import InputError, UnreachableError
from ddlrun.hosts import HostList, fold
from ddlrun.machine import Machine
from ddlrun.machine.announced_cpus import SCRIPT, parse_announced_cpus
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.tasks import TaskReply

RESOLVE_SECONDS = 0.5
# More hosts than this with the same failure share a line of the error.
MOST_LINES = 4
# The last line of a reply that is complete.
COMPLETE = "@end"


class ProbeTarget(NamedTuple):
    """The ways to run sh scripts and tasks on hosts."""

    here: Callable[[str], Callable[[], FinishedProcess]]
    """Starts a script on this machine; returns a function that waits for its end."""
    there: Callable[[Mapping[str, str]], Mapping[str, FinishedProcess]]
    """Runs one script per other host, all at once."""
    task_here: Callable[[str, Mapping[str, Any]], Callable[[], TaskReply]]
    """Starts a task, of a module with an argument, on this machine; returns a function that waits for its end."""
    tasks_there: Callable[[str, Mapping[str, Mapping[str, Any]]], Mapping[str, TaskReply]]
    """Runs one task per other host, all at once."""
    variables: Callable[[str], Mapping[str, str]]
    """Returns the variables that choose the GPUs of a host, which scripts have."""
    ssh: str = "ssh"
    """The command that a user would try to reach a host."""


def is_local(name: str) -> bool:
    """Return True if a host's name means this machine, by the name alone: nothing is resolved."""
    own = os.uname().nodename.lower()
    return name.lower() in ("localhost", "127.0.0.1", "::1", own, own.partition(".")[0])


def check_distinct(hosts: HostList) -> None:
    """Raise InputError if two names mean this machine, or differ in upper and lower case alone."""
    first_names: dict[str, str] = {}
    for name in hosts.names:
        key = "localhost" if is_local(name) else name.lower()
        if key in first_names:
            host = "this machine" if key == "localhost" else "the same host"
            raise InputError(f"{hosts.source}: {first_names[key]} and {name} are both {host}; name it once")
        first_names[key] = name


def await_names(names: Sequence[str], seconds: float) -> None:
    """Wait some seconds for every name to resolve, as those of new pods do not at once. Raises UnreachableError."""
    end = time.monotonic() + seconds
    while missing := [name for name in names if not _resolves(name)]:
        if time.monotonic() > end:
            raise UnreachableError(
                f"hosts {fold(missing)}: no such name after {seconds:g} s; see whether their pods run: kubectl get pods"
            )
        time.sleep(RESOLVE_SECONDS)


def _resolves(name: str) -> bool:
    import socket  # noqa: PLC0415 - 1 ms, for pods alone

    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


class PendingProbe:
    """A probe of hosts. That of this machine has begun, so that other work can go on until the reply is needed."""

    def __init__(self, hosts: HostList, reach: ProbeTarget) -> None:
        """Start reading this machine's /sys."""
        self._names, self._reach = hosts.names, reach
        self._local = {name: reach.here(SCRIPT) for name in hosts.names if is_local(name)}
        self.announced_cpus: dict[str, frozenset[int]] = {}
        """Host -> the CPUs of other users' ranks; empty before the result."""

    def result(self) -> dict[str, Machine]:
        """Return each host's machine, read from its /sys; equal ones are one object. Raises UnreachableError."""
        remote = {name: SCRIPT for name in self._names if name not in self._local}
        replies = dict(self._reach.there(remote)) if remote else {}
        replies |= {name: finish() for name, finish in self._local.items()}
        failed = {
            name: describe_failure(replies[name]) for name in self._names if "ddlrun:end" not in replies[name].out
        }
        if failed:
            raise UnreachableError(*render_failures(failed, self._reach.ssh, " (or describe the hosts: `--machine`)"))
        texts = {name: replies[name].out.strip() for name in self._names}
        self.announced_cpus |= {name: parse_announced_cpus(text) for name, text in texts.items()}
        return _parse_machines(texts)


def _parse_machines(texts: Mapping[str, str]) -> dict[str, Machine]:
    from ddlrun.machine.sysfs import machine_kind, parse_sysfs  # noqa: PLC0415 - 2 ms, not before agents start

    kinds: dict[str, Machine] = {}
    machines: dict[str, Machine] = {}
    for name, text in texts.items():
        kind = machine_kind(text)
        if kind not in kinds:
            kinds[kind] = parse_sysfs(text, name)
        machines[name] = kinds[kind]
    return machines


def probe(hosts: HostList, reach: ProbeTarget) -> dict[str, Machine]:
    """Return each host's machine, as PendingProbe.result does. Raises UnreachableError."""
    return PendingProbe(hosts, reach).result()


def run_scripts(scripts: Mapping[str, str], reach: ProbeTarget) -> dict[str, FinishedProcess]:
    """Run each host's script, all at once: this machine's own here, the others through the launcher."""
    local = {name: reach.here(script) for name, script in scripts.items() if is_local(name)}
    remote = {name: script for name, script in scripts.items() if name not in local}
    results = dict(reach.there(remote)) if remote else {}
    return results | {name: finish() for name, finish in local.items()}


def run_tasks(module: str, tasks: Mapping[str, Mapping[str, Any]], reach: ProbeTarget) -> dict[str, TaskReply]:
    """Run each host's task, of a module with an argument, all at once: this machine's own here."""
    local = {name: reach.task_here(module, task) for name, task in tasks.items() if is_local(name)}
    remote = {name: task for name, task in tasks.items() if name not in local}
    results = dict(reach.tasks_there(module, remote)) if remote else {}
    return results | {name: finish() for name, finish in local.items()}


def run_complete(
    scripts: Mapping[str, str], reach: ProbeTarget
) -> tuple[dict[str, FinishedProcess], dict[str, FinishedProcess]]:
    """Run a script, which prints COMPLETE last, on each host; return the complete replies, and the others."""
    replies = run_scripts(scripts, reach)
    complete = {name: reply for name, reply in replies.items() if COMPLETE in reply.out}
    return complete, {name: reply for name, reply in replies.items() if name not in complete}


def describe_failure(answer: FinishedProcess) -> str:
    """Return the reason why a host's script printed nothing useful, in a few words."""
    if answer.code is None:
        return "no answer in time"
    errors = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return errors[-1] if errors else f"exit code {answer.code}"


def render_failures(reasons: Mapping[str, str], ssh: str, remedy: str = "") -> list[str]:
    """Return one line per host that failed, ending with a remedy; more than four with the same failure share a line.

    `ssh` is the command to try; this machine is reached without it.
    """
    alike: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        alike.setdefault(reason.replace(name, "*"), []).append(name)
    lines = []
    for names in alike.values():
        for hosts in [names] if len(names) > MOST_LINES else [[name] for name in names]:
            noun = "hosts" if len(hosts) > 1 else "host"
            command = "sh -c true" if is_local(hosts[0]) else f"{ssh} {hosts[0]} true"
            lines.append(f"{noun} {fold(hosts)}: {reasons[hosts[0]]}; try: {command}{remedy}")
    return lines


def group(machines: Mapping[str, Machine]) -> list[tuple[Machine, Sequence[str]]]:
    """Return hosts that look the same together, the largest group first."""
    alike: dict[Machine, list[str]] = {}
    for name, machine in machines.items():
        alike.setdefault(machine, []).append(name)
    return sorted(alike.items(), key=lambda item: -len(item[1]))
