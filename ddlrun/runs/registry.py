"""Records of running jobs in the user's state folder: written by launch, read by ps, kill and clean."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ddlrun.plan import Plan
from ddlrun.rank.process_stat import read_stat
from ddlrun.runs.store import state_folder, write_private

BOOT_ID = "/proc/sys/kernel/random/boot_id"


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

    def alive(self) -> bool | None:
        """Return True if its ddlrun still runs, None if that was started on another host."""
        if self.host != os.uname().nodename:
            return None
        return born(self.pid) == self.process_start


def read_runs(folder: str) -> list[Run]:
    """Return the runs recorded in a state folder."""
    runs = []
    active = f"{folder}/active"
    for name in sorted(os.listdir(active)) if os.path.isdir(active) else ():
        run = _read_record(f"{active}/{name}")
        if run is not None and run.run == name:
            runs.append(run)
    return runs


def _read_record(path: str) -> Run | None:
    """Return the run of a record, or None if the file cannot be read or parsed."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_run(json.load(file))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def parse_run(record: Mapping[str, Any]) -> Run:
    """Return the run of a record as JSON has it. Raises TypeError or KeyError where a field is missing."""
    fields = {name: record[name] for name in Run._fields}
    return Run(**{**fields, "hosts": tuple(record["hosts"]), "program": tuple(record["program"])})


def describe_run(plan: Plan) -> dict[str, Any]:
    """Return the record of a run that this process is about to start."""
    return {
        "run": plan.run_id, "run_dir": plan.run_dir.path, "hosts": list(plan.placement.hosts.names),
        "ranks": plan.placement.topology.size, "pid": os.getpid(), "host": os.uname().nodename,
        "process_start": born(os.getpid()), "started": time.time(), "program": list(plan.printed_program),
    }  # fmt: skip


def remove_record(folder: str, run: Run) -> None:
    """Remove the record of a run that has ended."""
    with suppress(OSError):
        os.unlink(f"{folder}/active/{run.run}")


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


@contextmanager
def record_run(plan: Plan, environ: Mapping[str, str]) -> Iterator[None]:
    """Keep a record of the run for `ddlrun ps` while it lasts."""
    folder = f"{state_folder(environ)}/active"
    path = f"{folder}/{plan.run_id}"
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_private(path, [json.dumps(describe_run(plan)), "\n"])
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
