"""One host's part of the TCP check: listen, connect to its partners, and print which of them were reached.

The text of this module is sent to each host's Python, which may have no ddlrun: it imports the standard library
alone.

Hosts start at different times, seconds apart on a busy machine. Therefore an attempt fails only after the partner has
shown that it listens, by its own connection to this host, or when time is up. A host listens until each partner has
received its answer or has failed; it learns the latter when the partner closes this host's connection, which stays
open until then.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import sys
import threading
import time
from typing import Any

PAUSE = 0.05
CONNECT_SECONDS = 2.0
# A greeting needs packets of the full size, which a network loses whose MTU is smaller than that of the hosts.
GREETING_BYTES = 8 << 10
LONGEST_LINE = GREETING_BYTES + 400
UNANSWERED = "greetings of 8 KiB have no answer: check that the MTU (ip link) is not larger than that of the network"
# Unauthenticated connections beyond which the oldest one is closed.
MOST_UNAUTHENTICATED = 64
# An attempt has failed after this many connections to a partner that listens.
MOST_FAILURES = 3
# What a shell reports for a program that SIGPIPE has ended.
EXIT_NO_READER = 141


class Partner:
    """A host that this host connects to, and that connects to this host."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.error: str | None = "no answer"
        """The last error of the attempt to reach it; None: it answered."""
        self.unresolved = False
        """Whether its name has no address, which is that error."""
        self.port: int | None = None
        """The port on which it listens; None until it has connected to this host."""
        self.tried = threading.Event()
        """Set when this host's attempt to reach it is over."""
        self.finished = threading.Event()
        """Set when its attempt to reach this host is over."""


class Peer:
    """The listener of this host, and its partners."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.since = time.time()
        self._end: float = time.monotonic() + task["seconds"]
        self._name, self._token, self._ports = task["own"], task["token"], task["ports"]
        self._partners = {name: Partner(name, address) for name, address in task["to"].items()}
        self._server = listen(task["bind"], self._ports)
        self._unauthenticated: list[socket.socket] = []
        self._port = 0 if self._server is None else self._server.getsockname()[1]

    def run(self) -> dict[str, Any]:
        """Try all partners, and serve them until their own attempts are over or time is up; return the report."""
        threads = [threading.Thread(target=self._reach, args=(partner,)) for partner in self._partners.values()]
        if self._server is not None:
            threads.append(threading.Thread(target=self._serve, args=(self._server,)))
        for thread in threads:
            thread.daemon = True
            thread.start()
        for partner in self._partners.values():
            for event in (partner.tried, partner.finished):
                event.wait(self._seconds_left())
        return {
            "listening": self._server is not None,
            "reached": {partner.name: partner.error for partner in self._partners.values()},
            "unresolved": [partner.name for partner in self._partners.values() if partner.unresolved],
            "since": self.since,
            "until": time.time(),
        }

    def _seconds_left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    # -- this host's connections ------------------------------------------------------------------

    def _reach(self, partner: Partner) -> None:
        """Connect to a partner until it answers, has failed, or time is up."""
        attempt = failures = 0
        while self._seconds_left() and failures < MOST_FAILURES:
            listens = partner.port is not None
            port = partner.port or self._ports[attempt % len(self._ports)]
            error = self._connect(partner, port, patient=listens)
            if error is None:
                return
            # On the other ports nothing listens, which says less.
            partner.error = UNANSWERED if UNANSWERED in (error, partner.error) else error
            attempt += 1
            if listens:
                failures += 1
            time.sleep(PAUSE)
        partner.tried.set()

    def _connect(self, partner: Partner, port: int, *, patient: bool) -> str | None:
        """Greet a partner on one port; return the error, or None when it has answered and has closed the connection.

        Another program that listens on the port may never answer. A `patient` attempt waits until time is up, as
        nothing but a busy machine delays the answer.
        """
        seconds = max(PAUSE, min(CONNECT_SECONDS, self._seconds_left()))
        opened = False
        try:
            with socket.create_connection((partner.address, port), seconds) as stream:
                if patient:
                    stream.settimeout(max(PAUSE, self._seconds_left()))
                opened = True
                stream.sendall(f"{self._token} {self._name} {self._port}{' ' * GREETING_BYTES}\n".encode())
                lines = stream.makefile("rb")
                token, _, name = lines.readline(LONGEST_LINE).decode().strip().partition(" ")
                if token != self._token:
                    return "another program answers"
                if name != partner.name:
                    return f"{name} answers"
                stream.sendall(b"\n")
                self._await_end(partner, stream)
        except (OSError, ValueError) as error:
            partner.unresolved = isinstance(error, socket.gaierror)
            if opened and isinstance(error, socket.timeout):
                return UNANSWERED
            return getattr(error, "strerror", None) or str(error) or "no answer"
        return None

    def _await_end(self, partner: Partner, stream: socket.socket) -> None:
        """Wait until a partner that has answered closes the connection."""
        partner.error = None
        partner.tried.set()
        try:
            stream.settimeout(max(PAUSE, self._seconds_left()))
            stream.recv(1)
        except OSError:
            pass
        partner.finished.set()

    # -- the partners' connections ----------------------------------------------------------------

    def _serve(self, server: socket.socket) -> None:
        """Answer each connection in a thread of its own."""
        while self._seconds_left():
            server.settimeout(max(PAUSE, self._seconds_left()))
            try:
                stream, _ = server.accept()
            except OSError:
                continue
            self._unauthenticated.append(stream)
            for oldest in self._unauthenticated[:-MOST_UNAUTHENTICATED]:
                self._forget(oldest)
                with contextlib.suppress(OSError):  # it has just been closed
                    oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._answer, args=(stream,), daemon=True).start()

    def _forget(self, stream: socket.socket) -> None:
        """Remove an authenticated or closed connection from the list."""
        with contextlib.suppress(ValueError):
            self._unauthenticated.remove(stream)

    def _answer(self, stream: socket.socket) -> None:
        """Answer a greeting that begins with the token, and hold the connection until its sender has been tried."""
        with stream:
            try:
                stream.settimeout(max(PAUSE, self._seconds_left()))
                lines = stream.makefile("rb")
                words = lines.readline(LONGEST_LINE).decode().split()
                if len(words) != 3 or words[0] != self._token:
                    return
                self._forget(stream)
                partner = self._partners[words[1]]
                partner.port = int(words[2])
                stream.sendall(f"{self._token} {self._name}\n".encode())
                if lines.readline(LONGEST_LINE):
                    partner.finished.set()
                    partner.tried.wait(self._seconds_left())
            except (OSError, ValueError, KeyError):
                pass
            finally:
                self._forget(stream)


def listen(address: str, ports: list[int]) -> socket.socket | None:
    """Return a socket that listens on the first free port, None if all are in use."""
    for port in ports:
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((address, port))
            server.listen(4096)
        except OSError:
            server.close()
        else:
            return server
    return None


def end_with_reader() -> None:
    """End this process when nothing reads its output any more: ddlrun, or its connection to this host, is gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    poll.poll()  # until the error that a pipe or a socket without a reader has
    os._exit(EXIT_NO_READER)


def main(task: dict[str, Any]) -> None:
    """Run the task and print its result as JSON."""
    threading.Thread(target=end_with_reader, daemon=True).start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    sys.stdout.write("@tcp " + json.dumps(Peer(task).run()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
