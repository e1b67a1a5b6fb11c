"""The console of a job: real launches on this machine, under both major versions of Open MPI."""

import os
import pty
import re
import select
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import launch_line
from tests.support.launches import run


@pytest.fixture
def line(mpirun: str, tmp_path: Path) -> list[str]:
    return launch_line(mpirun, tmp_path, "--quiet")


def test_ranks_wait_for_a_slow_reader(line: list[str]) -> None:
    """The reader is slower than the heartbeat, and the output larger than the buffers."""
    argv = [*line, "--heartbeat", "1", "-np", "2", "sh", "-c", "seq 1 300000; echo end"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        time.sleep(3)
        out, err = job.communicate()
    assert (job.returncode, err) == (0, "")
    assert len(out.splitlines()) == 600_002


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
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()} == {0o600}


def test_a_full_device_for_the_output_ends_the_job(line: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*line, "-np", "2", "seq", "100000"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, "standard output: No space left on device" in done.stderr) == (1, True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(line: list[str], tmp_path: Path, closed: str) -> None:
    job = ["sh", "-c", f'"$@" {closed}', "sh", *line, "-np", "2", "sh", "-c", "echo out; echo err >&2; cat"]
    assert subprocess.run(job, check=False, timeout=60, stdin=subprocess.DEVNULL).returncode == 0
    assert (tmp_path / "run" / "stdout.log").read_text().count("out") == 2


def test_a_socket_as_standard_input(line: list[str]) -> None:
    ours, theirs = socket.socketpair()
    with theirs, subprocess.Popen([*line, "-np", "1", "cat"], stdin=theirs.fileno(), stdout=subprocess.PIPE) as job:
        ours.sendall(b"over a socket\n")
        ours.shutdown(socket.SHUT_WR)
        assert job.communicate(timeout=60)[0] == b"over a socket\n"
    ours.close()


def test_part_of_a_line_is_printed_before_its_end(line: list[str]) -> None:
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do printf .; sleep 0.25; done; echo; echo end"
    with subprocess.Popen([*line, "-np", "1", "sh", "-c", script], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        first = os.read(job.stdout.fileno(), 100)
        rest = job.stdout.read()
    assert 0 < len(first) < 12
    assert first + rest == b"............\nend\n"


def test_a_terminal_that_is_not_read_does_not_end_the_job(line: list[str]) -> None:
    ours, theirs = pty.openpty()
    argv = [*line, "--heartbeat", "1", "-np", "2", "sh", "-c", "seq 1 20000; echo end"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as job:
        os.close(theirs)
        time.sleep(3)
        shown = read_all(ours, lambda: job.poll() is not None)
    assert (job.returncode, len(shown.splitlines())) == (0, 40_002)


def test_output_files_are_overwritten(line: list[str], tmp_path: Path) -> None:
    for text in ("first", "second"):
        line[line.index("--run-dir") + 1] = str(tmp_path / text)
        assert run(line, "-np", "1", "--output-filename", str(tmp_path / "files"), "echo", text).returncode == 0
    assert (tmp_path / "files" / "rank.0" / "stdout").read_text() == "second\n"
    (tmp_path / "file").touch()
    line[line.index("--run-dir") + 1] = str(tmp_path / "three")
    refused = run(line, "-np", "1", "--output-filename", str(tmp_path / "file" / "x"), "true")
    assert (refused.returncode, "--output-filename" in refused.stderr) == (2, True)


def test_the_status_line_is_for_terminals_alone(line: list[str]) -> None:
    ours, theirs = pty.openpty()
    argv = [word for word in line if word != "--quiet"]
    with subprocess.Popen(
        [*argv, "-np", "2", "sleep", "3"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    ) as job:  # fmt: skip
        os.close(theirs)
        shown = read_all(ours, lambda: job.poll() is not None)
    assert job.returncode == 0
    assert re.search(r"\r\x1b\[Kddlrun 0:00:0\d \| 2 of 2 ranks \| last output \d s ago", shown)
    assert shown.endswith("\r\x1b[K")


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
