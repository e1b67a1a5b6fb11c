"""The record of a job: its ranks' bindings and ends, and the hosts that were lost."""

from collections.abc import Iterable

from ddlrun.keeper.daemon import SESSION_FOLDERS
from ddlrun.keeper.protocol import BOUND_WORDS, ProtocolError, RankEnd
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.tracebacks import ends_in_failure, find_failure
from ddlrun.supervise.cause import EndReason, Evidence, explain
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.manager_process import ManagerProcess
from ddlrun.supervise.ranks import root_of
from ddlrun.wording import printable


class JobRecord:
    """The facts about a job that its outcome is made of."""

    def __init__(self) -> None:
        self.bindings: dict[int, str] = {}
        """Rank -> the report of its binding: see keeper.binding.bind_rank."""
        self.ends: dict[int, RankEnd] = {}
        """Rank -> the end of its program."""
        self.lost_ranks: list[str] = []
        """Ranks whose keepers never reported an end."""
        self.lost_hosts: set[str] = set()
        """Hosts that went away."""
        self.unswept: set[str] = set()
        """Hosts on which a keeper was killed or does not run, so that processes of its rank may still run."""
        self.unwatched: set[str] = set()
        """Hosts on which the keeper that would see to the end of the daemon was killed, or does not run."""
        self.session_folders: dict[str, str] = {}
        """Host, as a keeper there reports it -> the session folder of the process manager's daemon."""
        self.job_names: dict[str, str] = {}
        """The name of a host as a keeper there reports it -> its name in the job, where its rank was to run."""
        self.pause: str | None = None
        """Why ddlrun itself may have lost ranks and the process manager just now: it did not run."""
        self.ended_while_starting = False
        """Whether the job was ended before all ranks had started."""

    def unswept_hosts(self) -> frozenset[str]:
        """Return the hosts on which children of programs may still run; no keeper chooses where to connect to."""
        return frozenset(self.job_names.get(host, host) for host in self.unswept)

    def unwatched_hosts(self, hosts: Iterable[str]) -> frozenset[str]:
        """Return those of the job's hosts on which a daemon or an agent may be left, and no keeper can end it.

        A daemon may still try to reach its process manager, and has started no keeper. Both may have been stopped.
        """
        without_keepers = set(hosts) - set(self.job_names.values()) if self.ended_while_starting else set()
        unwatched = {self.job_names.get(host, host) for host in self.unwatched}
        unreachable = {self.job_names.get(host, host) for host in self.lost_hosts - self.unswept}
        return frozenset(without_keepers | unwatched) - unreachable

    def folders_of_daemons(self) -> dict[str, str]:
        """Return the session folder of the process manager's daemon by host, as far as keepers have reported them."""
        return {self.job_names.get(host, host): folder for host, folder in self.session_folders.items()}

    def add_session_folder(self, peer: KeeperConnection, folder: str) -> None:
        """Record the session folder of a host's daemon. Raises ProtocolError if it is the path of something else."""
        names = folder.split("/")
        if names[0] or ".." in names or names[-1].partition(".")[0] not in SESSION_FOLDERS:
            raise ProtocolError("its session folder cannot be one")
        self.session_folders[peer.host] = folder

    def add_unwatched(self, peer: KeeperConnection) -> None:
        """Record a host whose keeper of local rank 0 left without a watcher of a daemon that still ran."""
        if peer.local_rank != 0 or peer.watching or peer.rank is None:
            return
        if peer.running or not self.ends[peer.rank].reason:
            self.unwatched.add(peer.host)

    def add_binding(self, rank: int, report: str) -> None:
        """Record the binding of a rank. Raises ProtocolError if it is the report of something else."""
        words = report.split("\t")
        if len(words) != BOUND_WORDS or words[0] != str(rank):
            raise ProtocolError("its report of its binding cannot be read")
        self.bindings[rank] = report

    def add_end(self, peer: KeeperConnection, end: RankEnd) -> None:
        """Record the end of a rank's program, with the last lines that have its failure."""
        if ends_in_failure(end.output_tail) and find_failure(end.tail) is None:
            end = end.replace(tail=end.output_tail, wrote_to="standard output")
        reason = printable(end.reason)
        self.ends[peer.rank or 0] = end.replace(
            rank=peer.rank, host=peer.host, local_rank=peer.local_rank, reason=reason, output_tail=""
        )

    @property
    def taken_port(self) -> int | None:
        """A port of a failed rank that another process has taken."""
        return next((end.taken_port for end in self.ends.values() if end.taken_port), None)

    def explain(
        self, first: EndReason | None, manager: ManagerProcess, *, ranks: int = 0, running: bool = False
    ) -> EndReason:
        """Return the reason for the end of a job whose process manager has ended; record the host that it lost.

        Where ddlrun did not run, keepers took it for lost, and ended the process manager and its daemons.
        """
        missing = ranks - len(self.ends)
        reason = explain(Evidence(first, manager.end_report(), self.ends, missing, running=running, pause=self.pause))
        if reason.lost_host is not None:
            self.lost_hosts.add(reason.lost_host)
        return reason

    def outcome(self, reason: EndReason, *, seconds: float, until_end: float, manager: ManagerProcess) -> Outcome:
        """Return the outcome; `until_end` is the part of the duration before the job began to end.

        The process manager has ended, unless it could not be killed.
        """
        root = root_of(self.ends.values()) if reason.by_rank else None
        return Outcome(
            exit_code=reason.exit_code if root is None or root.ended_by_order else root.exit_code,
            signal=reason.signal,
            seconds=seconds,
            reason=reason.text,
            root=root,
            ends=tuple(self.ends[rank] for rank in sorted(self.ends)),
            lost_ranks=tuple(self.lost_ranks),
            mpirun_output=manager.output if reason.exit_code else "",
            until_end=until_end,
            requested=reason.requested,
            lost_hosts=tuple(sorted(self.lost_hosts)),
        )
