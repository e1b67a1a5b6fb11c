"""The reactions to what the keepers of a running job report."""

import errno
import os
import signal

from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.plan.run_dir import RunDir
from ddlrun.supervise.cause import EndCause, EndReason
from ddlrun.supervise.examinations import Examinations
from ddlrun.supervise.keeper_connection import Hello, KeeperConnection, PeerState
from ddlrun.supervise.keepers import KeeperEvents, Keepers
from ddlrun.supervise.listener import Listener
from ddlrun.supervise.standard_input import InputForwarder
from ddlrun.supervise.supervision_state import SupervisionState
from ddlrun.supervise.termination import Termination
from ddlrun.wording import printable

# After a keeper has lost the process manager, that itself ends within this time, if it is on this host and has failed.
MANAGER_END_SECONDS = 0.5
# After a keeper was signalled, the process manager reports its own failure within this time if it sent the signal.
SIGNALLED_SECONDS = 5.0


class KeeperReactions:
    """The keepers of a job; what they report goes into its state, and may end it."""

    def __init__(self, state: SupervisionState, listener: Listener, files: RunDir) -> None:
        """Accept the connections of keepers to the listener."""
        self._state, self._options, self._job = state, state.options, state.job
        self._console, self._manager, self._record = state.console, state.manager, state.record
        self._stalls, self._limits = state.stalls, state.limits
        self._heartbeat, self._warnings = state.heartbeat, state.warnings
        self._signalled: EndReason | None = None
        self._signalled_at = 0.0
        events = KeeperEvents(self._on_message, self._on_hang_up, self._on_violation, self._on_too_many_files)
        self.keepers = Keepers(listener, state.epoll, events, ranks=state.job.ranks)
        self.input = InputForwarder(state.options.input, state.epoll, self.keepers)
        self.termination = Termination(
            self.keepers, state.manager, state.record, grace=state.options.grace, tell=state.console.tell
        )

        self.examinations = Examinations(state, files, self.keepers, self.end_job)

    def end_job(self, reason: EndReason | None) -> None:
        """End all ranks if there is a reason to; the first reason counts."""
        if reason is not None:
            self.termination.begin(reason)

    def _on_message(self, peer: KeeperConnection, kind: bytes, text: bytes) -> None:
        if kind == protocol.HELLO:
            self._on_rank_start(peer, Hello.parse(text, self._job.ranks))
        elif kind == protocol.NOTE:
            self._console.tell(_decode(text))
        elif kind == protocol.ALTERED:
            raise ProtocolError(_decode(text))
        elif peer.rank is not None:
            self._on_rank_message(peer, peer.rank, kind, text)

    def _on_rank_message(self, peer: KeeperConnection, rank: int, kind: bytes, text: bytes) -> None:
        if kind in protocol.OUTPUT:
            self._state.last_output = peer.heard_at
            self._stalls.add_output(rank, peer.heard_at)
            self._console.output.write(rank, int(kind == protocol.ERR), text)
        elif kind == protocol.SIGNALLED:
            self._warnings.add(protocol.parse_number(_decode(text), signal.NSIG - 1), rank, peer.heard_at)
        elif kind == protocol.LOST:
            peer.farewell = self._heartbeat.explain_farewell(_decode(text), peer.heard_at)
        elif kind == protocol.INPUT_WANTED:
            self.input.request(peer)
        elif kind == protocol.ENDED:
            self._on_rank_end(peer, rank, protocol.RankEnd.parse(text))
        elif kind == protocol.HANDOVER:
            self.termination.hand_over(peer)
        else:
            self._record_report(peer, rank, kind, _decode(text))

    def _record_report(self, peer: KeeperConnection, rank: int, kind: bytes, text: str) -> None:
        """Record what a keeper reports of its rank or its host."""
        if kind == protocol.BOUND:
            self._record.add_binding(rank, text)
        elif kind == protocol.SESSION_FOLDER:
            self._record.add_session_folder(peer, text)
        elif kind == protocol.SNAPSHOT:
            self.examinations.add_snapshot(rank, text)
        elif kind in (protocol.USAGE, protocol.HOST_USAGE):
            self._state.samples.add(rank, peer.host, kind, text)

    def _on_rank_start(self, peer: KeeperConnection, hello: Hello) -> None:
        rank = hello.rank
        if self._limits.has_started(rank):
            raise ProtocolError(f"rank {rank} already has one")
        if not self._limits.any_started:
            self._manager.watch_ssh_clients()
        peer.introduce(hello)
        self._record.job_names[hello.host] = self._job.host_of(rank)
        self._console.output.start(rank, peer.host)
        self._stalls.start(rank, peer.since)
        if self._limits.rank_started(rank, peer.heard_at):  # no other keeper will connect
            self.keepers.stop_listening()
        if self.termination.ending:
            self.keepers.send(peer, protocol.TERMINATE, str(self._options.grace))

    def _on_rank_end(self, peer: KeeperConnection, rank: int, end: protocol.RankEnd) -> None:
        peer.state = PeerState.ENDED
        self.input.end(rank)
        self._console.output.end(rank, failed=end.exit_code != 0)
        self._stalls.end(rank)
        self.examinations.end(rank)
        self._record.add_end(peer, end)
        self._limits.rank_ended()
        if self.termination.ending:
            self.termination.let_leave(peer)
            return
        if end.exit_code and not end.ordered:
            self.end_job(self._find_signal_before() or EndCause.RANK_FAILED.reason(exit_code=end.exit_code))
        elif end.reason:
            self._on_keeper_cut_off(peer, end.reason)
        elif end.ordered:
            self._signalled = EndCause.SIGNALLED_KEEPER.reason(label=peer.label, exit_code=end.exit_code or 1)
            self._signalled_at = peer.heard_at

    def _find_signal_before(self) -> EndReason | None:
        """Return the reason if a keeper was signalled before a rank failed, which lost its connection to that rank.

        A process manager may signal the keepers after any failure; with `signals_keepers` only when it ends itself.
        """
        if not self._job.manager.signals_keepers or self._signalled is None:
            return None
        return None if self._manager.ends_within(MANAGER_END_SECONDS) else self._signalled

    def end_after_signal(self, now: float) -> None:
        """End the job if a keeper was signalled some time ago, and nothing else has failed since."""
        if now > self._signalled_at + SIGNALLED_SECONDS:
            self.end_job(self._signalled)

    def _on_keeper_cut_off(self, peer: KeeperConnection, why: str) -> None:
        """End the job after a keeper ended its program without an order: it lost the process manager or ddlrun."""
        own_name = os.uname().nodename
        manager_ended = self._manager.ends_within(MANAGER_END_SECONDS if peer.host == own_name else 0.0)
        lost = EndCause.CUT_OFF.reason(label=peer.label, why=self._record.pause or why)
        self.end_job(self._record.explain(None, self._manager, running=True) if manager_ended else lost)
        if peer.host != own_name:
            self._record.lost_hosts.add(peer.host)

    def _on_hang_up(self, peer: KeeperConnection) -> None:
        """React to a closed connection: the keeper has left, or was killed, or the network failed."""
        self._record.add_unwatched(peer)
        if not peer.running:
            return
        self._record.unswept.add(peer.host)
        self.lose_rank(peer)
        peer.farewell = peer.farewell or self._record.pause or ""
        self.end_job(_explain_closed_connection(peer))

    def _on_violation(self, peer: KeeperConnection, problem: str) -> None:
        """End the job after a keeper's connection carried something else than the keeper's messages."""
        if peer.running:
            self.lose_rank(peer)
        if peer.rank is not None:
            self._record.unswept.add(peer.host)
        rank = peer.greeted_rank
        of_greeting = peer.rank is None and 0 <= rank < self._job.ranks
        label = f"rank {rank} on {self._job.host_of(rank)}" if of_greeting else peer.label
        self.end_job(EndCause.DISTURBED_CONNECTION.reason(label=label, problem=problem))

    def lose_rank(self, peer: KeeperConnection) -> None:
        """Record a rank whose keeper will report nothing more."""
        self._record.lost_ranks.append(f"rank {peer.rank} on {peer.host}")
        if peer.rank is not None:
            self.input.end(peer.rank)
            self._stalls.end(peer.rank)
            self._console.output.end(peer.rank)

    def _on_too_many_files(self) -> None:
        self.end_job(EndCause.TOO_MANY_FILES.reason(ranks=self._job.ranks))


def _decode(text: bytes) -> str:
    """Return the text of a message as a terminal can show it."""
    return printable(text.decode(errors="replace"))


def _explain_closed_connection(peer: KeeperConnection) -> EndReason:
    """Return the reason for the end of a job when a keeper's connection is closed while its program runs."""
    if peer.farewell:
        return EndCause.CUT_OFF.reason(label=peer.label, why=peer.farewell)
    if peer.error is None:
        return EndCause.CLOSED_CONNECTION.reason(label=peer.label, rank=peer.rank)
    cause = EndCause.RESET_CONNECTION if peer.error == errno.ECONNRESET else EndCause.BROKEN_CONNECTION
    return cause.reason(label=peer.label, rank=peer.rank, error=os.strerror(peer.error))
