"""The console of a job: real launches on this machine, under both major versions of Open MPI."""

import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import launch_line
from tests.support.launches import run
from tests.support.processes import started, wait_for
from tests.support.terminal import shell_at_terminal


@pytest.fixture
def line(mpirun: str, tmp_path: Path) -> list[str]:
    return launch_line(mpirun, tmp_path, "--quiet")


# The readers stay away until the pipe is full, or for longer than a keeper may be silent.
@pytest.mark.parametrize("heartbeat", [300, pytest.param(15, marks=pytest.mark.extra)])
@pytest.mark.openmpi(5)
def test_ranks_wait_for_a_slow_reader(mpirun: str, tmp_path: Path, heartbeat: int) -> None:
    """The readers of a pipe and of a terminal are slow, and the output exceeds the buffers."""
    ours, theirs = pty.openpty()
    lines = [launch_line(mpirun, tmp_path / name, "--quiet") for name in ("pipe", "pty")]
    for line in lines:
        line[line.index("--heartbeat") + 1] = str(heartbeat)
    to_pipe, to_pty = ([*line, "-np", "2", "sh", "-c"] for line in lines)
    reader, writer = os.pipe()
    with (
        open(reader, encoding="ascii") as pipe,
        started([*to_pipe, "seq 1 300000; echo end"], stdout=writer) as piped,
        started([*to_pty, "seq 1 20000; echo end"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as shown,
    ):
        os.close(theirs)
        wait_for(lambda: not select.select([], [writer], [], 0)[1])  # the pipe is full
        os.close(writer)
        if heartbeat == 15:
            before = sum(psutil.Process(piped.pid).cpu_times()[:2])
            time.sleep(21)
            assert sum(psutil.Process(piped.pid).cpu_times()[:2]) - before < 3  # ddlrun sleeps meanwhile
        out = pipe.read()
        text = read_all(ours, lambda: shown.poll() is not None)
    assert (piped.returncode, len(out.splitlines())) == (0, 600_002)
    assert (shown.returncode, len(text.splitlines())) == (0, 40_002)


@pytest.mark.openmpi(5)
def test_output_of_a_failed_job_waits_for_a_slow_reader(line: list[str], tmp_path: Path) -> None:
    """After rank 1 has failed, rank 0 writes more than ddlrun holds in memory, and the reader comes only then."""
    script = f"""
        if test $OMPI_COMM_WORLD_RANK = 1; then until test -s {tmp_path}/run/ranks/0.log; do :; done; exit 7; fi
        trap '' TERM; yes 0123456789 | head -c 22000000; echo end"""
    argv = [*line, "--grace", "300", "-np", "2", "--output", "no-tag", "sh", "-c", script]
    log = tmp_path / "run" / "ranks" / "0.log"
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        wait_for(lambda: log.exists() and log.stat().st_size == 22_000_004)
        out, err = job.communicate()
    assert (job.returncode, len(out), out[-4:]) == (7, 22_000_004, b"end\n")
    assert b"not printed" not in err


@pytest.mark.openmpi(5)
def test_output_that_is_not_printed_is_counted(line: list[str], tmp_path: Path) -> None:
    """A job is ended while its reader does not read."""
    reader, writer = os.pipe()
    with (
        open(reader, "rb") as pipe,
        started([*line, "-np", "1", "yes"], stdout=writer, stderr=subprocess.PIPE, text=True) as job,
    ):
        wait_for(lambda: not select.select([], [writer], [], 0)[1])  # the pipe is full
        os.close(writer)
        job.terminate()
        err = job.stderr.read()
        out = pipe.read()
    count = re.search(r"ddlrun: exit code 143; (\d+) bytes of output were not printed; run \S+; logs: .*\n\Z", err)
    assert count, err
    assert len(out) + int(count[1]) == (tmp_path / "run" / "ranks" / "0.log").stat().st_size


@pytest.mark.openmpi(5)
@pytest.mark.parametrize("name", ["QUIT", "ALRM"])
def test_signals_that_end_a_job_like_term(line: list[str], name: str) -> None:
    argv = ["env", f"--default-signal={name}", *line, "-np", "1", "sh", "-c", "echo up; exec sleep 3600"]
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "up\n"
        job.send_signal(signal.Signals[f"SIG{name}"])
        err = job.stderr.read()
    assert job.returncode == 128 + signal.Signals[f"SIG{name}"]
    assert f"ddlrun: ended by SIG{name} after" in err


def test_tags_times_ranks_and_files(line: list[str], tmp_path: Path) -> None:
    host = os.uname().nodename
    script = "echo out $OMPI_COMM_WORLD_RANK; echo err >&2"
    done = run(line, "-np", "2", "--output-filename", str(tmp_path / "files"), "sh", "-c", script)
    assert sorted(done.stdout.splitlines()) == [f"[0@{host}] out 0", f"[1@{host}] out 1"]
    assert sorted(done.stderr.splitlines()) == [f"[0@{host}] err", f"[1@{host}] err"]
    files = {str(path.relative_to(tmp_path / "files")): path for path in (tmp_path / "files").rglob("*/*")}
    assert sorted(files) == [f"rank.{rank}/{stream}" for rank in (0, 1) for stream in ("stderr", "stdout")]
    assert files["rank.1/stdout"].read_text() == "out 1\n"
    assert files["rank.1/stdout"].stat().st_mode & 0o777 == 0o600
    line[line.index("--run-dir") + 1] += "2"
    done = run(line, "-np", "2", "--ranks", "1", "--timestamp-output", "sh", "-c", script)
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d \[1@{re.escape(host)}\] out 1\n", done.stdout)


def test_the_run_folder_is_private(line: list[str], tmp_path: Path) -> None:
    assert run(line, "-np", "1", "sh", "-c", "echo x; echo y >&2; exit 3").returncode == 3
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    paths = [*(tmp_path / "run").rglob("*")]
    assert {(path.is_dir(), path.stat().st_mode & 0o777) for path in paths} == {(False, 0o600), (True, 0o700)}


def test_a_full_device_for_the_output_ends_the_job(line: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*line, "-np", "2", "seq", "100000"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=300,
        )
    assert (done.returncode, "standard output: No space left on device" in done.stderr) == (1, True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(line: list[str], tmp_path: Path, closed: str) -> None:
    job = ["sh", "-c", f'"$@" {closed}', "sh", *line, "-np", "2", "sh", "-c", "echo out; echo err >&2; cat"]
    assert subprocess.run(job, check=False, timeout=300, stdin=subprocess.DEVNULL).returncode == 0
    logs = (tmp_path / "run" / "ranks").iterdir()
    assert [sorted(log.read_text().split()) for log in logs] == [["err", "out"]] * 2


def test_a_socket_as_standard_input(line: list[str]) -> None:
    ours, theirs = socket.socketpair()
    with theirs, started([*line, "-np", "1", "cat"], stdin=theirs.fileno(), stdout=subprocess.PIPE) as job:
        ours.sendall(b"over a socket\n")
        ours.shutdown(socket.SHUT_WR)
        assert job.communicate(timeout=300)[0] == b"over a socket\n"
    ours.close()


def test_part_of_a_line_is_printed_before_its_end(line: list[str]) -> None:
    argv = [*line, "-np", "1", "sh", "-c", "printf ...; read line; echo $line"]
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout.read(3) == b"..."
        job.stdin.write(b"end\n")
        job.stdin.close()
        assert job.stdout.read() == b"end\n"
    assert job.returncode == 0


def test_output_files_are_overwritten(line: list[str], tmp_path: Path) -> None:
    for text in ("first", "second"):
        line[line.index("--run-dir") + 1] = str(tmp_path / text)
        assert run(line, "-np", "1", "--output-filename", str(tmp_path / "files"), "echo", text).returncode == 0
    assert (tmp_path / "files" / "rank.0" / "stdout").read_text() == "second\n"
    (tmp_path / "file").touch()
    line[line.index("--run-dir") + 1] = str(tmp_path / "three")
    refused = run(line, "-np", "1", "--output-filename", str(tmp_path / "file" / "x"), "true")
    assert (refused.returncode, "--output" in refused.stderr) == (2, True)


def test_the_status_line_is_for_terminals_alone(line: list[str], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    argv = [word for word in line if word != "--quiet"]
    argv += ["-np", "2", "sh", "-c", f"while ! test -e {tmp_path}/go; do sleep 0.1; done"]
    terminal = {"stdin": subprocess.DEVNULL, "stdout": theirs, "stderr": theirs, "env": {**os.environ, "TERM": "xterm"}}
    with started(argv, **terminal) as job:
        os.close(theirs)
        status = re.compile(r"\r\x1b\[Kddlrun 0:\d\d:\d\d \| 2 of 2 ranks \| last output (\d+:)*\d+( s)? ago")
        shown = ""
        while not status.search(shown):
            assert select.select([ours], [], [], 120)[0], shown
            shown += os.read(ours, 4096).decode()
        (tmp_path / "go").touch()
        shown += read_all(ours, lambda: job.poll() is not None)
    assert job.returncode == 0
    assert shown.endswith("\r\x1b[K")


@pytest.mark.openmpi(5)
def test_a_job_in_the_background_leaves_the_prompt_alone(line: list[str], tmp_path: Path) -> None:
    job = [word for word in line if word != "--quiet"]
    job += ["-np", "1", "sh", "-c", "sleep 2.5; echo slept; until test -e go; do sleep 0.1; done"]
    environ = {**os.environ, "TERM": "xterm", "PS1": "$ "}
    with shell_at_terminal(["bash", "--norc"], environ, tmp_path) as terminal:
        terminal.send(f"{shlex.join(job)} &\n")
        terminal.wait_for(r"[\r\n]slept")
        assert "ranks | last output" not in terminal.output
        terminal.send("fg\n")
        terminal.wait_for(r"1 of 1 ranks \| last output")
        (tmp_path / "go").touch()
        terminal.wait_for(r"\$ $")


def read_all(fd: int, over: Callable[[], bool]) -> str:
    data = b""
    while not over() or select.select([fd], [], [], 0)[0]:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                chunk = os.read(fd, 4096)
            except OSError:
                break
            if not chunk:
                break
            data += chunk
    os.close(fd)
    return data.decode()
