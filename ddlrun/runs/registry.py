"""Records of running jobs in the user's state folder: written by launch, read by runs, kill and clean."""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypedDict

from ddlrun.keeper.proc_files import read_stat
from ddlrun.mapping.placement import Placement
from ddlrun.plan.plan import Plan
from ddlrun.ranges import parse_ranges, render_ranges
from ddlrun.remote.probe import is_local
from ddlrun.runs.state_folders import elsewhere, make_folder, state_folders, write_state
from ddlrun.runs.store import write_private

# How often, and after how many seconds, a launch tries to lock the registry: at most 2 s.
LOCK_TRIES, LOCK_SECONDS = 200, 0.01
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class ResourcesRecord(TypedDict):
    """The CPUs and GPUs that a run uses on hosts that are alike."""

    hosts: Sequence[str]
    cpus: str
    """The OS indexes of their CPUs on each host, in the kernel's list format."""
    gpus: Sequence[str]
    """The PCI addresses of their GPUs on each host."""


class Run(NamedTuple):
    """The record of a run that has not ended."""

    run: str
    """The run's name."""
    run_dir: str
    hosts: tuple[str, ...]
    ranks: int
    """The number of ranks."""
    pid: int
    """ddlrun's own process."""
    host: str
    """The host of that process."""
    process_start: str
    """The boot of the host and the start of that process, in clock ticks since the boot."""
    started: float
    """Seconds since the epoch."""
    program: tuple[str, ...]
    resources: Sequence[ResourcesRecord] = ()
    """The CPUs and GPUs that the ranks use."""

    def alive(self) -> bool | None:
        """Return True if its ddlrun still runs, None if that was started on another host."""
        if self.host != os.uname().nodename:
            return None
        return born(self.pid) == self.process_start


def read_runs(folder: str) -> list[Run]:
    """Return the runs recorded in a state folder."""
    active = [f"{place}/active" for place in state_folders(folder)]
    paths = {name: f"{place}/{name}" for place in active if os.path.isdir(place) for name in os.listdir(place)}
    runs = {name: _read_record(paths[name]) for name in sorted(paths)}
    return [run for name, run in runs.items() if run is not None and run.run == name]


def _read_record(path: str) -> Run | None:
    """Return the run of a record, or None if the file cannot be read or parsed."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_run(json.load(file))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def parse_run(record: Mapping[str, Any]) -> Run:
    """Return the run of a record as JSON has it. Raises TypeError or KeyError where a field is missing."""
    values = {"resources": (), **record, "hosts": tuple(record["hosts"]), "program": tuple(record["program"])}
    return Run(**{name: values[name] for name in Run._fields})


def describe_run(plan: Plan) -> dict[str, Any]:
    """Return the record of a run that this process is about to start."""
    return {
        "run": plan.run_id, "run_dir": plan.run_dir.path, "hosts": list(plan.placement.hosts.names),
        "ranks": plan.placement.topology.size, "pid": os.getpid(), "host": os.uname().nodename,
        "process_start": born(os.getpid()), "started": time.time(), "program": list(plan.printed_program),
        "resources": [*_resources(plan.placement)],
    }  # fmt: skip


def _resources(placement: Placement) -> Iterator[ResourcesRecord]:
    """Yield the CPUs and GPUs of the ranks; no CPUs if ranks are not bound to their own cores."""
    for indexes, machine, bindings in placement.groups():
        bound = machine.measured and all(len(binding.cores) <= binding.threads for binding in bindings)
        cpus = {pu.os_index for binding in bindings for core in binding.cores for pu in core.pus if bound}
        gpus = {binding.gpu.pci_address for binding in bindings if binding.gpu and binding.gpu.pci_address}
        yield {
            "hosts": [placement.hosts.names[index] for index in indexes],
            "cpus": render_ranges(cpus),
            "gpus": sorted(gpus),
        }


def find_in_use(folder: str, hosts: Iterable[str]) -> dict[str, frozenset[int | str]]:
    """Return the CPUs and GPUs in use on each host by other runs that were started on this machine."""
    in_use: dict[str, frozenset[int | str]] = {}
    for run in read_runs(folder):
        for used in run.resources if run.alive() and run.pid != os.getpid() else ():
            parts = frozenset[int | str]((*parse_ranges(used["cpus"]), *used["gpus"]))
            for host in used["hosts"]:
                name = "" if is_local(host) else host
                in_use[name] = in_use.get(name, frozenset()) | parts
    return {host: in_use.get("" if is_local(host) else host, frozenset()) for host in hosts}


@contextmanager
def lock_registry(folder: str) -> Iterator[None]:
    """Keep other launches of this user from choosing cores at the same time; give up the lock after 2 s of waiting."""
    file: int | None = None
    for place in (folder, elsewhere(folder)):
        with suppress(OSError):
            make_folder(place)
            file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            break
    if file is None:
        yield
        return
    try:
        for _ in range(LOCK_TRIES):
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(LOCK_SECONDS)
        yield
    finally:
        os.close(file)


def born(pid: int) -> str | None:
    """Return the boot and the time of a process's start, which tell it from a later one with the same number.

    None: there is no such process, or it is a zombie.
    """
    stat = read_stat(pid)
    if stat is None or stat.state == "Z":
        return None
    try:
        with open(BOOT_ID, encoding="ascii") as boot:
            return f"{boot.read().strip()} {stat.start_ticks}"
    except OSError:
        return None


def write_record(plan: Plan, folder: str) -> None:
    """Record in a state folder that this process is about to start a run."""
    text = json.dumps(describe_run(plan))
    write_state(f"{folder}/active", lambda place: write_private(f"{place}/{plan.run_id}", [text, "\n"]))


def forget_run(folder: str, run_id: str) -> None:
    """Remove the record of a run that has ended."""
    for place in state_folders(folder):
        with suppress(OSError):
            os.unlink(f"{place}/active/{run_id}")
