"""The ranks of an agent's own host: their keepers, which are forks of the agent."""

from __future__ import annotations

import gc
import os
import sys
import time

from ddlrun.agent import protocol
from ddlrun.agent.error_pipe import ErrorPipe
from ddlrun.agent.pmi_service import PmiService, rank_variables
from ddlrun.errors import EXIT_PREFLIGHT
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import close_files, complain
from ddlrun.keeper.protocol import ADDRESSES, AGENT_RUN
from ddlrun.keeper.signals import HANDLED, restore_defaults
from ddlrun.wire.loop import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ddlrun.agent.protocol import AgentJob, HostRanks
    from ddlrun.wire.loop import Loop

# The variables in which each rank finds its number, its local rank and the number of ranks.
RANK, LOCAL_RANK, SIZE = "DDLRUN_RANK", "DDLRUN_LOCAL_RANK", "DDLRUN_SIZE"
# The time beyond the grace after which keepers that are left are killed.
SLACK_SECONDS = 3.0


class LocalRanks:
    """The keepers of the ranks of this host."""

    def __init__(self, loop: Loop, report: Callable[[bytes, bytes], None], needed: Sequence[int]) -> None:
        """Begin without any. `report` takes messages to the root; `needed` are descriptors that keepers leave open."""
        self._loop, self._report, self._needed = loop, report, needed
        self._keepers: dict[int, int] = {}
        """Process id -> rank."""
        self._kill_at = NEVER
        self._pmi: PmiService | None = None
        self._errors: ErrorPipe | None = None
        """What keepers print. The link would stay open if they held its files: the agent may be killed before them."""
        loop.watch_deadline(lambda: self._kill_at, self._kill)

    @property
    def running(self) -> bool:
        """Whether a keeper is left."""
        return bool(self._keepers)

    def start(self, job: AgentJob, own: HostRanks) -> None:
        """Fork the keepers, in the folder of the job. Raises OSError if there can be no process for one."""
        folder = os.open(".", os.O_PATH)
        try:
            os.chdir(job.folder)
        except OSError as error:
            complain(f"host {own.name}: working folder {job.folder}: {error.strerror}")
            self._report_end(own.ranks[0], EXIT_PREFLIGHT)
        else:
            self._fork(job, own)
        finally:
            os.fchdir(folder)
            os.close(folder)

    def _fork(self, job: AgentJob, own: HostRanks) -> None:
        self._pmi = PmiService(job, own, self._loop, self._report)
        _load_keeper()
        errors, output = os.pipe()
        self._errors = ErrorPipe(self._loop, errors)
        self._errors.pass_on(login=False)
        for local_rank, rank in enumerate(own.ranks):
            link, other_end, orders = self._pmi.connect(rank)
            variables = {RANK: str(rank), LOCAL_RANK: str(local_rank), SIZE: str(job.size)}
            variables.update(rank_variables(rank, link, own.ranks, job.size))
            keep = _keeper(job.program, variables, link, orders)
            # MPICH ends with SIGSEGV, which would look like the cause, if its connection ended with the agent.
            self._keepers[fork(keep, 0, link, orders, other_end, *self._needed, output=output)] = rank
            os.close(link)
            os.close(orders)
        os.close(output)

    def deliver(self, message: bytes) -> None:
        """Give a message of the root to this host's PMI server."""
        if self._pmi is not None:
            self._pmi.deliver(message)

    def forget(self) -> None:
        """Forget a job whose ranks have ended."""
        self._kill_at = NEVER
        if self._pmi is not None:
            self._pmi.close()
            self._pmi = None
        if self._errors is not None:
            self._errors.read()
            self._errors.close()

    def reap(self, pid: int, status: int) -> bool:
        """Report the rank of a keeper that has ended; return False for another process."""
        rank = self._keepers.pop(pid, None)
        if rank is None or self._pmi is None:
            return False
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self._pmi.on_end(rank, code)
        self._report_end(rank, code)
        return True

    def terminate(self, grace: float) -> None:
        """Send SIGTERM to the keepers, which end their programs within the grace."""
        self._kill_at = time.monotonic() + grace + SLACK_SECONDS
        self._signal(signal.SIGTERM)

    def _kill(self, now: float) -> None:
        """Kill the keepers, whose time is over."""
        self._kill_at = now + SLACK_SECONDS if self._keepers else NEVER
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in self._keepers:  # children that are not reaped: the numbers are theirs
            os.kill(pid, number)

    def _report_end(self, rank: int, code: int) -> None:
        self._report(protocol.EXITED, protocol.ExitedRank(rank=rank, code=code).pack())


def _load_keeper() -> None:
    """Load the modules of keepers once for all of them."""
    import ddlrun.keeper.entry  # noqa: PLC0415 - agents have done so while the job was on its way

    if os.environ.get(ADDRESSES):
        import ddlrun.keeper.kept_rank  # noqa: F401, PLC0415 - not for ranks by hand
    gc.freeze()  # see main.py


def _keeper(program: Sequence[str], variables: Mapping[str, str], link: int, orders: int) -> Callable[[], None]:
    """Return the work of the keeper of a rank, in a fork of this process."""
    agent = os.getpid()

    def keep() -> None:
        if os.getppid() == agent:
            from ddlrun.keeper.entry import main  # noqa: PLC0415 - see _load_keeper

            os.environ.pop(AGENT_RUN, None)  # the ranks' programs are none of agents
            os.environ.update(variables)
            main(list(program), link, "ddlrun's agent on that host", orders)

    return keep


def fork(work: Callable[[], object], *needed: int, output: int = -1) -> int:
    """Fork a process that keeps some descriptors, and has the signals of a new one; return its process id.

    `output` is the descriptor of its standard output and errors; -1: it has none but those that it keeps.
    Raises OSError at the limit of processes or open files: the child lists its descriptors.
    """
    spare = os.open("/", os.O_RDONLY)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(spare)
            close_files(*needed, output)
            for fd in (1, 2) if output >= 0 else ():
                os.dup2(output, fd)
            restore_defaults()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            work()
        except BaseException:  # noqa: BLE001 - a bug, which is shown
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    os.close(spare)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid
