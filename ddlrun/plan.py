"""The complete, frozen description of a launch, the names of a run's files, and how a run ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddlrun.environment import redacted
from ddlrun.mpirun import Mpirun, Transport
from ddlrun.placement import Placement


@dataclass(frozen=True, slots=True)
class RunDir:
    """The files of one run."""

    path: Path

    @property
    def rankfile(self) -> Path:
        """Where every rank goes, as mpirun reads it."""
        return self.path / "rankfile"

    @property
    def hostfile(self) -> Path:
        """The hosts with their slots, as mpirun reads it."""
        return self.path / "hostfile"

    @property
    def plan(self) -> Path:
        """The Plan as JSON."""
        return self.path / "plan.json"

    @property
    def command(self) -> Path:
        """The command, to be read or pasted."""
        return self.path / "command"

    @property
    def environment(self) -> Path:
        """The names of the variables that the ranks get, one a line; no values."""
        return self.path / "environment"

    @property
    def stdout(self) -> Path:
        """What the ranks wrote to standard output."""
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        """What the ranks and mpirun wrote to standard error."""
        return self.path / "stderr.log"

    @property
    def outcome(self) -> Path:
        """The Outcome as JSON."""
        return self.path / "outcome.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a launch needs; nothing is looked up again."""

    placement: Placement
    reason: str
    order_reason: str
    mpirun: Mpirun
    transport: Transport
    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    exports: tuple[str, ...]
    run_dir: RunDir
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return what JSON can carry; secrets are left out."""
        return {
            **placement_dict(self.placement),
            "reasons": {"topology": self.reason, "rank_order": self.order_reason, "transport": self.transport.reason},
            "notes": list(self.notes),
            "mpirun": {"path": self.mpirun.path, "version": self.mpirun.version, "reason": self.mpirun.reason},
            "command": list(self.argv),
            "variables": redacted(dict(self.variables)),
            "exported": list(self.exports),
            "run_dir": str(self.run_dir.path),
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: ddlrun's exit code, the signal that ended it if any, and how long it took."""

    exit_code: int
    signal: int | None
    seconds: float


def placement_dict(placement: Placement) -> dict[str, object]:
    """Return a placement as JSON can carry it."""
    names = placement.hosts.names
    return {
        "topology": str(placement.topology),
        "rank_order": placement.order.value,
        "hosts": [{"name": host.name, "slots": host.slots, "rack": host.rack} for host in placement.hosts],
        "hosts_source": placement.hosts.source,
        "machines": [
            {"hosts": [names[index] for index in indexes], "summary": str(machine), "source": machine.source}
            for indexes, machine, _ in placement.groups()
        ],
        "ranks": list(_rank_dicts(placement)),
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
            "gpu": seat.gpu.index if seat.gpu else None,
            "threads": seat.threads,
        }
