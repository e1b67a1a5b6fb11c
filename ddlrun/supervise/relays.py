"""The daemons of a process manager over ddlrun's links: it starts a relay where it would start an ssh client."""

import _socket  # socket itself takes 6 ms to import
import os
import shlex
import struct
from collections.abc import Callable, Mapping, Sequence

from ddlrun.agent import ssh_relay
from ddlrun.agent.protocol import LostHost, ProgramEnd, ProgramOutput
from ddlrun.errors import EXIT_KILLED
from ddlrun.managers.end import EndCode, EndFinding
from ddlrun.remote.links import HostLinks
from ddlrun.wire.connection import Connection
from ddlrun.wire.loop import READ, Loop

BACKLOG = 4096
CREDENTIALS = struct.Struct("3i")  # the ids of the process, user and group
# The user's login shell runs the command, as under sshd: the process manager writes it for that.
SCRIPT = 'exec "${{SHELL:-/bin/sh}}" -c {command} </dev/null\n'
OutputHandler = Callable[[int, bytes], None]
"""Takes what a daemon writes to standard output (0) or standard error (1)."""


class Relay:
    """A relay, and the daemon that ddlrun starts for it."""

    def __init__(self, link: _socket.socket, relays: "Relays") -> None:
        """Wait for the arguments of the relay."""
        self._connection, self._relays = Connection(link), relays
        self._received: bytes | None = b""
        """What has arrived of the arguments; None once they are complete."""
        self._host = ""
        self._connection.join(relays.loop, self._on_readable)

    def _on_readable(self) -> None:
        """Read the arguments; after them nothing arrives but the end of the relay, which the daemon outlives."""
        try:
            data = self._connection.read()
            if self._received is not None:
                self._received += data
                words = ssh_relay.parse_arguments(self._received)
                if words is not None:
                    self._received = None
                    self._start(words)
        except (OSError, ValueError):
            self._connection.close()

    def _start(self, words: Sequence[str]) -> None:
        at = self._relays.find_host(words)
        if at is None:
            self._connection.close()
            return
        self._host = words[at]
        script = SCRIPT.format(command=shlex.quote(" ".join(words[at + 1 :])))
        self._relays.links.agents.start(script, [self._host], self, linger=self._relays.linger)

    def on_output(self, output: ProgramOutput) -> None:
        """Pass on what the daemon has written."""
        self._relays.on_output(output.stream - 1, output.data)

    def on_end(self, end: ProgramEnd) -> None:
        """End the relay as the daemon has ended. A process manager may not print that a daemon was killed."""
        if end.code == EXIT_KILLED:
            text = f"host {self._host} was lost: the process manager's daemon there was killed"
            self._relays.losses.append(EndFinding(EndCode.LOST_DAEMON, self._host, text=text))
        self._connection.send_raw([b"%d" % (end.code or 0)])
        self._connection.close()

    def on_loss(self, lost: LostHost) -> None:
        """End the relay if its host was lost, as an ssh client whose connection has ended."""
        if self._host in (lost.name, *lost.below):
            self._relays.add_loss(lost)
            self._connection.close()

    def close(self) -> None:
        """Leave the relay to itself."""
        self._connection.close()


class Relays:
    """The relays of a job. Only programs of this user can be relays."""

    def __init__(
        self, links: HostLinks, host_names: Sequence[str], variables: Mapping[str, str], linger: float
    ) -> None:
        """Listen for relays, and let them wait.

        Args:
            links: The links to the hosts.
            host_names: The names of the hosts.
            variables: Those with which the process manager starts relays.
            linger: The time in which a daemon may end by itself once the link to its host has ended.
        """
        self.links, self._host_names, self.linger = links, host_names, linger
        self._relays: list[Relay] = []
        self.losses: list[EndFinding] = []
        """The hosts whose links have ended."""
        name = f"ddlrun-{os.urandom(16).hex()}"
        self.variables = {**variables, ssh_relay.VARIABLE: name}
        """The variables of the process manager."""
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)

    def serve(self, loop: Loop, on_output: OutputHandler) -> None:
        """Serve relays in a loop, until that is closed. `on_output` takes what daemons write."""
        self.loop, self.on_output = loop, on_output
        loop.watch(self._listener.fileno(), READ, lambda _events: self._accept())

    def _accept(self) -> None:
        fd, _ = self._listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - as socket.accept does
        link = _socket.socket(fileno=fd)
        credentials = link.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, CREDENTIALS.size)
        if CREDENTIALS.unpack(credentials)[1] == os.geteuid():
            self._relays.append(Relay(link, self))
        else:
            link.close()

    def find_host(self, words: Sequence[str]) -> int | None:
        """Return the index of the host's name in the arguments of an ssh client; None if there is none."""
        at = len(self.links.launcher.words) if self.links.launcher.launcher == "ssh" else 0
        return next((index for index in range(at, len(words)) if words[index] in self._host_names), None)

    def add_loss(self, lost: LostHost) -> None:
        """Record a host whose link has ended."""
        text = f"host {lost.name} was lost: {lost.reason}"
        self.losses.append(EndFinding(EndCode.LOST_HOST, lost.name, text=text))

    def close(self) -> None:
        """Wait for no relays any more, and leave those that run to themselves."""
        self._listener.close()
        for relay in self._relays:
            relay.close()
