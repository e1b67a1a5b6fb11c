"""The process that ends mpirun's daemon when the job is over, without a job: a socket and another program."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlrun.keeper import protocol
from ddlrun.keeper.daemon import open_daemon
from ddlrun.wire.authentication import Secret, accept_at
from ddlrun.wire.connection import run_handshake
from ddlrun.wire.frames import Decoder, Encoder
from tests.support.handshakes import welcome_all
from tests.support.processes import mark, running
from tests.support.waiting import wait_until

DEADLINE = 300.0
WATCHER = """
import _socket, os, sys, time
from ddlrun.keeper.connection import LauncherConnection
from ddlrun.keeper.daemon import Daemon, DaemonWatcher
from ddlrun.wire.authentication import Secret, connect_as
from ddlrun.wire.connection import run_handshake
link = _socket.socket(fileno=int(sys.argv[1]))
agreement = run_handshake(link, connect_as(Secret(sys.argv[3])), time.monotonic() + 300)
connection = LauncherConnection(link, agreement, heartbeat=0.0, program_secret="")
pid = int(sys.argv[2])
daemon = Daemon(pid=pid, pidfd=os.pidfd_open(pid), name="orted")
DaemonWatcher(daemon, connection, over_at=float("inf")).run()
"""


STOPPED = """
import os, signal, sys
from ddlrun.remote.manager_session import guard_session, start_manager
command = ["sh", "-c", f"sleep {sys.argv[2]} &"]
with guard_session(0.0, sys.argv[1]) as guard, start_manager(command, os.environ) as manager:
    guard(manager.pid)
    os.waitid(os.P_PID, manager.pid, os.WEXITED | os.WNOWAIT)
    print("started", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_what_a_process_manager_leaves_is_ended_while_ddlrun_is_stopped(tmp_path: Path) -> None:
    """Open MPI 4.1 leaves its ssh clients, or ddlrun's relays in their place."""
    seconds = mark()
    line = [sys.executable, "-c", STOPPED, str(tmp_path / "session"), seconds]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"started\n"
        wait_until(lambda: not running(seconds))
        launcher.send_signal(signal.SIGCONT)
    assert launcher.returncode == 0


class Watched:
    """A program in the place of a daemon, its watcher, and ddlrun's end of the connection."""

    def __init__(self) -> None:
        self.daemon = subprocess.Popen(["sleep", "3600"])
        self.launcher, connected = socket.socketpair()
        self.launcher.settimeout(DEADLINE)
        secret = Secret.draw()
        argv = [sys.executable, "-c", WATCHER, str(connected.fileno()), str(self.daemon.pid), secret.text]
        self.watcher = subprocess.Popen(argv, pass_fds=[connected.fileno()])
        connected.close()
        agreement = run_handshake(self.launcher, accept_at(secret, 0, welcome_all), time.monotonic() + DEADLINE)
        self.launcher.settimeout(DEADLINE)
        self._encoder = Encoder(agreement.outgoing, protocol.TO_KEEPER)
        self._decoder = Decoder(agreement.incoming, protocol.FROM_KEEPER)

    def send(self, kind: bytes) -> None:
        """Send a message to the watcher."""
        self.launcher.sendall(b"".join(self._encoder.encode(kind)))

    def close(self) -> int:
        """End everything; return the exit code of the watcher."""
        self.launcher.close()
        self.daemon.kill()
        self.daemon.wait()
        return self.watcher.wait(DEADLINE)

    def read_notes(self) -> list[str]:
        """Return the texts that the watcher sends before it closes its end."""
        messages: list[tuple[bytes, bytes]] = []
        while data := self.launcher.recv(1 << 16):
            messages += self._decoder.feed(data)
        return [text.decode() for kind, text in messages if kind == protocol.NOTE]


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    assert made.close() == 0


def test_a_daemon_that_ends_is_not_reported(watched: Watched) -> None:
    watched.daemon.terminate()
    assert watched.read_notes() == []


@pytest.mark.extra  # it has 8 s to end
def test_a_daemon_that_stays_is_killed(watched: Watched) -> None:
    watched.send(protocol.OVER)
    notes = watched.read_notes()
    assert (watched.daemon.wait(), len(notes)) == (-9, 1)
    assert f"(process {watched.daemon.pid}) did not end within 8 s after the job, and was killed" in notes[0]


@pytest.mark.extra  # it has 8 s to end
def test_a_daemon_that_stays_is_killed_without_ddlrun(watched: Watched) -> None:
    watched.launcher.close()
    assert watched.daemon.wait() == -9


@pytest.mark.parametrize(("name", "known"), [("orted", True), ("prted", True), ("ompi-prted", True), ("sleep", False)])
def test_a_daemon_is_known_by_its_name(name: str, known: object, tmp_path: Path) -> None:
    program = tmp_path / name
    program.symlink_to(shutil.which("sleep") or "")
    daemon = subprocess.Popen([program, "3600"])
    try:
        assert (open_daemon(daemon.pid) is not None) == known
    finally:
        daemon.kill()
        daemon.wait()
