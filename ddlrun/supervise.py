"""Stay with a running job: take what its ranks write, forward signals, end it whole, and learn why it ended."""

import _socket  # socket itself takes 6 ms to import
import errno
import hmac
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from ddlrun.hosts import fold
from ddlrun.machine.cpus import cpu_list
from ddlrun.mpirun import improper_end, lost_host
from ddlrun.output import Console, Log, Output, Style
from ddlrun.plan import Outcome, RankEnd, RunDir
from ddlrun.rank import wire
from ddlrun.shell import end_session, guarded, start_mpirun

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHUNK = 1 << 18
# What mpirun may take to end once its ranks have.
MPIRUN_SECONDS = 3.0
# Beyond the grace: what keepers and networks take.
SLACK_SECONDS = 3.0
UNREACHABLE, TIMED_OUT = 3, 124
STATUS_SECONDS = 1.0
# Who connects has this long, and may send this much, before it has said the token.
STRANGER_SECONDS = 10.0
MOST_OF_A_STRANGER = 64
MOST_STRANGERS = 256
# So long after a rank has ended, it is worth a word that others have not.
EARLY_SECONDS = 30.0
# mpirun may take this long to end when all ranks have.
IDLE_SECONDS = 10.0
# What mpirun of Open MPI 5 says of its own ssh, now and then, without any harm.
HARMLESS = rb"(?m)^\[[^\]\n]*\] plm:ssh: Warning: setpgid\([^\n]*\n"
LOOPBACK = ("127.0.0.1",)


class Watch(NamedTuple):
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
    style: Style = Style()
    addresses: tuple[str, ...] = LOOPBACK
    """This host's addresses that the ranks' hosts reach."""
    status_line: bool = False
    colour: bool = False


class Listener:
    """Where the keepers connect: a port, and a token that only they know."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.token = os.urandom(16).hex()
        self._addresses = addresses
        local = tuple(addresses) == LOOPBACK
        self.socket = self._bind("127.0.0.1") if local else self._bind_all()
        self.socket.listen(4096)
        self.socket.setblocking(False)

    def variable(self) -> str:
        """Return what tells the keepers where this is (wire.ADDRESSES)."""
        port = self.socket.getsockname()[1]
        return f"{self.token}@{os.uname().nodename}@" + ",".join(f"{ip}:{port}" for ip in self._addresses)

    def _bind_all(self) -> _socket.socket:
        try:
            return self._bind("::")
        except OSError:  # no IPv6 here
            return self._bind("0.0.0.0")  # noqa: S104 - the token says who may speak

    @staticmethod
    def _bind(address: str) -> _socket.socket:
        family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
        listener = _socket.socket(family, _socket.SOCK_STREAM)
        try:
            if family == _socket.AF_INET6:
                listener.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            listener.bind((address, 0))
        except OSError:
            listener.close()
            raise
        return listener


class Peer:
    """One keeper's connection, or one that has not said the token yet (rank None)."""

    def __init__(self, link: _socket.socket, now: float) -> None:
        self.link = link
        self.rank: int | None = None
        self.host = "?"
        self.local_rank = -1
        self.trusted = False
        self.got = 0
        self.since = self.heard = self.printed = now
        self.ever_printed = False
        self.stalled = False
        self.unpack = wire.Unpacker()
        self.unsent = bytearray()
        self.ended: wire.Ended | None = None


class Cause(NamedTuple):
    """Why the job is ended before its time: ddlrun's exit code, the signal if one did it, and the words."""

    exit_code: int
    reason: str | None = None
    signal: int | None = None
    wanted: bool = False
    """Somebody, or a time limit, asked for it."""


class Supervision:
    """One mpirun, its ranks' keepers and our own streams, until all is over."""

    def __init__(self, watch: Watch, files: RunDir, listener: Listener) -> None:
        self._watch, self._listener = watch, listener
        self._status = ""
        self._consoles = Console(1, colour=watch.colour), Console(2, colour=watch.colour)
        if os.path.sameopenfile(1, 2):  # what one leaves unfinished there, the other ends
            self._consoles[1].lines = self._consoles[0].lines
        self._logs = Log(files.stdout, self._tell), Log(files.stderr, self._tell)
        self._output = Output(watch.style, self._consoles, self._logs, watch.ranks, self._tell, self._clear_status)
        self._mpi_log = Log(files.mpirun_log, self._tell)
        self._mpi_said = b""
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}
        self._strangers: dict[int, Peer] = {}
        self._pipes: dict[int, int] = {}
        self._asked_where: set[int] = set()
        self._where: dict[str, tuple[str, list[int]]] = {}
        self._lost: list[str] = []
        self._dead: set[str] = set()
        self.unswept: set[str] = set()
        """Hosts on which a keeper was killed: nobody has ended yet what its program left behind."""
        self.bound: list[str] = []
        self.ends: dict[int, RankEnd] = {}
        self._cause: Cause | None = None
        self._own_name = os.uname().nodename
        self._started_ranks: set[int] = set()
        self._started = self._rank_came = time.monotonic()
        self._beaten = self._started
        self._drawn = self._tick_at = 0.0
        self._ticking = False
        self._reading = True
        self._idle_since = self._last_end = float("inf")
        self._ending_since: float | None = None
        self._left_at: float | None = None
        self._kill_at: float | None = None
        self._mpirun_gone: float | None = None
        self._asked = False
        self._printed = self._started

    # -- the whole ------------------------------------------------------------------------------

    def run(self, process: subprocess.Popen[bytes], signals: "Signals") -> Outcome:
        """Stay until mpirun and all ranks have ended."""
        self._process = process
        for stream, pipe in enumerate((process.stdout, process.stderr)):
            if pipe is not None:
                self._pipes[pipe.fileno()] = stream
        for fd in (signals.wake, self._listener.socket.fileno(), *self._pipes):
            self._epoll.register(fd, select.EPOLLIN)
        while not self._over():
            for fd, event in self._epoll.poll(self._until()):
                self._event(fd, event, signals)
            self._in_time(signals)
        for fd in list(self._pipes):
            while self._mpirun_writes(fd):
                pass
        self._finish_output(signals)
        return self._outcome()

    def _over(self) -> bool:
        if self._process.poll() is None:
            return False
        now = time.monotonic()
        if self._mpirun_gone is None:
            self._mpirun_gone = now
        if not any(peer.trusted for peer in self._peers.values()):
            return True
        if self._ending_since is None and now > self._mpirun_gone + MPIRUN_SECONDS / 3:
            self.end_job(self._mpirun_ended())
        return self._kill_at is not None and now > self._kill_at + MPIRUN_SECONDS

    def _event(self, fd: int, event: int, signals: "Signals") -> None:
        if fd == signals.wake:
            _read(fd)
        elif fd == self._listener.socket.fileno():
            self._accept()
        elif fd in self._pipes:
            if not self._mpirun_writes(fd) and event & select.EPOLLHUP:
                self._epoll.unregister(fd)
                del self._pipes[fd]
        elif fd in self._peers:
            peer = self._peers[fd]
            if event & select.EPOLLOUT:
                self._flush(peer)
            if event & ~select.EPOLLOUT and fd in self._peers:
                self._receive(peer)

    def _until(self) -> float:
        now = time.monotonic()
        times = [now + 5.0]
        if self._watch.heartbeat:
            times.append(self._beaten + self._watch.heartbeat / 8)
        if self._watch.timeout and self._cause is None:
            times.append(self._started + self._watch.timeout)
        if self._watch.start and self._cause is None:
            times.append(self._rank_came + self._watch.start)
        if self._cause is not None or self._process.poll() is not None or self._idle_since <= now:
            times.append(now + 0.1)
        if self._watch.status_line or self._watch.stall:
            times.append(now + STATUS_SECONDS)
        if any(console.waiting for console in self._consoles):
            times.append(now + 0.01)
        if not self._reading or any(console.waiting for console in self._consoles):
            self._output.hold()
        elif now >= self._tick_at:
            due = self._output.tick()
            self._tick_at = now + (0.1 if due is None else max(0.1, due))
            self._ticking = due is not None
        if self._ticking:
            times.append(self._tick_at)
        return max(0.0, min(times) - now)

    def _in_time(self, signals: "Signals") -> None:
        now = time.monotonic()
        for console in self._consoles:
            console.flush()
        self._check_consoles()
        self._read_or_wait(now)
        for number in signals.taken():
            self._signalled(number)
        if self._cause is None:
            self._check_limits(now)
            self._tell_of_early_ends(now)
        if self._watch.heartbeat:
            self._beat(now)
        if self._cause is not None:
            self._press(now)
        elif len(self.ends) == self._watch.ranks and not self._peers:
            self._hurry_mpirun(now)
        if self._watch.stall and self._cause is None:
            self._look_for_stalls(now)
        if self._watch.status_line and now > self._drawn + STATUS_SECONDS:
            self._draw_status(now)

    # -- keepers --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                fd, _ = self._listener.socket._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - as socket.accept does
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._drop_strangers(0):
                    self.end_job(Cause(5, f"too many open files for {self._watch.ranks} ranks; raise ulimit -n"))
                return
            link = _socket.socket(fileno=fd)
            link.setblocking(False)
            link.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self._peers[fd] = Peer(link, time.monotonic())
            self._strangers[fd] = self._peers[fd]
            self._epoll.register(fd, select.EPOLLIN)
            self._drop_strangers(MOST_STRANGERS)

    def _drop_strangers(self, most: int) -> bool:
        """Keep so many who have not said the token yet, the newest; tell whether any was dropped."""
        old = list(self._strangers.values())[: max(0, len(self._strangers) - most)]
        for peer in old:
            self._drop(peer)
        return bool(old)

    def _receive(self, peer: Peer) -> None:
        try:
            data = peer.link.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(peer)
            return
        peer.heard = time.monotonic()
        peer.got += len(data)
        if not peer.trusted and peer.got > MOST_OF_A_STRANGER:
            self._drop(peer)
            return
        for kind, text in peer.unpack.feed(data):
            if not peer.trusted and not self._trust(peer, kind, text):
                self._drop(peer)
                return
            self._hear(peer, kind, text)

    def _trust(self, peer: Peer, kind: bytes, text: bytes) -> bool:
        peer.trusted = kind == wire.HELLO and hmac.compare_digest(text, self._listener.token.encode())
        if peer.trusted:
            del self._strangers[peer.link.fileno()]
            self._send(peer, wire.WELCOME)
        return peer.trusted

    def _hear(self, peer: Peer, kind: bytes, text: bytes) -> None:
        if kind in (wire.OUT, wire.ERR) and peer.rank is not None:
            peer.printed = self._printed = peer.heard
            peer.ever_printed, peer.stalled = True, False
            self._output.write(peer.rank, int(kind == wire.ERR), text)
        elif kind == wire.HELLO and b"\t" in text:
            rank, peer.host, local_rank, _ = text.decode(errors="replace").split("\t")
            peer.rank, peer.local_rank = int(rank), int(local_rank)
            self._output.start(peer.rank, peer.host)
            self._started_ranks.add(peer.rank)
            self._rank_came = peer.heard
            if len(self._started_ranks) == self._watch.ranks:  # nobody else has any business here
                self._drop_strangers(0)
                self._epoll.unregister(self._listener.socket.fileno())
                self._listener.socket.close()
            if self._cause is not None:
                self._send(peer, wire.FINISH, str(self._watch.grace))
        elif kind == wire.BOUND:
            self.bound.append(text.decode(errors="replace"))
        elif kind == wire.SAYS:
            self._tell(text.decode(errors="replace"))
        elif kind == wire.WHERE and peer.rank is not None:
            self._stands(peer.rank, text.decode(errors="replace"))
        elif kind == wire.ENDED and peer.rank is not None:
            self._ended(peer, wire.Ended.parse(text))

    def _ended(self, peer: Peer, ended: wire.Ended) -> None:
        peer.ended = ended
        self._output.end(peer.rank or 0)
        end = RankEnd(
            peer.rank or 0, peer.host, peer.local_rank, ended.code, ended.signal or None, ended.seconds,
            ended.max_rss_kib, bool(ended.ordered), ended.why, ended.tail.decode(errors="replace"),
        )  # fmt: skip
        self.ends[end.rank] = end
        self._last_end = time.monotonic()
        if ended.code and not ended.ordered and self._cause is None:
            self.end_job(Cause(ended.code, None))
        elif ended.why and self._cause is None:
            gone = self._process.poll() is not None
            lost = Cause(UNREACHABLE, f"rank {peer.rank} on {peer.host} had to end: {ended.why}")
            self.end_job(self._mpirun_ended() if gone else lost)
            self._dead |= {peer.host} - {self._own_name}

    def _hang_up(self, peer: Peer) -> None:
        """Take note that a keeper has closed: after its program ended, or because it was killed."""
        self._drop(peer)
        if peer.rank is None or peer.ended is not None:
            return
        self._output.end(peer.rank)
        self.unswept.add(peer.host)
        self._lost.append(f"rank {peer.rank} on {peer.host}")
        if self._cause is None:
            self.end_job(Cause(128 + signal.SIGKILL, f"rank {peer.rank} on {peer.host} was killed from outside"))

    def _drop(self, peer: Peer) -> None:
        self._epoll.unregister(peer.link.fileno())
        del self._peers[peer.link.fileno()]
        self._strangers.pop(peer.link.fileno(), None)
        peer.link.close()

    def _send(self, peer: Peer, kind: bytes, text: str = "") -> None:
        peer.unsent += wire.pack(kind, text.encode())
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.link.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            peer.unsent.clear()  # it is gone: reading will tell
        self._listen_to(peer)

    def _listen_to(self, peer: Peer) -> None:
        events = (select.EPOLLIN if self._reading or peer.rank is None else 0) | (select.EPOLLOUT if peer.unsent else 0)
        self._epoll.modify(peer.link.fileno(), events)

    def _to_all(self, kind: bytes, text: str = "") -> None:
        for peer in list(self._peers.values()):
            if peer.trusted:
                self._send(peer, kind, text)

    def _check_limits(self, now: float) -> None:
        """End the job where its time is over, or where it does not get started."""
        if self._watch.timeout and now > self._started + self._watch.timeout:
            self.end_job(Cause(TIMED_OUT, f"the time limit of {self._watch.timeout:g} s (--timeout)", wanted=True))
        if self._watch.start and now > self._rank_came + self._watch.start:
            self._look_for_missing()

    def _tell_of_early_ends(self, now: float) -> None:
        """Say once that some ranks have ended a while ago, and others not."""
        if now > self._last_end + EARLY_SECONDS:
            self._last_end = float("inf")
            if len(self.ends) < self._watch.ranks:
                left = self._watch.ranks - len(self.ends)
                self._tell(f"{self._named(self.ends)} ended with 0; {left} of {self._watch.ranks} ranks still run")

    def _check_consoles(self) -> None:
        """End the job where our own output cannot be written any more."""
        closed = [console for console in self._consoles if console.closed]
        if closed and self._cause is None:
            name, why = ("standard output", "standard error")[closed[0].fd - 1], closed[0].error
            unread = Cause(128 + signal.SIGPIPE, f"nobody reads {name} any more", signal.SIGPIPE, wanted=True)
            self.end_job(unread if why is None else Cause(1, f"{name}: {why}", wanted=True))

    def _read_or_wait(self, now: float) -> None:
        """Stop reading from the ranks while a slow terminal or pipe has too much to take: they wait then."""
        reading = not self._output.full or self._kill_at is not None
        if reading != self._reading:
            self._reading = reading
            for peer in self._peers.values():
                peer.heard = now
                self._listen_to(peer)

    def _look_for_missing(self) -> None:
        """End the job where mpirun does not get all ranks to start."""
        missing = [rank for rank in range(self._watch.ranks) if rank not in self._started_ranks]
        self._rank_came = float("inf") if not missing else self._rank_came
        if missing:
            why = f"{self._named(missing)} did not start in {self._watch.start:g} s (--start-timeout)"
            self.end_job(Cause(UNREACHABLE, why))

    def _beat(self, now: float) -> None:
        """Now and then tell all keepers that we are here, and find those that have not told us."""
        interval = self._watch.heartbeat / 8
        if now < self._beaten + interval:
            return
        self._beaten = now
        self._to_all(wire.BEAT)
        for peer in [peer for peer in self._strangers.values() if now > peer.since + STRANGER_SECONDS]:
            self._drop(peer)
        if not self._reading:
            return
        limit = now - self._watch.heartbeat + interval
        silent = [peer for peer in self._peers.values() if peer.trusted and peer.heard < limit]
        for peer in silent:
            self._drop(peer)
            if peer.ended is None:
                self._lost.append(f"rank {peer.rank} on {peer.host}")
                self._dead.add(peer.host)
        if silent and self._cause is None:
            hosts = ", ".join(sorted({peer.host for peer in silent}))
            why = (
                f"no sign of life from {hosts} for {self._watch.heartbeat:g} s: the host is down, or its network is cut"
            )
            self.end_job(Cause(UNREACHABLE, why))

    # -- ending ---------------------------------------------------------------------------------

    def end_job(self, cause: Cause) -> None:
        """End all ranks, the first time with the grace; the first cause is the one that counts."""
        if self._cause is not None:
            return
        self._cause = cause
        self._ending_since = time.monotonic()
        self._kill_at = self._ending_since + self._watch.grace + SLACK_SECONDS
        self._to_all(wire.FINISH, str(self._watch.grace))
        if not any(peer.rank is not None for peer in self._peers.values()):
            self._signal_mpirun()  # nothing runs yet

    def _press(self, now: float) -> None:
        """While the job is being ended: let keepers leave when all ranks have ended, then end mpirun."""
        if self._left_at is None:
            if any(peer.rank is not None and peer.ended is None for peer in self._peers.values()):
                if self._kill_at is not None and now > self._kill_at:
                    end_session(self._process.pid)
                return
            self._left_at = now
            self._send_sweepers()
            self._to_all(wire.LEAVE)
        if self._process.poll() is None and now > self._left_at + MPIRUN_SECONDS / 3:
            self._signal_mpirun()
            if now > self._left_at + MPIRUN_SECONDS:
                end_session(self._process.pid)

    def _hurry_mpirun(self, now: float) -> None:
        """End an mpirun that does not, though all its ranks have."""
        self._idle_since = min(self._idle_since, now)
        if self._process.poll() is None and now > self._idle_since + IDLE_SECONDS:
            self._signal_mpirun()
            if now > self._idle_since + IDLE_SECONDS + MPIRUN_SECONDS:
                end_session(self._process.pid)

    def _signal_mpirun(self) -> None:
        """Ask mpirun to end, once: a second signal makes that of Open MPI 4.1 leave its ranks alone."""
        if not self._asked and self._process.poll() is None:
            self._asked = True
            self._process.terminate()

    def _send_sweepers(self) -> None:
        """Where a keeper was killed, another one on that host ends what its program left behind."""
        for peer in self._peers.values():
            if peer.host in self.unswept and peer.rank is not None:
                self._send(peer, wire.SWEEP)
                self.unswept.remove(peer.host)

    def _signalled(self, number: int) -> None:
        if number in self._watch.forward:
            self._to_all(wire.SIGNAL, str(number))
        elif self._cause is None:
            if self._watch.status_line:
                self._tell(f"ending the job, in {self._watch.grace:g} s at most; Ctrl-C again kills it at once")
            self.end_job(Cause(128 + number, None, number, wanted=True))
        else:
            self._to_all(wire.FINISH, "0")
            self._kill_at = time.monotonic() + 1.0

    # -- mpirun ---------------------------------------------------------------------------------

    def _mpirun_writes(self, fd: int) -> bool:
        chunk = _read(fd)
        if not chunk:
            return False
        self._mpi_log.write(chunk)
        self._mpi_said = (self._mpi_said + chunk)[-CHUNK:]
        if self._cause is None or self._cause.exit_code == 0:  # what it says of an end that we know is noise
            self._clear_status()
            console = self._consoles[self._pipes.get(fd, 1)]
            console.write(console.lines.join(-1, re.sub(HARMLESS, b"", chunk), b""))
        return True

    def _mpirun_ended(self) -> Cause:
        """Say why mpirun ended while ranks were running, or with an error that no rank explains."""
        code = self._process.returncode
        said = self._mpi_said.decode(errors="replace")
        lost = lost_host(said)
        if lost is not None:
            self._dead.add(lost[0])
            why = "something there was killed, the host went down, or the network failed"
            return Cause(UNREACHABLE, f"mpirun lost host {lost[0]}, {lost[1]}: {why}")
        improper = improper_end(said)
        if improper is not None:
            rank, host = improper
            end = self.ends.get(rank)
            how = f" with {end.exit_code}" if end is not None else ""
            return Cause(code or 1, f"rank {rank} on {host} exited{how} while others were in MPI, without MPI_Finalize")
        if code < 0:
            return Cause(128 - code, f"mpirun was killed by {signal.Signals(-code).name}", -code)
        return Cause(code or 1, None if code else "mpirun ended while ranks were still running")

    def _outcome(self) -> Outcome:
        seconds = time.monotonic() - self._started
        cause = self._cause
        if cause is None:
            clean = self._process.returncode == 0 or self._asked
            cause = Cause(0) if clean and len(self.ends) == self._watch.ranks else self._mpirun_ended()
            if cause.exit_code == 1 and clean:
                cause = Cause(1, f"only {len(self.ends)} of {self._watch.ranks} ranks told how they ended")
        said = self._mpi_said.decode(errors="replace") if cause.exit_code else ""
        root = root_of(self.ends.values()) if cause.reason is None and cause.signal is None else None
        if root is not None:
            cause = cause._replace(exit_code=root.exit_code)
        ends = tuple(self.ends[rank] for rank in sorted(self.ends))
        return Outcome(
            cause.exit_code, cause.signal, seconds, cause.reason, root, ends, tuple(self._lost), said,
            self._ending_since - self._started if self._ending_since is not None else seconds, cause.wanted,
            tuple(sorted(self._dead)),
        )  # fmt: skip

    # -- what people see ------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        """Say something of our own, in a line of its own."""
        self._clear_status()
        block = b"".join(f"ddlrun: {line}\n".encode() for line in text.splitlines())
        self._logs[1].write(self._logs[1].lines.join(-2, block, b""))
        self._consoles[1].write(self._consoles[1].lines.join(-2, block, b""))

    def _look_for_stalls(self, now: float) -> None:
        silent = now > self._printed + self._watch.stall
        found = [
            peer
            for peer in self._peers.values()
            if peer.rank is not None and peer.ended is None and not peer.stalled
            and now > peer.printed + self._watch.stall and (peer.ever_printed or silent)
        ]  # fmt: skip
        for peer in found:
            peer.stalled = True
            self._send(peer, wire.LOOK)
            self._asked_where.add(peer.rank or 0)
        if found:
            self._tell(f"{self._named(peer.rank or 0 for peer in found)} printed nothing for {self._watch.stall:g} s")

    def _stands(self, rank: int, where: str) -> None:
        """Collect where ranks stand; when all have told, show it, those that stand alike together."""
        self._asked_where.discard(rank)
        alike = re.sub(r"(?i)\b(process|thread) (0x)?[0-9a-f]+", r"\1", where)
        self._where.setdefault(alike, (where, []))[1].append(rank)
        if not self._asked_where:
            for text, ranks in self._where.values():
                self._tell("\n".join([f"{self._named(ranks)} stood here:", *text.splitlines()]))
            self._where.clear()

    def _named(self, ranks: Iterable[int]) -> str:
        numbers = sorted(ranks)
        hosts = dict.fromkeys(self._watch.host_of(rank) for rank in numbers)
        return f"rank{'s' * (len(numbers) > 1)} {cpu_list(numbers)} on {fold(hosts)}"

    def _draw_status(self, now: float) -> None:
        self._drawn = now
        if any(console.lines.inside_a_line or console.waiting for console in self._consoles):
            return
        alive = sum(peer.rank is not None and peer.ended is None for peer in self._peers.values())
        stalled = [str(peer.rank) for peer in self._peers.values() if peer.stalled]
        spent = int(now - self._started)
        shown = f"ddlrun {spent // 3600}:{spent // 60 % 60:02}:{spent % 60:02} | {alive} of {self._watch.ranks} ranks"
        shown += f" | last output {now - self._printed:.0f} s ago"
        shown += f" | silent: {','.join(stalled[:8])}" if stalled else ""
        try:
            columns = os.get_terminal_size(2).columns
        except OSError:
            columns = 80
        self._status = shown[: (columns or 80) - 1]
        self._consoles[1].write(f"\r\x1b[K{self._status}".encode())

    def _clear_status(self) -> None:
        if self._status:
            self._consoles[1].write(b"\r\x1b[K")
            self._status = ""

    def _finish_output(self, signals: "Signals") -> None:
        """Wait for slow readers of what is left, unless the job was ended by force."""
        for peer in list(self._peers.values()):
            if peer.rank is not None:
                self._output.end(peer.rank)
        self._clear_status()
        if self._consoles[1].lines.inside_a_line and (self._cause or self._process.returncode):
            self._consoles[1].write(b"\n")  # a report follows
        hurried = self._cause is not None and self._cause.wanted
        until = time.monotonic() + (1.0 if hurried else 1e9)
        while any(console.waiting for console in self._consoles) and time.monotonic() < until and not signals.taken():
            select.select([], [console.fd for console in self._consoles if console.waiting], [], 0.1)
            for console in self._consoles:
                console.flush()
        dropped = sum(console.dropped for console in self._consoles)
        if dropped:
            self._tell(f"{dropped} bytes of output were not shown, as nobody read them; the logs have them")
        for log in (*self._logs, self._mpi_log):
            log.close()
        for peer in self._peers.values():
            peer.link.close()
        for console in self._consoles:
            console.close()
        self._epoll.close()


# With this MPI of Open MPI 5 exits when another rank's connection is gone.
SOCKET_CLOSED = 14
BY_ORDER = (130, 137, 143)
# What a rank says that lost another one: the other one is the cause.
COLLATERAL = (
    "Connection reset by peer", "Connection closed by peer", "Broken pipe", "Connection refused",
    "remote process exited", "NCCL communicator was aborted", "Socket closed", "Horovod has been shut down",
    "failed to connect to all addresses", "Connection was likely closed", "MPI_ERR_PROC_ABORTED",
)  # fmt: skip


def root_of(ends: Iterable[RankEnd]) -> RankEnd | None:
    """Return the end that caused the others: the first to fail that does not blame another rank.

    A dying process closes its sockets before its keeper hears of it, so another rank may fail of that and
    ddlrun's order come in between: then it is the one that did not end as an order ends one.
    """
    known = list(ends)
    failed = [end for end in known if end.exit_code and not end.ordered]
    ordered = [end for end in known if end.exit_code and end.ordered and end.exit_code not in BY_ORDER]
    return next((end for end in (*failed, *ordered) if not _collateral(end)), next(iter(failed), None))


def _collateral(end: RankEnd) -> bool:
    return end.exit_code == SOCKET_CLOSED or any(sign in end.tail for sign in COLLATERAL)


class Signals:
    """While it lasts, signals are taken instead of ending ddlrun; `wake` is readable after any."""

    def __init__(self, forward: Sequence[int] = ()) -> None:
        self._taken: list[int] = []
        self._forward = forward
        self.wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Signals":  # noqa: PYI034 - Self is not in Python 3.10
        self._fd_before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        for number in (*ENDING, *self._forward):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and `&` in a script ignore some
                self._before[number] = signal.signal(number, self._take)
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # ranks would miss us
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._fd_before)
        os.close(self.wake)
        os.close(self._woken)

    def taken(self) -> list[int]:
        """Return the signals that came since the last time."""
        taken, self._taken = self._taken, []
        return taken

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._taken.append(number)


class Watched(NamedTuple):
    """What is known of a job that is over."""

    outcome: Outcome
    bound: tuple[str, ...]
    unswept: frozenset[str]


def run_job(argv: Sequence[str], environ: Mapping[str, str], watch: Watch, files: RunDir, *, stdin: bool) -> Watched:
    """Run mpirun and stay with its job: pass on what ranks write as it comes, forward signals, end it whole.

    mpirun gets our standard input where `stdin` is true. The first of SIGINT, SIGTERM and SIGHUP ends the
    ranks in `watch.grace` seconds, the second at once. Raises OSError where mpirun cannot be started.
    """
    listener = Listener(watch.addresses)
    try:
        variables = {
            wire.ADDRESSES: listener.variable(), "DDLRUN_GRACE": str(watch.grace),
            "DDLRUN_HEARTBEAT": str(watch.heartbeat),
        }  # fmt: skip
        with Signals(watch.forward) as signals:
            supervision = Supervision(watch, files, listener)
            process = start_mpirun(argv, {**environ, **variables}, stdin=stdin)
            with process, guarded(process.pid, watch.grace + SLACK_SECONDS):
                try:
                    outcome = supervision.run(process, signals)
                finally:
                    if process.poll() is None or process.returncode:
                        end_session(process.pid)
        return Watched(outcome, tuple(supervision.bound), frozenset(supervision.unswept))
    finally:
        listener.socket.close()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""
