"""A rank of tests.bench.unequal: times algorithms in turn.

    unequal_ranks.py FOLDER PLAN

PLAN is JSON: {"rounds": N, "budget": SECONDS, "in_a_row": 0, "pause": 0, "mib": MIB, "links": DDLRUN_DDL_LINKS,
"names": [...]}.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlrun.ddl.bootstrap import start_learner
from ddlrun.ddl.transports.tcp.world import tcp_world
from tests.bench.baselines import WORLD, Algorithm, DdlGroup, Native, Ours
from tests.bench.programs.allreduce_ranks import Observer, compare

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ddlrun.ddl.transports.communicators import Communicator


class OnLinks(Ours):
    """The allreduce of ddlrun over a communicator: with blocks sized by the links, by measured rates, or equal ones."""

    def __init__(self, comm: "Communicator | Intracomm", kind: str, plan: dict[str, Any]) -> None:
        environ = {**os.environ, "DDLRUN_DDL_LINKS": plan["links"] if kind == "sized" else ""}
        self._before = runs_before(kind, plan)
        tuning = f"explore=1,measure={bytes_before(plan)}" if kind == "measured" else "explore=0"
        self._learner = start_learner(None, comm, tuning, environ)
        if kind == "equal":
            self._learner.reducer.schedules.set_layout(None)

    def prepare(self, count: int, repeat: int) -> None:
        super().prepare(count, repeat)
        for _ in range(self._before - 1):
            self.run(np.zeros(count, np.float32))


class GroupOnLinks(DdlGroup):
    """The allreduce of the backend "ddl": with blocks sized by the links, by measured rates, or equal ones."""

    def __init__(self, kind: str, plan: dict[str, Any]) -> None:
        os.environ["DDLRUN_DDL_LINKS"] = plan["links"] if kind == "sized" else ""
        os.environ["DDLRUN_DDL_TUNING"] = f"measure={bytes_before(plan) if kind == 'measured' else 0}"
        super().__init__(one_host=False)
        self.run(np.zeros(1, np.float32))  # which reads the variables
        for variable in ("DDLRUN_DDL_LINKS", "DDLRUN_DDL_TUNING"):
            del os.environ[variable]
        self._before = runs_before(kind, plan)

    def prepare(self, count: int, repeat: int) -> None:
        super().prepare(count, repeat)
        for _ in range(self._before):
            self.run(np.zeros(count, np.float32))


def runs_before(kind: str, plan: dict[str, Any]) -> int:
    """Return the number of reductions before the timed ones; the last of them measures the NICs, and no later one."""
    return plan["rounds"] + 2 if kind == "measured" else 1


def bytes_before(plan: dict[str, Any]) -> int:
    """Return the bytes up to the measurement of the NICs."""
    return int(runs_before("measured", plan) * plan["mib"] * 2**20)


def make(name: str, plan: dict[str, Any]) -> Algorithm:
    """Return an algorithm by its name."""
    if name == "mpi":
        return Native(WORLD)
    kind, _, transport = name.partition("-")
    if transport == "torch":
        return GroupOnLinks(kind, plan)
    return OnLinks(tcp_world(os.environ) if transport else WORLD, kind, plan)


def main() -> None:
    folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    observer = Observer(folder)
    runs: dict[str, Any] = {name: make(name, plan) for name in plan["names"]}
    observer.send({"results": compare(runs, plan["mib"], plan, observer)})
    sys.stdout.flush()


if __name__ == "__main__":
    main()
