"""Keepers that know the secret and break the protocol: a program in the place of mpirun pretends to be them."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddlrun.errors import EXIT_UNREACHABLE
from ddlrun.keeper import protocol
from tests.conftest import launch_line
from tests.support.launches import run

KEEPER = """
import os, sys, time
from ddlrun.keeper.connection import connect

messages = {messages!r}
links = []
for kind, text in messages:
    if kind is None:
        links.append(connect(os.environ["DDLRUN_CHANNEL"], 300, 0))
        links[-1].link.settimeout(300)
    elif kind == "raw":
        links[-1].link.sendall(text)
    else:
        links[-1].link.sendall(b"".join(links[-1].encoder.encode(kind, text)))
for link in links:
    while link.link.recv(1000):
        pass
"""
CONNECT = (None, b"")
HELLO = (protocol.HELLO, b"0\tn0\t0\t1")
ATTACKED = "failed after [0-9.]+ s: the connection of {} was disturbed or attacked: {}"
NO_RANK = "{} is not a number from 0 to 1"
WRONG_STATE = "it sent a message of kind {}, .*"
OF_GREETING = "rank 0 on localhost"
ESCAPES = b"\x1b]0;x\x07"
BEHAVIOURS = {
    "rank out of range": ([(protocol.HELLO, b"7\tn0\t0\t1")], OF_GREETING, NO_RANK.format("'7'")),
    "escapes as rank": (
        [(protocol.HELLO, ESCAPES + b"\tn0\t0\t1")],
        OF_GREETING,
        NO_RANK.format(r"'\\x1b]0;x\\x07'"),
    ),
    "escapes as host": ([(protocol.HELLO, b"0\t" + ESCAPES + b"\t0\t1"), HELLO], r"rank 0 on \\x1b]0;x\\x07", ".*"),
    "second hello": ([HELLO, HELLO], "rank 0 on n0", WRONG_STATE.format("b'h'")),
    "second keeper": ([HELLO, CONNECT, HELLO], OF_GREETING, "rank 0 has another keeper"),
    "output without rank": ([(protocol.OUT, b"x")], OF_GREETING, WRONG_STATE.format("b'o'")),
    "no signal": ([HELLO, (protocol.SIGNALLED, b"666")], "rank 0 on n0", "'666' is not a number from 0 to [0-9]+"),
    "impossible end": ([HELLO, (protocol.ENDED, b"1\t2")], "rank 0 on n0", "its report of the end cannot be read"),
    "samples without an order": (
        [HELLO, (protocol.USAGE, b"1")],
        "rank 0 on n0",
        "it reports its use of resources without an order",
    ),
    "oversized": ([HELLO, ("raw", b"o\xff\xff\xff\xff" + bytes(16))], "rank 0 on n0", "a message was altered or .*"),
    "forged": ([HELLO, ("raw", b"o\0\0\0\0" + bytes(16))], "rank 0 on n0", "a message was altered or forged .*"),
    "a host to log in to": ([(protocol.HELLO, b"0\t-oProxyCommand=touch pwned\t0\t1"), HELLO], "rank 0 on .*", ".*"),
}


def stand_in(path: Path, mpirun: str, messages: Sequence[tuple[object, bytes]]) -> str:
    """Write a program that has mpirun's version and plays a keeper."""
    script = path.with_suffix(".py")
    script.write_text(KEEPER.format(messages=messages))
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {mpirun} --version\nexec {sys.executable} {script}\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.extra
@pytest.mark.openmpi(4)
@pytest.mark.parametrize(("messages", "label", "problem"), BEHAVIOURS.values(), ids=BEHAVIOURS)
def test_a_hostile_keeper_ends_the_job(
    mpirun: str, tmp_path: Path, messages: Sequence[tuple[object, bytes]], label: str, problem: str
) -> None:
    line = launch_line(stand_in(tmp_path / "mpirun", mpirun, [CONNECT, *messages]), tmp_path)
    done = run(line, "-np", "2", "true")
    assert done.returncode == EXIT_UNREACHABLE, done.stderr
    assert re.search(ATTACKED.format(label, problem), done.stderr), done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.openmpi(4)
def test_a_silent_keeper_that_has_not_named_its_host_is_that_of_its_greeting(mpirun: str, tmp_path: Path) -> None:
    line = launch_line(stand_in(tmp_path / "mpirun", mpirun, [CONNECT]), tmp_path)
    done = run(line, "--heartbeat", "1", "-np", "2", "true")
    assert done.returncode == EXIT_UNREACHABLE
    assert "no sign of life from localhost for 1 s" in done.stderr


MARKUP = b"</pre></td><script>alert(1)</script><img src=x onerror=alert(1)>\"'"
TEXTS = b"\x1b]52;c;cm0gLXJm\x07\x1b[2Jtext\x9b31m\r\n"
BOUND = b"\t".join((b"0", b"n0" + MARKUP, b"0" + TEXTS, b"0" + MARKUP, b"0", b"problem" + TEXTS + MARKUP))
ENDED = protocol.RankEnd(
    exit_code=3, seconds=1.0, reason="\x1b[2Jcause" + MARKUP.decode(),
    tail="\x1b[31mred\x1b[0m \x1b]0;title\x07 end" + MARKUP.decode() + "\n",
).pack()  # fmt: skip


@pytest.mark.openmpi(4)
def test_control_characters_and_markup_of_keepers_are_escaped(mpirun: str, tmp_path: Path) -> None:
    texts = (protocol.HELLO, b"0\t\x1b[2Jn0" + MARKUP + b"\t0\t1"), (protocol.NOTE, TEXTS), (protocol.BOUND, BOUND)
    messages = [CONNECT, *texts, (protocol.ENDED, ENDED)]
    line = launch_line(stand_in(tmp_path / "mpirun", mpirun, messages), tmp_path)
    done = run(line, "-np", "1", "true")
    assert done.returncode == 3, done.stderr
    assert r"ddlrun: \x1b]52;c;cm0gLXJm\x07" in done.stderr
    assert r"because: \x1b[2Jcause" in done.stderr
    assert r"    red \x1b]0;title\x07 end" in done.stderr
    page = tmp_path / "page.html"
    report = [sys.executable, "-m", "ddlrun", "report", str(tmp_path / "run"), "-o", str(page)]
    shown = subprocess.run(report, capture_output=True, text=True, check=True)
    html = page.read_text()
    assert "cause" in html
    assert "<script>alert" not in html
    assert "<img" not in html
    for text in (done.stdout, done.stderr, shown.stdout, html):
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\r"}


LATE_KEEPER = """
import os, select
from ddlrun.keeper import protocol
from ddlrun.keeper.connection import connect

def end(rank):
    link = connect(os.environ["DDLRUN_CHANNEL"], 300, 0)
    link.send(protocol.HELLO, f"{rank}\\t{os.uname().nodename}\\t{rank}\\t1".encode())
    link.send(protocol.ENDED, protocol.RankEnd(exit_code=3).pack())
    link.flush()
    while link.open:
        select.select([link], [], [])
        if any(kind == protocol.LEAVE for kind, _ in link.receive()):
            open(f"{os.path.dirname(__file__)}/{rank}.left", "w").close()
            link.finish_sending()

end(0)
end(1)
"""


@pytest.mark.openmpi(4)
def test_a_keeper_that_connects_after_the_job_has_failed_may_leave(mpirun: str, tmp_path: Path) -> None:
    program = stand_in(tmp_path / "mpirun", mpirun, [])
    (tmp_path / "mpirun.py").write_text(LATE_KEEPER)
    done = run(launch_line(program, tmp_path), "-np", "2", "true")
    assert done.returncode == 3, done.stderr
    assert [path.name for path in sorted(tmp_path.glob("*.left"))] == ["0.left", "1.left"]


# An mpirun whose first thread, which has started the keeper, ends once the program runs; another one stays.
DYING_THREAD = """
import ctypes, os, subprocess, sys, threading, time
at = next(at for at, word in enumerate(sys.argv) if word.endswith("keeper/start.py"))
rank = {{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}}
subprocess.Popen([sys.executable, "-I", "-S", *sys.argv[at:]], env={{**os.environ, **rank}})
threading.Thread(target=time.sleep, args=(600,)).start()
while not os.path.exists("{folder}/started"):
    time.sleep(0.02)
ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""


@pytest.mark.openmpi(4)
def test_a_keeper_notices_the_end_of_its_parent_from_the_first_thread_on(mpirun: str, tmp_path: Path) -> None:
    script, program = tmp_path / "dying.py", tmp_path / "mpirun"
    script.write_text(DYING_THREAD.format(folder=tmp_path))
    start = f'exec {sys.executable} {script} "$@"'
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {mpirun} --version\n{start}\n')
    program.chmod(0o755)
    done = run(launch_line(str(program), tmp_path), "-np", "1", "sh", "-c", f"touch {tmp_path}/started; sleep 600")
    assert done.returncode == EXIT_UNREACHABLE, done.stderr
    assert "had to end: mpirun, or its daemon on that host, is gone" in done.stderr
