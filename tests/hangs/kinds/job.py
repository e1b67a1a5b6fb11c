"""A job of the table of hangs, as one of its ranks sees it."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAST_STEP = "ready"
# MPI polls while it waits: a rank that hangs leaves the CPUs to others.
POLITE = 10


@dataclass(frozen=True)
class Job:
    """What the seed of a run has chosen, and the rank."""

    rank: int
    ranks: int
    victim: int
    """The rank at fault."""
    steps: int
    """The number of steps before the hang."""
    size: int
    """The number of elements of a message."""
    folder: Path
    barrier: Callable[[], object]
    """The barrier of the library that connects the ranks."""
    describe: Callable[[], dict[str, Any]]
    """What other tools need."""

    @property
    def is_victim(self) -> bool:
        """Whether this rank is at fault."""
        return self.rank == self.victim

    def begin(self) -> None:
        """Run the steps before the hang, print each, and write what other tools need."""
        for step in range(self.steps):
            self.barrier()
            print("step", step, flush=True)
        new = self.folder / f"new{self.rank}"
        new.write_text(json.dumps({"pid": os.getpid(), **self.describe()}))
        self.barrier()
        os.nice(POLITE)
        print(LAST_STEP, flush=True)
        new.rename(self.folder / f"{LAST_STEP}.{self.rank}")
