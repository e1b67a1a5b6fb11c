"""The kinds of hangs, which are functions of kinds/, and the runs of each, of which a seed chooses the parameters."""

import ast
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("kinds")
SEEDS, FEW = 3, 5
SIZES = (8, 1000, 50_000)
# Others of these end with an error by themselves.
DDL_COLLECTIVES = ("other_operation", "on_condition", "other_objects", "other_exchange", "file_on_one")
DDL_GROUPS = ("other_members", "swapped", "swapped_in_one_line", "half_left_out", "nested", "slow_member")
DDL_P2P = (
    "not_sent",
    "other_tag",
    "wrong_peer",
    "ring_of_receives",
    "pipeline_order",
    "one_microbatch_more",
    "from_any",
)
PROCESS_ONLY = ("mpi", "gloo", "mpi")


class Family(NamedTuple):
    """Kinds of a module of kinds/."""

    module: str
    text: str
    backends: tuple[str, ...] = ("gloo",)
    """The backend of each seed, in turn."""
    ranks: tuple[int, ...] = (3, 4, 3)
    """The number of ranks of each seed, in turn."""
    only: tuple[str, ...] = ()
    """The kinds; empty: all of the module."""
    seeds: int = SEEDS


FAMILIES = {
    "collectives": Family("collectives", "collectives of all ranks"),
    "groups": Family(
        "groups", "groups of some ranks", ranks=(4, 3, 4), only=("not_created", *DDL_GROUPS[1:], "wrong_group")
    ),
    "mesh": Family("mesh", "groups of a 2x2x2 mesh", ranks=(8,), seeds=1),
    "p2p": Family("p2p", "sends and receives"),
    "parallel": Family("parallel", "DDP, FSDP2, ZeRO, checkpoints, stores"),
    "ddl": Family("collectives", 'backend "ddl"', ("ddl",), only=DDL_COLLECTIVES),
    "ddl-groups": Family("groups", 'groups of backend "ddl"', ("ddl",), (4, 3, 4), DDL_GROUPS),
    "ddl-p2p": Family("p2p", 'sends and receives of backend "ddl"', ("ddl",), only=DDL_P2P),
    "mpi": Family("mpi", "MPI", ("mpi",)),
    "jax": Family("jax_processes", "JAX", ("jax",), (3, 2, 3)),
    "horovod": Family("horovod_ranks", "Horovod", ("horovod",)),
    "loaders": Family("loaders", "data loaders", PROCESS_ONLY, (3, 2, 4)),
    "locks": Family("locks", "locks, queues and threads", PROCESS_ONLY, (3, 2, 4)),
    "files": Family("files", "files, sockets and programs", PROCESS_ONLY, (3, 2, 4)),
    "python": Family("python", "asyncio, signals, imports, native code", PROCESS_ONLY, (3, 2, 4)),
}
# Jobs of healthy.py: rank 0 is busy with something, and steps of random length.
HEALTHY = (
    *"""
    compiler compile_workers slow_checkpoint synchronous_checkpoint evaluation download pool thread loader database
    gzip_pipe copy slow_pipe autotune big_sort lock_file checksum python_loop upload child_evaluation archive
    """.split(),
    *map(str, range(20)),
)
HALVES = ("half_left_out", "nested", "wrong_group", "slow_member", "wrong_peer", "sub_communicator")
# Kind -> the ranks of which one is at fault, where not any can be.
VICTIMS: dict[str, Callable[[int], range]] = {
    "in_rank_0": lambda _: range(1),
    "nested": lambda _: range(2),
    "pipeline_order": lambda ranks: range(1, ranks - 1),
    "one_microbatch_more": lambda ranks: range(1, ranks),
    "microbatch_more": lambda ranks: range(4, ranks),
}
# Kinds in which all ranks are alike.
ALL_ALIKE = ("ring_of_receives", "ring_of_sends")
# Modules and kinds in which what ranks do does not show which side of a send or receive is at fault.
TIES = {
    "p2p": ("not_received", "not_sent", "other_tag", "from_any", "one_microbatch_more"),
    "mpi": ("not_sent",),
    "mesh": ("not_received", "not_sent", "microbatch_more"),
}


class Run(NamedTuple):
    """A job that hangs."""

    family: str
    kind: str
    seed: int
    backend: str
    ranks: int
    victim: int
    steps: int
    size: int

    @property
    def name(self) -> str:
        """The name of its line in the results."""
        return f"{self.family}.{self.kind}.{self.seed}"

    @property
    def module(self) -> str:
        """The module of its function."""
        return FAMILIES[self.family].module

    @property
    def guilty(self) -> frozenset[int]:
        """The ranks at fault."""
        return frozenset(range(self.ranks) if self.kind in ALL_ALIKE else (self.victim,))

    @property
    def may_be_nobody(self) -> bool:
        """Whether it is right to name nobody."""
        return self.kind in ALL_ALIKE or self.kind in TIES.get(self.module, ())

    @property
    def places(self) -> list[str]:
        """The lines at which ranks at fault are, and those of the other side of a tie."""
        return [f"{self.module}.py:{line}" for line in list_functions(self.module)[self.kind].lines]


class Function(NamedTuple):
    """A kind of hang in its module."""

    text: str
    lines: tuple[int, ...]
    """Those that the comment `guilty` marks, also in functions and classes that it uses."""


@cache
def list_functions(module: str) -> dict[str, Function]:
    """Return the kinds of a module by name."""
    source = (FOLDER / f"{module}.py").read_text()
    marked = [number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# guilty")]
    parts = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {
        name: Function(
            ast.get_docstring(node) or "",
            tuple(
                line for part in _used(name, parts) for line in marked if part.lineno <= line <= (part.end_lineno or 0)
            ),
        )
        for name, node in parts.items()
        if isinstance(node, ast.FunctionDef) and not name.startswith("_")
    }


def _used(name: str, parts: dict[str, ast.FunctionDef | ast.ClassDef]) -> list[ast.FunctionDef | ast.ClassDef]:
    """Return a function, and the functions and classes that it uses."""
    found = [name]
    for used in found:
        names = [node.id for node in ast.walk(parts[used]) if isinstance(node, ast.Name)]
        found.extend(other for other in dict.fromkeys(names) if other in parts and other not in found)
    return [parts[used] for used in found]


def list_runs() -> Iterator[Run]:
    """Yield all runs: those of some kinds of each family first, so that a part of the runs has something of each."""
    for first in (True, False):
        for name, family in FAMILIES.items():
            kinds = list(family.only or list_functions(family.module))
            few = FEW if family.seeds > 1 else len(kinds)
            for kind in kinds[:few] if first else kinds[few:]:
                for seed in range(family.seeds):
                    yield _choose(name, kind, seed)


def _choose(name: str, kind: str, seed: int) -> Run:
    family = FAMILIES[name]
    choice = random.Random(f"{name}.{kind}.{seed}")  # noqa: S311 - the same each time
    ranks = 4 if kind in HALVES and family.module != "mesh" else family.ranks[seed % len(family.ranks)]
    victims = VICTIMS.get(kind, range)(ranks)
    backend = family.backends[seed % len(family.backends)]
    return Run(name, kind, seed, backend, ranks, choice.choice(victims), choice.randint(1, 4), choice.choice(SIZES))
