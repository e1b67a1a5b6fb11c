"""The Plan: the complete, frozen description of a launch."""

import os
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ddlrun import __version__
from ddlrun.environment.secrets import REDACTED, redact, redact_words
from ddlrun.keeper.command_line import pack_arguments
from ddlrun.machine import Core, Machine
from ddlrun.managers import ProcessManager, TransportChoice
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.topology_request import TopologyReason
from ddlrun.plan.run_dir import RunDir

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.plan.records import (
        CoreRecord,
        MachineGroupRecord,
        MachineRecord,
        PlacementRecord,
        PlannedRankRecord,
        PlanRecord,
    )

# The program that the process manager starts for each rank.
START = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "keeper", "start.py")
# The variable with the path that rank 0's keeper opens as standard input.
STDIN = "DDLRUN_STDIN"


def pack_word(word: str) -> str:
    """Return a word of the program's as the process manager can take it: a lone colon would separate two programs."""
    return f":{word}" if word and not word.strip(":") else word


class Plan(NamedTuple):
    """Everything that a launch needs; nothing is looked up later."""

    placement: Placement
    reason: TopologyReason
    """Why this topology."""
    order_reason: str
    manager: ProcessManager
    transport: TransportChoice
    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]
    """Variables that ddlrun sets for the ranks."""
    unsupervised: tuple[tuple[str, str], ...]
    """Variables that are ddlrun's to set while it supervises the job, with their values when it does not."""
    removed: tuple[str, ...]
    """Variables that are taken out of the process manager's environment."""
    exports: tuple[str, ...]
    """Names of the variables that ranks get."""
    run_dir: RunDir
    run_id: str
    """The run's name, which every process of the run has in its environment."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    """Notes that are shown even without --verbose."""
    rankfile: str | None
    """The text of the user's own rank file."""
    network: str
    """The network that the hosts use, and why."""
    launcher: str
    """What starts the process manager's daemons, and why."""
    local_hosts: frozenset[str]
    """Names of hosts that mean this machine."""
    own_address: str | None
    """This machine's address on the network of the hosts."""
    spawn_slots: int
    """Processes per host that the job may start with MPI_Comm_spawn."""

    @property
    def program(self) -> tuple[str, ...]:
        """The user's own program and its arguments."""
        words = self.argv[self._start + 1 :]
        return tuple(word[1:] if word and not word.strip(":") else word for word in words)

    @property
    def manager_files(self) -> int:
        """The files that the process manager opens for the ranks of this machine."""
        local = (index for index, name in enumerate(self.placement.hosts.names) if name in self.local_hosts)
        return self.manager.files_per_rank * sum(map(self.placement.topology.local_size, local))

    @property
    def _start(self) -> int:
        """The index of START in the command."""
        return next(index for index, word in enumerate(self.argv) if word.endswith(START))  # it may have travelled

    def short_command(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command as the process manager can run it, and the arguments that then travel in variables."""
        size, most = len(" ".join(self.program).encode(errors="surrogateescape")), self.manager.most_argument_bytes
        if most is None or size <= most:
            return self.argv, {}
        arguments = pack_arguments(self.program[1:])
        options = self.manager.export_options(arguments)
        keeper = self._start - 3  # Python and its options -I and -S
        return (*self.argv[:keeper], *options, *self.argv[keeper : self._start + 2]), arguments

    @property
    def printed_program(self) -> tuple[str, ...]:
        """The user's own program and its arguments without secrets."""
        return redact_words(self.program)

    @property
    def printed_argv(self) -> tuple[str, ...]:
        """The command as it is printed and stored, without secrets among the program's arguments."""
        own = len(self.argv) - len(self.program)
        return (*self.argv[:own], *redact_words(self.argv[own:]))

    @property
    def printed_variables(self) -> dict[str, str]:
        """The variables of the command as it is printed and pasted, without their secrets."""
        return redact(dict(sorted((*self.variables, *self.unsupervised))))

    def as_dict(self) -> "PlanRecord":
        """Return the plan as JSON can carry it, without secrets."""
        return {
            "schema": "urn:ddlrun:plan:1",
            "version": __version__,
            **placement_dict(self.placement),
            "reasons": {
                "topology": str(self.reason),
                "rank_order": self.order_reason,
                "transport": self.transport.reason,
                "network": self.network,
                "launcher": self.launcher,
            },
            "notes": list(self.notes),
            "mpirun": {"path": self.manager.path, "version": self.manager.version, "reason": self.manager.reason},
            "command": list(self.printed_argv),
            "variables": self.printed_variables,
            "removed": list(self.removed),
            "exported": list(self.exports),
            "run_dir": self.run_dir.path,
            "run_id": self.run_id,
        }


def shown_command(plan: Plan) -> str:
    """Return the command for a shell, with the variables that ddlrun sets except for secret ones."""
    variables = plan.printed_variables
    assignments = [f"{name}={value}" for name, value in variables.items() if value != REDACTED]
    removed = [word for name in plan.removed for word in ("-u", name)]
    secret = ", ".join(name for name, value in variables.items() if value == REDACTED)
    return shlex.join(["env", *removed, *assignments, *plan.printed_argv]) + (
        f"  # set {secret} yourself" if secret else ""
    )


def placement_dict(placement: Placement) -> "PlacementRecord":
    """Return a placement as JSON can carry it."""
    names = placement.hosts.names
    return {
        "topology": str(placement.topology),
        "rank_order": placement.order.value,
        "hosts": [{"name": host.name, "slots": host.slots, "rack": host.rack} for host in placement.hosts],
        "hosts_source": placement.hosts.source,
        "machines": [
            machine_group_dict([names[index] for index in indexes], machine)
            for indexes, machine, _ in placement.groups()
        ],
        "ranks": list(_rank_dicts(placement)),
    }


def machine_group_dict(hosts: Iterable[str], machine: Machine) -> "MachineGroupRecord":
    """Return the names and the machine of equal hosts as JSON can carry them."""
    return {"hosts": list(hosts), **machine_dict(machine)}


def machine_dict(machine: Machine) -> "MachineRecord":
    """Return a machine as JSON can carry it."""
    return {
        "summary": str(machine),
        "source": machine.source,
        "measured": machine.measured,
        "memory_gib": machine.memory,
        "numa_nodes": list(machine.numa_nodes),
        "numa_distances": [list(row) for row in machine.numa_distances],
        "notes": [str(note) for note in machine.notes],
        "packages": [[_core_dict(core) for core in package] for package in machine.packages],
        "gpus": [gpu._asdict() for gpu in machine.gpus],
        "nics": None if machine.nics is None else [nic._asdict() for nic in machine.nics],
    }


def _core_dict(core: Core) -> "CoreRecord":
    return {
        "core": core.logical_index,
        "numa_node": core.numa_node,
        "pus": [pu.os_index for pu in core.pus],
        "usable": core.usable,
        "l3": core.l3,
        "kind": core.kind,
    }


def _rank_dicts(placement: Placement) -> Iterator["PlannedRankRecord"]:
    for placed in placement.by_host():
        seat = placed.binding
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
            "threads": placement.threads_of(seat),
            "memory_nodes": list(seat.memory_nodes),
        }
