"""The ranks of a running job: their starts, bindings and ends, and what was lost of them."""

from collections.abc import Iterable
from itertools import chain

from ddlrun.keeper.daemon import SESSION_FOLDERS
from ddlrun.keeper.protocol import BOUND_WORDS, ProtocolError, RankEnd
from ddlrun.plan.supervision import SupervisedJob
from ddlrun.plan.tracebacks import ends_in_failure, find_failure, is_collateral
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.wording import printable


class Ranks:
    """The ranks of a job, as far as their keepers have reported them."""

    def __init__(self, job: SupervisedJob) -> None:
        self.job = job
        self.running: set[int] = set()
        self.ends: dict[int, RankEnd] = {}
        """Rank -> the end of its program."""
        self.lost: list[str] = []
        """Ranks whose keepers never reported an end."""
        self.bindings: dict[int, str] = {}
        """Rank -> the report of its binding: see keeper.binding.bind_rank."""
        self.lost_hosts: set[str] = set()
        """Hosts that went away."""
        self.unswept: set[str] = set()
        """Hosts on which a keeper was killed or does not run, so that processes of its rank may still run."""
        self.unwatched: set[str] = set()
        """Hosts on which the keeper that would see to the end of the daemon was killed, or does not run."""
        self.ended_while_starting = False
        """Whether the job was ended before all ranks had started."""
        self._started: set[int] = set()
        self._session_folders: dict[str, str] = {}
        """Host, as a keeper there reports it -> the session folder of the process manager's daemon."""
        self._job_names: dict[str, str] = {}
        """The name of a host as a keeper there reports it -> its name in the job, where its rank was to run."""

    @property
    def missing(self) -> list[int]:
        """The ranks that have not started."""
        return [rank for rank in range(self.job.ranks) if rank not in self._started]

    @property
    def any_started(self) -> bool:
        """Whether a rank has started."""
        return bool(self._started)

    @property
    def complete(self) -> bool:
        """Whether all ranks have started."""
        return len(self._started) == self.job.ranks

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended."""
        return len(self.ends) == self.job.ranks

    @property
    def taken_port(self) -> int | None:
        """A port of a failed rank that another process has taken."""
        return next((end.taken_port for end in self.ends.values() if end.taken_port), None)

    def start(self, rank: int, host: str) -> None:
        """Record the start of a rank. Raises ProtocolError if it has started before."""
        if rank in self._started:
            raise ProtocolError(f"rank {rank} has another keeper")
        self._started.add(rank)
        self.running.add(rank)
        self._job_names[host] = self.job.host_of(rank)

    def bind(self, rank: int, report: str) -> None:
        """Record the binding of a rank. Raises ProtocolError if it is the report of something else."""
        words = report.split("\t")
        if len(words) != BOUND_WORDS or words[0] != str(rank):
            raise ProtocolError("its report of its binding cannot be read")
        self.bindings[rank] = report

    def end(self, peer: KeeperConnection, rank: int, end: RankEnd) -> None:
        """Record the end of a rank's program, with the last lines that have its failure."""
        if ends_in_failure(end.output_tail) and find_failure(end.tail) is None:
            end = end.replace(tail=end.output_tail, wrote_to="standard output")
        self.running.discard(rank)
        self.ends[rank] = end.replace(
            rank=rank, host=peer.host, local_rank=peer.local_rank, reason=printable(end.reason), output_tail=""
        )

    def lose(self, peer: KeeperConnection) -> None:
        """Record a rank whose keeper will report nothing more."""
        self.lost.append(peer.label)
        if peer.rank is not None:
            self.running.discard(peer.rank)

    def add_session_folder(self, host: str, folder: str) -> None:
        """Record the session folder of a host's daemon. Raises ProtocolError if it is the path of something else."""
        names = folder.split("/")
        if names[0] or ".." in names or names[-1].partition(".")[0] not in SESSION_FOLDERS:
            raise ProtocolError("its session folder is invalid")
        self._session_folders[host] = folder

    def add_unwatched(self, peer: KeeperConnection) -> None:
        """Record a host whose keeper of local rank 0 left without a watcher of a daemon that still ran."""
        if peer.local_rank != 0 or peer.watching or peer.rank is None:
            return
        if peer.running or not self.ends[peer.rank].reason:
            self.unwatched.add(peer.host)

    def unswept_hosts(self) -> frozenset[str]:
        """Return the hosts on which children of programs may still run; no keeper chooses where to connect to."""
        return self._in_job(self.unswept)

    def unwatched_hosts(self) -> frozenset[str]:
        """Return the hosts on which a daemon or an agent may be left, and no keeper can end it.

        A daemon may still try to reach its process manager, and has started no keeper. Both may have been stopped.
        """
        hosts = self.job.host_names if self.ended_while_starting else ()
        without_keepers = set(hosts) - set(self._job_names.values())
        return (self._in_job(self.unwatched) | without_keepers) - self._in_job(self.lost_hosts - self.unswept)

    def daemon_folders(self) -> dict[str, str]:
        """Return the session folder of the process manager's daemon by host, as far as keepers have reported them."""
        return {self._job_names.get(host, host): folder for host, folder in self._session_folders.items()}

    def _in_job(self, hosts: Iterable[str]) -> frozenset[str]:
        """Return hosts by their names in the job."""
        return frozenset(self._job_names.get(host, host) for host in hosts)


def root_of(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Return the end that caused the others: the first failure that does not blame another rank.

    A dying process closes its sockets before its keeper notices. Another rank may fail because of that, and
    ddlrun's order reach the first one's keeper meanwhile. The cause is then the rank that was ordered to end but
    has an exit code of its own; or else one with a traceback, whose Python was still waiting for its own threads or
    processes.
    """
    listed = list(ends)
    failed = [end for end in listed if end.exit_code and not end.ordered]
    ordered = [end for end in listed if end.exit_code and end.ordered and not end.ended_by_order]
    ending = (end for end in listed if failed and end.ended_by_order and _has_own_failure(end, failed[0]))
    own = (end for end in chain(failed, ordered, ending) if not is_collateral(end))
    return next(own, next(iter(failed), None))


def _has_own_failure(end: RankEnd, other: RankEnd) -> bool:
    """Return True for a failure that the other rank did not print, too; a caught exception is printed by both."""
    failure = find_failure(end.tail)
    return failure is not None and failure.message not in other.tail
