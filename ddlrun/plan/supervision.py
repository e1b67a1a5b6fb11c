"""How a running job is watched: its limits, its signals, and what people see of it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ddlrun.hosts import fold
from ddlrun.machine.cpus import cpu_list

LOOPBACK = ("127.0.0.1",)


class OutputStyle(NamedTuple):
    """How output is shown."""

    tag: bool | None = None
    """None: with more than one rank."""
    timestamp: bool = False
    ranks: frozenset[int] | None = None
    """The ranks that the console shows; None: all."""
    folder: str | None = None
    """Where each rank's output goes to files of its own."""


class SupervisionOptions(NamedTuple):
    """How a job is watched; times are in seconds, 0: never."""

    ranks: int
    grace: float = 10.0
    heartbeat: float = 30.0
    timeout: float = 0.0
    start: float = 0.0
    """So long no rank may start while some are missing."""
    host_of: Callable[[int], str] = str
    """Where a rank is to run."""
    stall: float = 0.0
    forward: tuple[int, ...] = ()
    """Signals that are passed on to every rank's program."""
    style: OutputStyle = OutputStyle()
    addresses: tuple[str, ...] = LOOPBACK
    """This host's addresses that the ranks' hosts reach."""
    status_line: bool = False
    colour: bool = False

    def named(self, ranks: Iterable[int]) -> str:
        """Say which ranks, and on which hosts.

        >>> SupervisionOptions(4, host_of=lambda rank: f"n{rank // 2}").named([2, 1, 0])
        'ranks 0-2 on n[0-1]'
        """
        numbers = sorted(ranks)
        hosts = dict.fromkeys(self.host_of(rank) for rank in numbers)
        return f"rank{'s' * (len(numbers) > 1)} {cpu_list(numbers)} on {fold(hosts)}"
