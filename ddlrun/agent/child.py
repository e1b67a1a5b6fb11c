"""An agent on another host, as the agent that started it sees it, and the client (ssh or similar) between them."""

from __future__ import annotations

import os

from ddlrun.agent import protocol
from ddlrun.agent.archive import build_archive
from ddlrun.agent.error_pipe import ErrorPipe
from ddlrun.agent.launcher import SHELL, WANTED, agent_script, take_greeting
from ddlrun.agent.protocol import (
    EXIT_LOST,
    LOGIN,
    AgentTree,
    ExitedRank,
    LostHost,
    ProgramEnd,
    ProgramOutput,
    pack_words,
    unpack_words,
)
from ddlrun.errors import EXIT_SIGNAL
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.proc_files import StopDetector
from ddlrun.wire.frames import FrameError
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ddlrun.agent.launcher import ClientGroup
    from ddlrun.wire.loop import Loop

EXIT_NOT_FOUND = 127
# The bytes that a login may print.
MOST_PRINTED = 16 << 20


class Child:
    """An agent on another host, which leads to a part of the hosts."""

    def __init__(self, tree: AgentTree, hosts: Sequence[str], version: str) -> None:
        """Begin without a process.

        Args:
            tree: What agents need to start others.
            hosts: The hosts; the agent runs on the first of them, and starts those of the others.
            version: The version of ddlrun, which the agent must have too.
        """
        self._tree, self.hosts = tree, list(hosts)
        self._version = version.encode()
        self.pid = 0
        """The process id of the client (ssh or similar); 0: it was not started here."""
        self.connection = PipeConnection(-1, -1)
        self.ready = False
        """Whether the agent runs and has the tree."""
        self.awaited: set[tuple[str, int]] = set()
        """The host and the number of each program whose end it has not reported."""
        self.altered = False
        """Whether a message from or to the agent was altered, or the agent would not have sent it."""
        self.status: int | None = None
        """The wait status of the client, once it has ended."""
        self.given_up = False
        """Whether nothing more is expected from it."""
        self._has_shell = False
        """Whether the shell that becomes the agent runs, or has run."""
        self._queue: list[tuple[bytes, bytes]] = []
        """The messages for the agent that wait until it is ready."""
        self._last_errors = ""

    @classmethod
    def here(cls, name: str, connection: PipeConnection) -> Child:
        """Return the agent of this host, which runs already, and gets its host's name."""
        tree = AgentTree(launcher=["ddlrun"], python="", script="", fan_out=1, run="")
        child = cls(tree, [name], "")
        child.connection, child.ready, child.status = connection, True, 0
        protocol.begin(connection, sent=protocol.TO_AGENT, received=protocol.FROM_AGENT)
        connection.send(protocol.TREE, pack_words([tree.pack(), pack_words([name.encode()])]))
        return child

    @property
    def name(self) -> str:
        """The name of the agent's host."""
        return self.hosts[0]

    @property
    def running(self) -> bool:
        """Whether the client runs."""
        return bool(self.pid) and self.status is None

    @property
    def gone(self) -> bool:
        """Whether the client has ended, and all that it has passed on is read."""
        return self.status is not None and (self.given_up or not self.connection.open)

    @property
    def via(self) -> str:
        """The name of the client, which env or sh may start."""
        words = (word for word in self._tree.launcher if word not in ("env", "sh") and word[0] != "-")
        return os.path.basename(next(words))

    # -- its process ------------------------------------------------------------------------------

    def start(self, loop: Loop, group: ClientGroup, on_readable: Callable[[], None], *, ship: bool = False) -> None:
        """Start the client that connects to the host.

        Args:
            loop: The loop.
            group: The group of such programs.
            on_readable: What to call when something has arrived; it calls `receive`.
            ship: Send the modules of the agent.
        """
        self._start_again: Callable[[], None] = lambda: self.start(loop, group, on_readable, ship=True)
        script = agent_script(self._tree, ship=ship).encode(errors="surrogateescape")
        words = [self.name if word == "@host" else word for word in self._tree.launcher]
        words[-1] = words[-1].replace("@bytes", str(len(script)))
        try:
            self.pid, self.connection, errors = group.start(words)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError) and "/" not in words[0]
            self._last_errors = f"{words[0]}: {'not on PATH' if missing else error.strerror}\n"
            self.status = EXIT_NOT_FOUND << 8
            self.connection.close()
            return
        self._stop = StopDetector(self.pid)
        self._errors = ErrorPipe(loop, errors)
        self._printed = bytearray()
        """What has arrived, and is to be searched for the greeting."""
        self._most_printed = MOST_PRINTED
        self._noise = bytearray()
        """What a login has printed before that."""
        protocol.begin(self.connection, sent=protocol.TO_AGENT, received=protocol.FROM_AGENT)
        self.connection.join(loop, on_readable)
        self.connection.send_raw([script])

    def reap(self, options: int = os.WNOHANG) -> None:
        """Take the status of the client if it has ended; with 0 as options, wait for that."""
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # whoever has started ddlrun ignores SIGCHLD
            pid, status = self.pid, 0
        if pid:
            self.status = status

    @property
    def ends(self) -> bool:
        """Whether the client runs, and has nothing more to do."""
        return self.running and (self.given_up or not self.connection.open)

    def resume(self, now: float) -> bool:
        """Resume the client if it stays stopped; return True if so."""
        if not self.running or not self._stop.stays_stopped(now):
            return False
        os.kill(self.pid, signal.SIGCONT)
        return True

    def give_up(self) -> None:
        """Kill the client, and expect nothing more."""
        self.given_up = True
        if self.running:
            os.kill(self.pid, signal.SIGKILL)

    def describe_loss(self, starter: str) -> LostHost:
        """Return its host, and the reason why the agent is gone.

        Args:
            starter: The host of the agent that has started it; empty: ddlrun's own.
        """
        place, status = f" on {starter}" if starter else "", self.status or 0
        by_signal = os.WIFSIGNALED(status)
        code = EXIT_SIGNAL + os.WTERMSIG(status) if by_signal else os.WEXITSTATUS(status)
        end = f"signal {os.WTERMSIG(status)}" if by_signal else f"exit code {code}"
        loss = "the connection to its agent ended" if self.ready else "its agent did not start"
        broken = not self.given_up and (by_signal or (self._has_shell and code == EXIT_LOST))
        reason = f"{loss} ({self.via}{place}: {end})"
        if self.altered:
            reason = f"a message of its agent, or to it, was altered on the way ({self.via}{place})"
        if self.pid:
            self._errors.read()
            self._last_errors = self._errors.last.decode(errors="replace")
        return LostHost(
            name=self.name, reason=reason, began=self.ready or broken, code=code, errors=self._last_errors,
            below=self.hosts[1:], shell_only=self._has_shell and not (self.ready or broken),
        )  # fmt: skip

    # -- its messages -----------------------------------------------------------------------------

    def send(self, kind: bytes, text: bytes) -> None:
        """Send a message, once the agent is ready."""
        if self.ready:
            self.connection.send(kind, text)
        else:
            self._queue.append((kind, text))

    def terminate(self, text: bytes) -> bool:
        """Order the agent to end its ranks; return False if the job was still queued: it is dropped."""
        if self.ready:
            self.connection.send(protocol.TERMINATE, text)
        else:
            self._queue = [message for message in self._queue if message[0] != protocol.JOB]
        return self.ready

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Read what has arrived; yield the complete messages, and ALTERED for one that was altered."""
        connection = self.connection
        try:
            data = connection.read()
            if not self.ready:
                data = self._greet(data)
                if self.ready and self._noise:
                    noise = ProgramOutput(host=self.name, number=LOGIN, stream=1, data=bytes(self._noise))
                    yield protocol.OUTPUT, noise.pack()
            if self.ready:
                yield from connection.decoder.feed(data)
        except FrameError:
            yield protocol.ALTERED, b""
        except OSError:
            connection.close()

    def take(self, kind: bytes, text: bytes) -> bool:
        """Take a message; return False for one that cannot be read, or about a host that is not the agent's."""
        try:
            if kind == protocol.EXITED:
                ExitedRank.parse(text)
            if kind == protocol.UNFINISHED:
                int(text)
            if kind == protocol.PMI:
                host, _ = unpack_words(text)
                int(host)
            if kind == protocol.OUTPUT:
                return ProgramOutput.parse(text).host in self.hosts
            if kind == protocol.ENDED:
                end = ProgramEnd.parse(text)
                self.awaited.discard((end.host, end.number))
                return end.host in self.hosts
            if kind == protocol.LOST:
                lost = LostHost.parse(text)
                gone = {lost.name, *lost.below}
                self.awaited = {pair for pair in self.awaited if pair[0] not in gone}
                return gone <= {*self.hosts}
        except ValueError:
            return False
        return True

    def _greet(self, data: bytes) -> bytes:
        """Answer the agent's greeting by the archive of its modules, or by the tree; return what follows it."""
        self._printed += data
        self._most_printed -= len(data)
        if self._most_printed < 0:
            self._errors.last = b"its reply is too long"
            self.give_up()
            return b""
        greeting = take_greeting(self._printed, self._noise)
        if greeting == WANTED:
            archive = build_archive()
            self.connection.send_raw([b"%d\n" % len(archive), archive])
        if greeting in (SHELL, WANTED):
            self._has_shell = True
            return self._greet(b"")
        if greeting == self._version:
            self.ready = True
            self._errors.read()
            # Commands examine hosts without a run; srun has no login, but may print that Slurm binds no processes.
            self._errors.pass_on(login=bool(self._tree.run) and self.via != "srun")
            hosts = pack_words(host.encode() for host in self.hosts)
            for message in ((protocol.TREE, pack_words([self._tree.pack(), hosts])), *self._queue):
                self.connection.send(*message)
            self._queue.clear()
            return bytes(self._printed)
        if greeting is not None:  # another version of ddlrun is installed at the same path: start it with our modules
            self._stop_program()
            self._start_again()
        return b""

    def _stop_program(self) -> None:
        """Kill the client, and forget it."""
        self.connection.close()
        self._errors.close()
        self.give_up()
        if self.running:
            self.reap(0)
        self.given_up, self.status = False, None


def divide(hosts: Sequence[str], fan_out: int) -> list[list[str]]:
    """Divide hosts among the agents that an agent starts itself; the first of each part starts the others of it.

    >>> [len(part) for part in divide([*"0123456789"], 4)]
    [3, 3, 2, 2]
    """
    count = min(len(hosts), fan_out)
    least, more = divmod(len(hosts), count) if count else (0, 0)
    parts, at = [], 0
    for number in range(count):
        end = at + least + (1 if number < more else 0)
        parts.append(list(hosts[at:end]))
        at = end
    return parts
