"""The complete, frozen description of a launch, the names of a run's files, and how a run ended."""

import os
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from ddlrun.environment import REDACTED, redacted
from ddlrun.machine import Machine
from ddlrun.mpirun import Mpirun, Transport
from ddlrun.placement import Placement

# What mpirun starts for each rank.
START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank", "start.py")


class RunDir(NamedTuple):
    """The files of one run."""

    path: str

    @property
    def rankfile(self) -> str:
        """Where every rank goes, as mpirun reads it."""
        return f"{self.path}/rankfile"

    @property
    def hostfile(self) -> str:
        """The hosts with their slots, as mpirun reads it."""
        return f"{self.path}/hostfile"

    @property
    def plan(self) -> str:
        """The Plan as JSON."""
        return f"{self.path}/plan.json"

    @property
    def command(self) -> str:
        """The command, to be read or pasted."""
        return f"{self.path}/command"

    @property
    def environment(self) -> str:
        """The names of the variables that the ranks get, one a line; no values."""
        return f"{self.path}/environment"

    @property
    def stdout(self) -> str:
        """What the ranks wrote to standard output."""
        return f"{self.path}/stdout.log"

    @property
    def stderr(self) -> str:
        """What the ranks and mpirun wrote to standard error."""
        return f"{self.path}/stderr.log"

    @property
    def mpirun_log(self) -> str:
        """What mpirun itself wrote."""
        return f"{self.path}/mpirun.log"

    @property
    def report(self) -> str:
        """Why the run failed, as it was shown."""
        return f"{self.path}/report.txt"

    @property
    def check(self) -> str:
        """What the check of the hosts before the start found, as JSON; not there where none was made."""
        return f"{self.path}/check.json"

    @property
    def page(self) -> str:
        """The run as an HTML page, once `ddlrun report` has written it."""
        return f"{self.path}/report.html"

    @property
    def binding(self) -> str:
        """What each rank was really bound to, as JSON."""
        return f"{self.path}/binding.json"

    @property
    def ddl(self) -> str:
        """What ddlrun.ddl found out about iterations and learners, a JSON object a line; rank 0 writes it."""
        return f"{self.path}/ddl.jsonl"

    @property
    def outcome(self) -> str:
        """The Outcome as JSON."""
        return f"{self.path}/outcome.json"


def pack_word(word: str) -> str:
    """Return a word as mpirun may have it: a lone colon would part two programs (see rank/start.py)."""
    return f":{word}" if word and not word.strip(":") else word


class Plan(NamedTuple):
    """All that a launch needs; nothing is looked up again."""

    placement: Placement
    reason: str
    order_reason: str
    mpirun: Mpirun
    transport: Transport
    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    removed: tuple[str, ...]
    exports: tuple[str, ...]
    run_dir: RunDir
    notes: tuple[str, ...]
    rankfile: str | None = None
    """The text of the user's own rank file."""
    run_id: str = ""
    """What every process of the run carries in its environment."""
    network: str = "left to MPI"
    """What the hosts talk over, and why."""
    warnings: tuple[str, ...] = ()
    """Those of the notes that everybody is told."""
    ports: range = range(0)
    """Those on which ranks may meet."""
    launcher: str = "ssh"
    """What starts mpirun's daemons, and why."""

    @property
    def program(self) -> tuple[str, ...]:
        """The user's own program and its arguments."""
        words = self.argv[self.argv.index(START) + 1 :]
        return tuple(word[1:] if word and not word.strip(":") else word for word in words)

    def as_dict(self) -> dict[str, object]:
        """Return what JSON can carry; secrets are left out."""
        return {
            **placement_dict(self.placement),
            "reasons": {
                "topology": self.reason,
                "rank_order": self.order_reason,
                "transport": self.transport.reason,
                "network": self.network,
                "launcher": self.launcher,
            },
            "notes": list(self.notes),
            "mpirun": {"path": self.mpirun.path, "version": self.mpirun.version, "reason": self.mpirun.reason},
            "command": list(self.argv),
            "variables": redacted(dict(self.variables)),
            "removed": list(self.removed),
            "exported": list(self.exports),
            "run_dir": self.run_dir.path,
            "run_id": self.run_id,
        }


def shown_command(plan: Plan) -> str:
    """Return the command as a shell would take it, with the variables that ddlrun sets but those that are secret."""
    shown = redacted(dict(plan.variables))
    variables = [f"{name}={value}" for name, value in shown.items() if value != REDACTED]
    removed = [word for name in plan.removed for word in ("-u", name)]
    secret = ", ".join(name for name, value in shown.items() if value == REDACTED)
    return shlex.join(["env", *removed, *variables, *plan.argv]) + (f"  # set {secret} yourself" if secret else "")


class RankEnd(NamedTuple):
    """How one rank's program ended: its exit code (128 + the signal, if one did it), after so many seconds."""

    rank: int
    host: str
    local_rank: int
    exit_code: int
    signal: int | None
    seconds: float
    max_rss_kib: int
    ordered: bool
    """It had been told to end."""
    why: str
    """What is known of the reason, beyond the code."""
    tail: str
    """The last of what it wrote to standard error; empty for exit code 0."""


class Outcome(NamedTuple):
    """How a run ended: ddlrun's exit code, the signal that ended it if any, how long it took, and why if known."""

    exit_code: int
    signal: int | None
    seconds: float
    reason: str | None = None
    root: RankEnd | None = None
    """The rank that failed first and made the others end."""
    ends: tuple[RankEnd, ...] = ()
    lost: tuple[str, ...] = ()
    """Ranks whose end nobody saw."""
    mpirun_said: str = ""
    until_end: float = 0.0
    """Seconds until the job began to end."""
    wanted: bool = False
    """Somebody, or a time limit, ended it."""
    dead: tuple[str, ...] = ()
    """Hosts that went away, by the names that the job has for them."""

    def as_dict(self) -> dict[str, object]:
        """Return what JSON can carry."""
        return {
            **self._asdict(),
            "root": self.root._asdict() if self.root else None,
            "ends": [end._asdict() for end in self.ends],
        }


def placement_dict(placement: Placement) -> dict[str, object]:
    """Return a placement as JSON can carry it."""
    names = placement.hosts.names
    return {
        "topology": str(placement.topology),
        "rank_order": placement.order.value,
        "hosts": [{"name": host.name, "slots": host.slots, "rack": host.rack} for host in placement.hosts],
        "hosts_source": placement.hosts.source,
        "machines": [
            {"hosts": [names[index] for index in indexes], **machine_dict(machine)}
            for indexes, machine, _ in placement.groups()
        ],
        "ranks": list(_rank_dicts(placement)),
    }


def machine_dict(machine: Machine) -> dict[str, object]:
    """Return a machine as JSON can carry it."""
    return {
        "summary": str(machine),
        "source": machine.source,
        "measured": machine.measured,
        "memory_gib": machine.memory,
        "numa_nodes": list(machine.numa_nodes),
        "notes": list(machine.notes),
        "packages": [
            [
                {
                    "core": core.logical_index,
                    "numa_node": core.numa_node,
                    "pus": [pu.os_index for pu in core.pus],
                    "usable": core.usable,
                }
                for core in package
            ]
            for package in machine.packages
        ],
        "gpus": [gpu._asdict() for gpu in machine.gpus],
        "nics": None if machine.nics is None else [nic._asdict() for nic in machine.nics],
    }


def _rank_dicts(placement: Placement) -> Iterator[dict[str, object]]:
    for placed in placement.by_host():
        seat = placed.seat
        yield {
            "rank": placed.rank,
            "host": placed.host.name,
            "local_rank": seat.local_rank,
            "coords": list(placed.coords),
            "packages": sorted({core.package for core in seat.cores}),
            "cores": [core.logical_index for core in seat.cores],
            "gpu": seat.gpu.number if seat.gpu else None,
            "gpu_address": seat.gpu.pci_address if seat.gpu else None,
            "nics": list(seat.nics),
            "threads": seat.threads,
        }
