"""The daemons of a process manager over ddlrun's links: it starts a relay where it would start an ssh client.

Relays are shell scripts (ssh_relay.sh), which start in less than 1 ms; Python takes 7. They have a folder of FIFOs.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence

from ddlrun.agent.protocol import EXIT_LOST, LostHost, ProgramEnd, ProgramOutput
from ddlrun.errors import EXIT_KILLED
from ddlrun.keeper.settings import RELAYS
from ddlrun.managers.end import EndCode, EndFinding
from ddlrun.remote.links import HostLinks
from ddlrun.wire.loop import READ, Loop

# The command line of relays, to which the process manager adds the arguments of an ssh client.
RELAY = ("/bin/sh", os.path.join(os.path.dirname(os.path.abspath(__file__)), "ssh_relay.sh"), RELAYS)
REQUESTS = ".requests"
"""The FIFO into which each relay writes the name of its host; no host has such a name."""
CHUNK = 1 << 16
# The user's login shell runs the command, as under sshd: the process manager writes it for that.
SCRIPT = 'exec "${{SHELL:-/bin/sh}}" -c {command} </dev/null\n'
OutputHandler = Callable[[int, bytes], None]
"""Takes what a daemon writes to standard output (0) or standard error (1)."""


class Relay:
    """The relay of a host, and the daemon that ddlrun starts for it."""

    def __init__(self, host: str, relays: "Relays") -> None:
        """Make its FIFO, whose end means to the relay that ddlrun has ended."""
        self._host, self._relays = host, relays
        self._fd = _make_fifo(os.path.join(relays.folder, host))

    def start(self) -> None:
        """Start the daemon that a relay has requested."""
        path = os.path.join(self._relays.folder, f".{self._host}")
        with open(path, "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        os.unlink(path)  # nothing else would, if ddlrun and its guard were killed
        command = " ".join(words[words.index(self._host, self._relays.skipped) + 1 :])
        script = SCRIPT.format(command=shlex.quote(command))
        self._relays.links.agents.start(script, [self._host], self, linger=self._relays.linger)

    def on_output(self, output: ProgramOutput) -> None:
        """Pass on what the daemon has written."""
        self._relays.on_output(output.stream - 1, output.data)

    def on_end(self, end: ProgramEnd) -> None:
        """End the relay as the daemon has ended. A process manager may not print that a daemon was killed."""
        if end.code == EXIT_KILLED:
            text = f"host {self._host} was lost: the process manager's daemon there was killed"
            self._relays.losses.append(EndFinding(EndCode.LOST_DAEMON, self._host, text=text))
        self._end(end.code or 0)

    def on_loss(self, lost: LostHost) -> None:
        """End the relay if its host was lost, as an ssh client whose connection has ended."""
        if self._host in (lost.name, *lost.below):
            self._relays.add_loss(lost)
            self._end(EXIT_LOST)

    def _end(self, code: int) -> None:
        if self._fd >= 0:
            os.write(self._fd, b"%d\n" % code)

    def close(self) -> None:
        """Leave the relay to itself; what arrives of the daemon later is dropped."""
        os.close(self._fd)
        self._fd = -1


class Relays:
    """The relays of a job, in a folder of FIFOs. Only programs of this user can be relays."""

    def __init__(
        self, links: HostLinks, host_names: Sequence[str], variables: Mapping[str, str], linger: float, folder: str
    ) -> None:
        """Wait for relays. Raises OSError where the folder has no room for them.

        Args:
            links: The links to the hosts.
            host_names: The names of the hosts.
            variables: Those with which the process manager starts relays.
            linger: The time in which a daemon may end by itself once the link to its host has ended.
            folder: A folder that only this user can enter.
        """
        self.links, self.linger = links, linger
        self.skipped = len(links.launcher.words) if links.launcher.launcher == "ssh" else 0
        """The number of words before the name of the host, which the name of the folder ends with."""
        self.folder = os.path.join(folder, f"relays-{self.skipped}")
        os.mkdir(self.folder, 0o700)
        self.losses: list[EndFinding] = []
        """The hosts whose links have ended."""
        self.variables = {**variables, RELAYS: self.folder}
        """The variables of the process manager."""
        self._requests = _make_fifo(os.path.join(self.folder, REQUESTS))
        self._relays = {name: Relay(name, self) for name in host_names}
        self._received = b""

    def serve(self, loop: Loop, on_output: OutputHandler) -> None:
        """Serve relays in a loop, until that is closed. `on_output` takes what daemons write."""
        self.on_output = on_output
        loop.watch(self._requests, READ, lambda _events: self._on_requests())

    def _on_requests(self) -> None:
        *names, self._received = (self._received + os.read(self._requests, CHUNK)).split(b"\n")
        for name in names:
            self._relays[os.fsdecode(name)].start()

    def add_loss(self, lost: LostHost) -> None:
        """Record a host whose link has ended."""
        text = f"host {lost.name} was lost: {lost.reason}"
        self.losses.append(EndFinding(EndCode.LOST_HOST, lost.name, text=text))

    def close(self) -> None:
        """Wait for no relays any more, and leave those that run to themselves. A second call does nothing."""
        if self._requests >= 0:
            os.close(self._requests)
            self._requests = -1
            for relay in self._relays.values():
                relay.close()


def _make_fifo(path: str) -> int:
    """Make a FIFO that stays open at both ends; return its descriptor."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
