"""An agent on another host, as the agent that has started it sees it, and the program that leads there."""

from __future__ import annotations

import os

from ddlrun.agent import protocol
from ddlrun.agent.archive import BOOTSTRAP, build_archive
from ddlrun.agent.local_ranks import fork
from ddlrun.agent.protocol import pack_words
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.forks import complain
from ddlrun.keeper.proc_files import StopDetector
from ddlrun.wire.frames import FrameError
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddlrun.agent.protocol import AgentJob, HostRanks
    from ddlrun.wire.connection import Connection

GREETING = b"@ddlrun-agent "
"""The beginning of the line by which an agent reports that it runs: its version, or WANTED."""
WANTED = b"archive"
"""The greeting of a host without ddlrun, which waits for the archive of the agent's modules."""

IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that Python ignores, which an exec would not change."""
EXIT_NOT_FOUND = 127


class ClientGroup:
    """A process group that gets SIGTERM when this process ends, even if it is killed.

    Where the network is cut, the programs would not notice that for minutes. The leader of the group waits for the end
    of a pipe that only this process holds. A program does not arrange that itself, by prctl(2) after a fork: to fork
    Python takes 2 ms more for each program than posix_spawn.
    """

    def __init__(self) -> None:
        """Start the leader."""
        end, self._held = os.pipe()

        def lead() -> None:
            os.setpgid(0, 0)
            os.read(end, 1)
            os.kill(0, signal.SIGTERM)

        self._leader = fork(lead, end)
        os.setpgid(self._leader, self._leader)
        os.close(end)

    def start(self, words: list[str]) -> tuple[int, Connection]:
        """Start a program with pipes as its standard input and output; return its process id and the pipes."""
        stdin, stdout = os.pipe(), os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, stdin[0], 0), (os.POSIX_SPAWN_DUP2, stdout[1], 1)]
        try:
            pid = os.posix_spawnp(
                words[0], words, os.environ, file_actions=actions, setpgroup=self._leader, setsigdef=IGNORED
            )
        except OSError as error:
            complain(f"{os.uname().nodename}: {words[0]}: {error.strerror}")
            pid = fork(lambda: os._exit(EXIT_NOT_FOUND))  # as a shell does
        for fd in (stdin[0], stdout[1]):
            os.close(fd)
        return pid, PipeConnection(stdout[0], stdin[1])


class Child:
    """An agent on another host, which leads a part of the job's hosts."""

    def __init__(self, job: AgentJob, hosts: Sequence[HostRanks], *, version: str, group: ClientGroup) -> None:
        """Start the agent on the first of the hosts; it starts those of the others.

        Args:
            job: The job.
            hosts: The hosts.
            version: The version of ddlrun, which the agent must have too.
            group: Starts the program that leads to the host.
        """
        self._job, self.hosts = job, list(hosts)
        self._version = version.encode()
        self._group = group
        self.ready = False
        """Whether the agent runs and has the job."""
        self.done = False
        """Whether all its ranks have ended."""
        self.altered = False
        """Whether a message from or to the agent was altered on the way."""
        self.status: int | None = None
        """The wait status of the program that leads to the host, once it has ended."""
        self._given_up = False
        self._start(ship=False)

    @property
    def name(self) -> str:
        """The name of the agent's host."""
        return self.hosts[0].name

    @property
    def over(self) -> bool:
        """Whether nothing more is expected from it."""
        return self.done or self.gone or (self._given_up and self.status is not None)

    @property
    def gone(self) -> bool:
        """Whether the program that leads to the host has ended, and all that it has passed on is read."""
        return self.status is not None and not self.connection.open

    @property
    def via(self) -> str:
        """The name of the program that leads to the host."""
        return os.path.basename(self._job.launcher[0])

    def _start(self, *, ship: bool) -> None:
        script = _script(self._job, ship=ship).encode(errors="surrogateescape")
        words = [self.name if word == "@host" else word for word in self._job.launcher]
        words[-1] = words[-1].replace("@bytes", str(len(script)))
        self.pid, self.connection = self._group.start(words)
        self._stop = StopDetector(self.pid)
        self._printed = bytearray()
        """What has arrived before the greeting."""
        protocol.begin(self.connection, sent=protocol.TO_AGENT, received=protocol.FROM_AGENT)
        self.connection.send_raw([script])

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Read what has arrived; yield the complete messages, and ALTERED for one that was altered."""
        connection = self.connection
        try:
            data = connection.read()
            if not self.ready:
                data = self._greet(data)
            if self.ready:
                yield from connection.decoder.feed(data)
        except FrameError:
            yield protocol.ALTERED, b""
        except OSError:
            connection.close()

    def _greet(self, data: bytes) -> bytes:
        """Answer the agent's greeting by the archive of its modules, or by the job; return what follows it."""
        self._printed += data
        greeting = take_greeting(self._printed)
        if greeting == WANTED:
            archive = build_archive()
            self.connection.send_raw([b"%d\n" % len(archive), archive])
            return self._greet(b"")
        if greeting == self._version:
            self.ready = True
            hosts = pack_words(host.pack() for host in self.hosts)
            self.connection.send(protocol.JOB, pack_words([self._job.pack(), hosts]))
            return bytes(self._printed)
        if greeting is not None:  # another version of ddlrun is installed at the same path: start it with our modules
            self.connection.close()
            self._start(ship=True)
        return b""

    def describe_loss(self, starter: str) -> str:
        """Return the reason why the agent is gone.

        Args:
            starter: The host of the agent that has started it; empty: ddlrun's own.
        """
        place = f" on {starter}" if starter else ""
        status = self.status or 0
        end = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        loss = "the connection to its agent ended" if self.ready else "its agent did not start"
        if self.altered:
            return f"a message of its agent, or to it, was altered on the way ({self.via}{place})"
        return f"{loss} ({self.via}{place}: {end})"

    def resume(self, now: float) -> bool:
        """Continue the program that leads to the host if it stays stopped; return True if so."""
        if self.status is not None or not self._stop.stays_stopped(now):
            return False
        os.kill(self.pid, signal.SIGCONT)
        return True

    def give_up(self) -> None:
        """Kill the program that leads to the host, and expect nothing more."""
        self._given_up = True
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)


def take_greeting(printed: bytearray) -> bytes | None:
    """Remove all lines up to the first one with a greeting; return that, None if it has not arrived.

    What a login shell prints before it is dropped.
    """
    while b"\n" in printed:
        line, _, rest = bytes(printed).partition(b"\n")
        printed[:] = rest
        _, mark, greeting = line.partition(GREETING)
        if mark:
            return greeting
    return None


def _script(job: AgentJob, *, ship: bool) -> str:
    """Return the sh script that becomes the agent: that of the host's ddlrun, or one that waits for the archive."""
    run = _quote(job.environ.get("DDLRUN_RUN", ""))
    python, script = _quote(job.python), _quote(job.script)
    installed = "" if ship else f'[ ! -r {script} ] || exec "$python" -I -S {script} --agent\n'
    return (  # the braces make sh parse all of it before it runs any
        f'{{\npython={python}; [ -x "$python" ] || python=python3\n'
        f"DDLRUN_RUN={run}; export DDLRUN_RUN\n"
        f'{installed}exec "$python" -I -S -c {_quote(BOOTSTRAP)} {script} --agent\n}}\n'
    )


def _quote(word: str) -> str:
    """Return a word as sh reads it; shlex takes 5 ms to import."""
    return "'" + word.replace("'", "'\\''") + "'"
