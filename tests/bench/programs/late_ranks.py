"""A rank of tests.bench.late: times algorithms in turn, while a host is late.

    late_ranks.py FOLDER PLAN

PLAN is JSON: {"rounds": N, "budget": SECONDS, "in_a_row": 0, "pause": 0, "mib": MIB, "late": HOST,
"delays": {NAME: SECONDS, ...}}; tests.bench.late describes the names.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.bootstrap import start_learner
from ddlrun.ddl.selection.late_host_monitor import INTERVAL
from ddlrun.ddl.transports.tcp.world import tcp_world
from tests.bench.baselines import WORLD, Algorithm, Array, DdlGroup, Ours
from tests.bench.programs.allreduce_ranks import Observer, compare

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.transports.communicators import Communicator


class WithLateHost(Ours):
    """The allreduce of ddlrun over a communicator, on ranks of which those of one host begin late."""

    def __init__(self, comm: "Communicator | Intracomm", name: str, plan: dict[str, Any]) -> None:
        kind = name.partition("-tcp")[0]
        self._learner = start_learner("-mode p", comm, "explore=1", dict(os.environ))
        schedules = self._learner.reducer.schedules
        host = self._learner.grid.host_index_of(WORLD.rank) // self._learner.host.local_size
        self._delay = plan["delays"][name] if host == plan["late"] else 0.0
        if kind in ("last", "early"):
            schedules.set_late_host(plan["late"])
        self._before = INTERVAL if kind == "found" else 1

    def prepare(self, count: int, repeat: int) -> None:
        for _ in range(self._before):
            super().prepare(count, repeat)

    def run(self, x: Array) -> Array:
        time.sleep(self._delay)
        return super().run(x)


class GroupWithLateHost(DdlGroup):
    """The allreduce of PyTorch's backend ddl, in a group of its own; the same ranks begin late."""

    def __init__(self, name: str, plan: dict[str, Any]) -> None:
        kind = name.partition("-torch")[0]
        super().__init__(one_host=False)
        hosts = WORLD.allgather(os.uname().nodename)
        is_late = list(dict.fromkeys(hosts)).index(hosts[WORLD.rank]) == plan["late"]
        self._delay = plan["delays"][name] if is_late else 0.0
        if kind in ("last", "early"):
            self._group._collectives.group.schedules.set_late_host(plan["late"])  # type: ignore[attr-defined]  # noqa: SLF001
        self._before = INTERVAL if kind == "found" else 1

    def prepare(self, count: int, repeat: int) -> None:  # noqa: ARG002 - of Algorithm
        for _ in range(self._before):
            self.run(np.zeros(count, np.float32))

    def run(self, x: Array) -> Array:
        time.sleep(self._delay)
        return super().run(x)


def make(name: str, plan: dict[str, Any]) -> Algorithm:
    if name.endswith("-torch"):
        return GroupWithLateHost(name, plan)
    return WithLateHost(tcp_world(os.environ) if name.endswith("-tcp") else WORLD, name, plan)


def main() -> None:
    folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    observer = Observer(folder)
    runs = {name: make(name, plan) for name in plan["delays"]}
    observer.send({"results": compare(runs, plan["mib"], plan, observer)})
    sys.stdout.flush()


if __name__ == "__main__":
    main()
