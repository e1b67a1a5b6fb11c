"""One job from its mpirun's start to its end: the loop."""

import os
import select
import signal
import time
from collections.abc import Container

from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.rank import protocol
from ddlrun.remote.mpirun_process import Process
from ddlrun.supervise.console import STATUS_SECONDS, Console, status_line
from ddlrun.supervise.keepers import KeeperConnection, Keepers
from ddlrun.supervise.limits import JobLimits
from ddlrun.supervise.listener import Listener
from ddlrun.supervise.process import MpirunProcess, read_now
from ddlrun.supervise.signals import Signals, SignalWarnings
from ddlrun.supervise.stall_detection import StallDetector
from ddlrun.supervise.termination import UNREACHABLE, EndReason, Termination, ended_by_mpirun, root_of

# What mpirun may take to end once its ranks have.
MPIRUN_SECONDS = 3.0
# Beyond the grace: what keepers and networks take.
SLACK_SECONDS = 3.0
# mpirun may take this long to end when all ranks have.
IDLE_SECONDS = 10.0


class Supervision:
    """One mpirun, its ranks' keepers and our own streams, until all is over."""

    def __init__(self, watch: SupervisionOptions, files: RunDir, listener: Listener) -> None:
        self._watch = watch
        self._screen = Console(watch, files)
        self._epoll = select.epoll()
        self._keepers = Keepers(listener, self._epoll, self._hear, self._hung_up, self._crowded, watch.ranks)
        self._stalls = StallDetector(watch, self._screen.tell)
        self._limits = JobLimits(watch)
        self._warnings = SignalWarnings()
        self._ending: Termination | None = None
        self._lost: list[str] = []
        self._dead: set[str] = set()
        self.unswept: set[str] = set()
        """Hosts on which a keeper was killed: nobody has ended yet what its program left behind."""
        self.bound: list[str] = []
        self.ends: dict[int, RankEnd] = {}
        self._beaten = self._printed = self._limits.began
        self._idle_since = float("inf")
        self._mpirun_gone: float | None = None

    # -- the whole ------------------------------------------------------------------------------

    def run(self, process: Process, signals: Signals) -> Outcome:
        """Stay until mpirun and all ranks have ended."""
        self._mpirun = MpirunProcess(process)
        for fd in (signals.wake, *self._mpirun.pipes):
            self._epoll.register(fd, select.EPOLLIN)
        while not self._over():
            for fd, event in self._epoll.poll(self._until()):
                self._event(fd, event, signals)
            self._in_time(signals)
        for fd in self._mpirun.pipes:
            while self._mpirun_writes(fd):
                pass
        self._finish(signals)
        return self._outcome()

    def _over(self) -> bool:
        if self._mpirun.running:
            return False
        now = time.monotonic()
        if self._mpirun_gone is None:
            self._mpirun_gone = now
        if not any(peer.trusted for peer in self._keepers.peers.values()):
            return True
        if self._ending is None and now > self._mpirun_gone + MPIRUN_SECONDS / 3:
            self.end_job(self._mpirun_ended())
        return self._ending is not None and now > self._ending.kill_at + MPIRUN_SECONDS

    def _event(self, fd: int, event: int, signals: Signals) -> None:
        if fd == signals.wake:
            read_now(fd)
        elif fd not in self._mpirun.pipes:
            self._keepers.event(fd, event)
        elif not self._mpirun_writes(fd) and event & select.EPOLLHUP:
            self._epoll.unregister(fd)
            del self._mpirun.pipes[fd]

    def _until(self) -> float:
        """Return for how many seconds nothing is to be done unless something happens."""
        now = time.monotonic()
        times = [now + 5.0, self._screen.due(now, reading=self._keepers.reading)]
        if self._watch.heartbeat:
            times.append(self._beaten + self._watch.heartbeat / 8)
        if self._ending is None:
            times += self._limits.due(), self._warnings.due()
        if self._ending is not None or not self._mpirun.running or self._idle_since <= now:
            times.append(now + 0.1)
        if self._watch.status_line or self._watch.stall:
            times.append(now + STATUS_SECONDS)
        return max(0.0, min(times) - now)

    def _in_time(self, signals: Signals) -> None:
        now = time.monotonic()
        self._screen.flush()
        self.end_job(self._screen.closed())
        # While a slow terminal or pipe has too much to take, the ranks wait.
        self._keepers.read(now, reading=not self._screen.output.full or self._ending is not None)
        for number in signals.taken():
            self._signalled(number)
        if self._ending is None:
            for number, had in self._warnings.pass_on(now):
                self._pass_on(number, had)
            self.end_job(self._limits.over(now))
            early = self._limits.early_ends(now, self.ends)
            if early is not None:
                self._screen.tell(early)
        if self._watch.heartbeat:
            self._beat(now)
        if self._ending is not None:
            self._press(self._ending, now)
        elif len(self.ends) == self._watch.ranks and not self._keepers.peers:
            self._hurry_mpirun(now)
        if self._watch.stall and self._ending is None:
            self._stalls.look(now, self._printed, self._keepers)
        if self._watch.status_line:
            self._screen.draw_status(now, lambda: self._status(now))

    # -- keepers --------------------------------------------------------------------------------

    def _hear(self, peer: KeeperConnection, kind: bytes, text: bytes) -> None:
        if kind in (protocol.OUT, protocol.ERR) and peer.rank is not None:
            peer.printed = self._printed = peer.heard
            peer.ever_printed, peer.stalled = True, False
            self._screen.output.write(peer.rank, int(kind == protocol.ERR), text)
        elif kind == protocol.HELLO and b"\t" in text:
            rank, peer.host, local_rank, _ = text.decode(errors="replace").split("\t")
            peer.rank, peer.local_rank = int(rank), int(local_rank)
            self._rank_starts(peer, peer.rank)
        elif kind == protocol.BOUND:
            self.bound.append(text.decode(errors="replace"))
        elif kind == protocol.NOTE:
            self._screen.tell(text.decode(errors="replace"))
        elif kind == protocol.SIGNALLED and peer.rank is not None:
            self._warnings.reached(int(text), peer.rank, peer.heard)
        elif kind == protocol.STATE and peer.rank is not None:
            self._stalls.stands(peer.rank, text.decode(errors="replace"))
        elif kind == protocol.ENDED and peer.rank is not None:
            self._rank_ends(peer, peer.rank, protocol.ProgramEnd.parse(text))

    def _rank_starts(self, peer: KeeperConnection, rank: int) -> None:
        self._screen.output.start(rank, peer.host)
        if self._limits.rank_started(rank, peer.heard):  # nobody else has any business here
            self._keepers.stop_listening()
        if self._ending is not None:
            self._keepers.send(peer, protocol.TERMINATE, str(self._watch.grace))

    def _rank_ends(self, peer: KeeperConnection, rank: int, ended: protocol.ProgramEnd) -> None:
        peer.ended = ended
        self._screen.output.end(rank)
        self.ends[rank] = RankEnd(
            rank, peer.host, peer.local_rank, ended.code, ended.signal or None, ended.seconds,
            ended.max_rss_kib, bool(ended.ordered), ended.why, ended.tail.decode(errors="replace"),
        )  # fmt: skip
        self._limits.rank_ended()
        if ended.code and not ended.ordered and self._ending is None:
            self.end_job(EndReason(ended.code, None))
        elif ended.why and self._ending is None:
            lost = EndReason(UNREACHABLE, f"rank {rank} on {peer.host} had to end: {ended.why}")
            here = peer.host == os.uname().nodename
            gone = self._mpirun.ends_within(0.5 if here else 0.0)
            self.end_job(self._mpirun_ended() if gone else lost)
            self._dead |= {peer.host} - {os.uname().nodename}

    def _hung_up(self, peer: KeeperConnection) -> None:
        """Take note that a keeper has closed: after its program ended, or because it was killed."""
        if not peer.running:
            return
        self._screen.output.end(peer.rank or 0)
        self.unswept.add(peer.host)
        self._lost.append(f"rank {peer.rank} on {peer.host}")
        self.end_job(EndReason(128 + signal.SIGKILL, f"rank {peer.rank} on {peer.host} was killed from outside"))

    def _crowded(self) -> None:
        self.end_job(EndReason(5, f"too many open files for {self._watch.ranks} ranks; raise ulimit -n"))

    def _beat(self, now: float) -> None:
        """Now and then tell all keepers that we are here, and find those that have not told us."""
        interval = self._watch.heartbeat / 8
        if now < self._beaten + interval:
            return
        self._beaten = now
        self._keepers.send_all(protocol.HEARTBEAT)
        self._keepers.drop_slow_strangers(now)
        if not self._keepers.reading:
            return
        silent = self._keepers.drop_silent(now - self._watch.heartbeat + interval)
        for peer in silent:
            if peer.ended is None:
                self._lost.append(f"rank {peer.rank} on {peer.host}")
                self._dead.add(peer.host)
        if silent:
            hosts = ", ".join(sorted({peer.host for peer in silent}))
            why = f"no sign of life from {hosts} for {self._watch.heartbeat:g} s"
            self.end_job(EndReason(UNREACHABLE, f"{why}: the host is down, or its network is cut"))

    # -- ending ---------------------------------------------------------------------------------

    def end_job(self, cause: EndReason | None) -> None:
        """End all ranks with the grace where there is a cause; the first one is the one that counts."""
        if cause is None or self._ending is not None:
            return
        now = time.monotonic()
        self._ending = Termination(cause, now, now + self._watch.grace + SLACK_SECONDS)
        self._keepers.send_all(protocol.TERMINATE, str(self._watch.grace))
        if not any(peer.rank is not None for peer in self._keepers.peers.values()):
            self._mpirun.ask_to_end()  # nothing runs yet

    def _signalled(self, number: int) -> None:
        if number in self._watch.forward:
            self._pass_on(number, frozenset())
        elif self._ending is None:
            if self._watch.status_line:
                grace = f"{self._watch.grace:g} s at most"
                self._screen.tell(f"ending the job, in {grace}; Ctrl-C again kills it at once")
            self.end_job(EndReason(128 + number, None, number, wanted=True))
        else:
            self._keepers.send_all(protocol.TERMINATE, "0")
            self._ending = self._ending._replace(kill_at=time.monotonic() + 1.0)

    def _pass_on(self, number: int, had: Container[int]) -> None:
        """Send a signal to the programs of all ranks but those that had it."""
        for peer in self._keepers.peers.values():
            if peer.rank is not None and peer.rank not in had and number in self._watch.forward:
                self._keepers.send(peer, protocol.SIGNAL, str(number))

    def _press(self, ending: Termination, now: float) -> None:
        """While the job is being ended: let keepers leave when all ranks have ended, then end mpirun."""
        left_at = ending.left_at
        if left_at is None:
            if any(peer.running for peer in self._keepers.peers.values()):
                if now > ending.kill_at:
                    self._mpirun.kill()
                return
            left_at = now
            self._ending = ending._replace(left_at=now)
            self._send_sweepers()
            self._keepers.send_all(protocol.LEAVE)
        self._mpirun.end(now, ask_at=left_at + MPIRUN_SECONDS / 3, kill_at=left_at + MPIRUN_SECONDS)

    def _hurry_mpirun(self, now: float) -> None:
        """End an mpirun that does not, though all its ranks have."""
        self._idle_since = min(self._idle_since, now)
        ask_at = self._idle_since + IDLE_SECONDS
        self._mpirun.end(now, ask_at=ask_at, kill_at=ask_at + MPIRUN_SECONDS)

    def _send_sweepers(self) -> None:
        """Where a keeper was killed, another one on that host ends what its program left behind."""
        for peer in self._keepers.peers.values():
            if peer.host in self.unswept and peer.rank is not None:
                self._keepers.send(peer, protocol.SWEEP)
                self.unswept.remove(peer.host)

    # -- mpirun, and what is told of the end ----------------------------------------------------

    def _mpirun_writes(self, fd: int) -> bool:
        chunk = self._mpirun.read(fd)
        if chunk:
            known = self._ending is not None and self._ending.cause.exit_code  # what it says of that end is noise
            self._screen.mpirun_says(self._mpirun.pipes[fd], chunk, shown=not known)
        return bool(chunk)

    def _mpirun_ended(self) -> EndReason:
        cause, lost = ended_by_mpirun(self._mpirun.code, self._mpirun.said, self.ends)
        self._dead |= {lost} if lost is not None else set()
        return cause

    def _finish(self, signals: Signals) -> None:
        """Wait for slow readers of what is left, unless the job was ended by force; close all."""
        for peer in self._keepers.peers.values():
            if peer.rank is not None:
                self._screen.output.end(peer.rank)
        hurried = self._ending is not None and self._ending.cause.wanted
        failed = self._ending is not None or self._mpirun.code != 0
        self._screen.finish(1.0 if hurried else 1e9, signals.taken, failed=failed)
        self._keepers.close()
        self._epoll.close()

    def _outcome(self) -> Outcome:
        seconds = time.monotonic() - self._limits.began
        cause = self._cause()
        said = self._mpirun.said if cause.exit_code else ""
        root = root_of(self.ends.values()) if cause.reason is None and cause.signal is None else None
        ends = tuple(self.ends[rank] for rank in sorted(self.ends))
        until_the_end = seconds if self._ending is None else self._ending.since - self._limits.began
        return Outcome(
            cause.exit_code if root is None else root.exit_code, cause.signal, seconds, cause.reason, root, ends,
            tuple(self._lost), said, until_the_end, cause.wanted, tuple(sorted(self._dead)),
        )  # fmt: skip

    def _cause(self) -> EndReason:
        """Return why the job was ended, or what its own end was."""
        if self._ending is not None:
            return self._ending.cause
        clean = self._mpirun.code == 0 or self._mpirun.asked
        if clean and len(self.ends) == self._watch.ranks:
            return EndReason(0)
        cause = self._mpirun_ended()
        if cause.exit_code == 1 and clean:
            return EndReason(1, f"only {len(self.ends)} of {self._watch.ranks} ranks told how they ended")
        return cause

    def _status(self, now: float) -> str:
        peers = self._keepers.peers.values()
        stalled = [peer.rank or 0 for peer in peers if peer.stalled]
        alive = sum(peer.running for peer in peers)
        return status_line(now - self._limits.began, alive, self._watch.ranks, now - self._printed, stalled)
