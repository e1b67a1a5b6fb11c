"""Notes of the runs that go on, in the user's state folder: written by launch, read by ps, kill and clean."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ddlrun.plan import Plan
from ddlrun.runs.store import state_folder, write_private


class Run(NamedTuple):
    """What ddlrun notes of a run while it lasts; `host` and `pid` are ddlrun's own."""

    run: str
    run_dir: str
    hosts: tuple[str, ...]
    ranks: int
    pid: int
    host: str
    born: str
    started: float
    program: tuple[str, ...]

    def alive(self) -> bool | None:
        """Tell whether its ddlrun runs; None: it is, or was, on another host."""
        if self.host != os.uname().nodename:
            return None
        return born(self.pid) == self.born


def known_runs(folder: str) -> list[Run]:
    """Return the runs that are noted in a state folder."""
    found = []
    active = f"{folder}/active"
    for name in sorted(os.listdir(active)) if os.path.isdir(active) else ():
        try:
            with open(f"{active}/{name}", encoding="utf-8") as file:
                note = json.load(file)
            run = Run(**{**note, "hosts": tuple(note["hosts"]), "program": tuple(note["program"])})
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if run.run == name:
            found.append(run)
    return found


def forget(folder: str, run: Run) -> None:
    """Remove the note of a run that is over."""
    with suppress(OSError):
        os.unlink(f"{folder}/active/{run.run}")


def born(pid: int) -> str | None:
    """Return what tells a process from a later one of the same number: the boot, and when it was started in it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file, open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            fields = file.read().rpartition(b")")[2].decode().split()
            return None if fields[0] == "Z" else f"{boot.read().strip()} {fields[19]}"
    except OSError:
        return None


@contextmanager
def noted(plan: Plan, environ: Mapping[str, str]) -> Iterator[None]:
    """While the run lasts, keep a note of it where `ddlrun ps` looks."""
    folder = f"{state_folder(environ)}/active"
    path = f"{folder}/{plan.run_id}"
    note = {
        "run": plan.run_id, "run_dir": plan.run_dir.path, "hosts": list(plan.placement.hosts.names),
        "ranks": plan.placement.topology.size, "pid": os.getpid(), "host": os.uname().nodename,
        "born": born(os.getpid()), "started": time.time(), "program": list(plan.program),
    }  # fmt: skip
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_private(path, [json.dumps(note), "\n"])
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
