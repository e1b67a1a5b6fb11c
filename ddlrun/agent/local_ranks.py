"""The ranks of an agent's own host: their keepers, which are forks of the agent."""

from __future__ import annotations

import gc
import os
import time

from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import close_files
from ddlrun.keeper.protocol import ADDRESSES
from ddlrun.keeper.signals import HANDLED, restore_defaults

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlrun.agent.job import AgentJob
    from ddlrun.agent.pmi import Abort
    from ddlrun.agent.pmi_service import PmiService

# The variables in which each rank finds its number, its local rank and the number of ranks.
RANK, LOCAL_RANK, SIZE = "DDLRUN_RANK", "DDLRUN_LOCAL_RANK", "DDLRUN_SIZE"
# The time beyond the grace after which keepers that are left are killed.
SLACK_SECONDS = 3.0


class LocalRanks:
    """The keepers of the ranks of this host."""

    def __init__(self) -> None:
        self._keepers: dict[int, int] = {}
        """Process id -> rank."""
        self._kill_at = float("inf")
        self._orders: dict[int, int] = {}
        """Rank -> the write end of the pipe for the order to end as MPI_Abort asks."""

    @property
    def running(self) -> bool:
        """Whether a keeper is left."""
        return bool(self._keepers)

    @property
    def deadline(self) -> float:
        """The time at which `kill_due` has something to do."""
        return self._kill_at if self._keepers else float("inf")

    def start(self, job: AgentJob, ranks: Sequence[int], pmi: PmiService, needed: Sequence[int]) -> None:
        """Fork the keepers.

        Args:
            job: The job.
            ranks: The ranks in the order of their local ranks.
            pmi: The PMI service of this host.
            needed: Descriptors that keepers leave open.
        """
        _load_keeper()
        for local_rank, rank in enumerate(ranks):
            variables = {RANK: str(rank), LOCAL_RANK: str(local_rank), SIZE: str(job.size)}
            link, other_end, pmi_variables = pmi.connect(rank)
            orders = os.pipe()
            variables.update(pmi_variables)
            # MPICH ends with SIGSEGV, which would look like the cause, if its connection ended with the agent.
            files = KeeperFiles(link, orders[0], (*needed, other_end))
            self._keepers[_fork_keeper(job.program, variables, files)] = rank
            self._orders[rank] = orders[1]
            os.close(link)
            os.close(orders[0])

    def reap(self, pid: int, status: int) -> tuple[int, int] | None:
        """Return the rank of a keeper that has ended, and its exit code or minus the signal; None: another process."""
        rank = self._keepers.pop(pid, None)
        if rank is None:
            return None
        self.close_orders(rank)
        return rank, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def abort(self, abort: Abort) -> None:
        """Order the keeper of a rank that has called MPI_Abort to end the program with the exit code."""
        if abort.rank in self._orders:
            try:
                os.write(self._orders[abort.rank], b"%d\n" % abort.code)
            except OSError:  # the program ends already
                return

    def close_orders(self, rank: int) -> None:
        """Let the keeper of a rank know that no order follows: the program has closed its PMI connection."""
        if rank in self._orders:
            os.close(self._orders.pop(rank))

    def terminate(self, grace: float) -> None:
        """Send SIGTERM to the keepers, which end their programs within the grace; a second order changes nothing."""
        if self._kill_at == float("inf"):
            self._kill_at = time.monotonic() + grace + SLACK_SECONDS
            self._signal(signal.SIGTERM)

    def kill_due(self, now: float) -> None:
        """Kill the keepers if their time is over."""
        if now > self._kill_at:
            self._kill_at = now + SLACK_SECONDS
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in self._keepers:  # children that are not reaped: the numbers are theirs
            os.kill(pid, number)


class KeeperFiles:
    """The descriptors that a keeper inherits: that of its program, that of orders, and those of others to be kept."""

    def __init__(self, link: int, orders: int, needed: Sequence[int]) -> None:
        self.link, self.orders, self.needed = link, orders, needed


def _load_keeper() -> None:
    """Load the modules of keepers once for all of them."""
    import ddlrun.keeper.entry  # noqa: PLC0415 - agents have done so while the job was on its way

    if os.environ.get(ADDRESSES):
        import ddlrun.keeper.kept_rank  # noqa: F401, PLC0415 - not for ranks by hand
    gc.freeze()  # see main.py


def _fork_keeper(program: list[str], variables: dict[str, str], files: KeeperFiles) -> int:
    """Fork the keeper of a rank; return its process id."""
    agent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    pid = os.fork()
    if pid == 0:
        try:
            close_files(0, 1, 2, files.link, files.orders, *files.needed)
            restore_defaults()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if os.getppid() == agent:
                _become_keeper(program, variables, files)
        finally:
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _become_keeper(program: list[str], variables: dict[str, str], files: KeeperFiles) -> None:
    """Go on as the keeper of a rank, in a new child of the agent."""
    from ddlrun.keeper.entry import main  # noqa: PLC0415 - see _load_keeper

    os.environ.update(variables)
    main(program, files.link, "ddlrun's agent on that host", files.orders)
