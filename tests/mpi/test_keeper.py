"""The keepers of ranks: real launches on this machine, under both major versions of Open MPI."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import launch_line
from tests.mpi.test_launch import running, wait_for
from tests.support.launches import run


@pytest.fixture
def line(mpirun: str, tmp_path: Path) -> list[str]:
    return launch_line(mpirun, tmp_path, "--quiet")


def word() -> str:
    """Return a number of seconds for `sleep` by which the test's own processes can be found."""
    return f"9{os.getpid()}.{time.monotonic_ns()}"


@pytest.mark.parametrize("start", ["{} &", "setsid {} &", "nohup {} >/dev/null 2>&1 &", "(setsid sh -c '{} & exit' &)"])
def test_children_of_a_rank_end_with_it(line: list[str], start: str) -> None:
    mark = word()
    done = run(line, "-np", "1", "sh", "-c", f"{start.format(f'sleep {mark}')}\necho done")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert running(mark) == []


def test_output_of_a_child_after_the_end_of_its_rank_is_read(line: list[str]) -> None:
    done = run(line, "-np", "1", "bash", "-c", "echo first > >(sleep 0.3; cat; echo second)")
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n")


def test_a_signal_gives_all_ranks_one_grace(line: list[str]) -> None:
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('saved'))); print('up'); time.sleep(60)"
    )
    with subprocess.Popen(
        [*line, "-np", "2", "sh", "-c", f'{sys.executable} -c "{script}"; exit 0'], stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert [job.stdout.readline()[-3:] for _ in range(2)] == ["up\n"] * 2
        job.terminate()
        out = job.stdout.read()
    assert (job.returncode, out.count("saved")) == (143, 2)


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(line: list[str]) -> None:
    mark = word()
    script = f"trap '' TERM INT; echo up; while :; do sleep {mark}; done"
    with subprocess.Popen([*line, "--grace", "1", "-np", "1", "sh", "-c", script], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"up\n"
        job.send_signal(signal.SIGINT if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else signal.SIGTERM)
    assert job.returncode in (130, 143)
    assert running(mark) == []


def test_a_signal_is_passed_on(line: list[str]) -> None:
    script = "import signal, time; signal.signal(10, lambda *_: exit(print('got it'))); print('up'); time.sleep(60)"
    with subprocess.Popen([*line, "-np", "2", sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert [job.stdout.readline()[-3:] for _ in range(2)] == ["up\n"] * 2
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.read().count("got it") == 2
    assert job.returncode == 0


def test_invalid_ranks_and_signals(line: list[str]) -> None:
    done = run(line, "--ranks", "0,x", "true")
    assert (done.returncode, "--ranks '0,x': 'x' is no rank" in done.stderr) == (2, True)
    done = run(line, "--forward-signals", "KILL", "true")
    assert (done.returncode, "'KILL' cannot be passed on" in done.stderr) == (2, True)


def test_silent_ranks_are_reported_with_their_stacks(line: list[str]) -> None:
    script = "import time\ndef here():\n    time.sleep(5)\nprint('up', flush=True); here()"
    done = run(line, "-np", "1", "--stall-timeout", "1", sys.executable, "-c", script)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert re.match(r"ddlrun: rank 0 on \S+ printed nothing for 1 s", lines[0])
    assert re.match(r"ddlrun: state of rank 0 on \S+:", lines[1])
    assert re.match(r"ddlrun: process \d+ \(python\S*\): state S", lines[2])
    spy = [str(Path(sys.executable).parent / "py-spy"), "dump", "--pid", str(os.getpid())]
    allowed = subprocess.run(spy, capture_output=True, check=False).returncode == 0  # not in every container
    assert ("    here (<string>:3)" in done.stderr) == allowed


def test_an_inspection_gives_way_to_the_end_of_the_job(line: list[str], tmp_path: Path) -> None:
    """A py-spy that takes its time, though less than the keeper allows, does not delay SIGTERM."""
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nsleep 10\ntouch {tmp_path}/finished\n")
    spy.chmod(0o755)
    environ = {**os.environ, "PATH": f"{spy.parent}:{os.environ['PATH']}"}
    argv = [*line, "--heartbeat", "0", "--stall-timeout", "1", "-np", "1", sys.executable, "-c", "input()"]
    with subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        wait_for((tmp_path / "started").exists)
        os.kill(mpirun_of(job.pid), signal.SIGKILL)
        job.communicate()
    assert job.returncode == 137
    assert not (tmp_path / "finished").exists()


def test_an_mpirun_that_starts_nothing_is_ended(mpirun: str, tmp_path: Path) -> None:
    stuck = tmp_path / "mpirun"
    stuck.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {mpirun} --version\nexec sleep 3600\n')
    stuck.chmod(0o755)
    done = run(launch_line(str(stuck), tmp_path), "-np", "2", "--start-timeout", "1", "true")
    assert done.returncode == 3
    assert "ranks 0-1 on localhost did not start in 1 s (--start-timeout)" in done.stderr


SAVE = (
    "import signal, sys, time\n"
    "def save(*_):\n    time.sleep(2.5); print('saved', flush=True); sys.exit(0)\n"
    "signal.signal(15, save); signal.signal(10, lambda *_: print('got it', flush=True))\n"
    "print('up', flush=True)\nfor _ in range(600): time.sleep(0.1)\n"
)


@pytest.fixture
def wrapper(tmp_path: Path) -> str:
    """Return a shell script that runs a Python program."""
    (tmp_path / "save.py").write_text(SAVE)
    path = tmp_path / "wrapper.sh"
    path.write_text(f"#!/bin/bash\n{sys.executable} {tmp_path}/save.py\necho over\n")
    path.chmod(0o755)
    return str(path)


def test_the_child_of_a_shell_has_the_whole_grace(line: list[str], wrapper: str) -> None:
    with subprocess.Popen([*line, "-np", "2", "--grace", "20", wrapper], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert [job.stdout.readline()[-3:] for _ in range(2)] == ["up\n"] * 2
        job.terminate()
        assert job.stdout.read().count("saved") == 2
    assert job.returncode == 143


def test_a_shell_does_not_die_of_a_signal_that_is_passed_on(line: list[str], wrapper: str) -> None:
    with subprocess.Popen([*line, "-np", "1", "--grace", "20", wrapper], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.readline() == "got it\n"
        job.terminate()
        assert "saved" in job.stdout.read()
    assert job.returncode == 143


def test_a_killed_ddlrun_leaves_the_ranks_their_grace_and_nothing_else(line: list[str], tmp_path: Path) -> None:
    mark = word()
    script = (
        f"setsid sh -c 'trap \"\" TERM INT HUP; while :; do sleep {mark}; done' & "
        f"trap 'sleep 2; echo saved >>{tmp_path}/saved; exit' TERM; echo up; sleep {mark} & wait"
    )
    with subprocess.Popen([*line, "-np", "2", "--grace", "4", "sh", "-c", script], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert [job.stdout.readline()[-3:] for _ in range(2)] == [b"up\n"] * 2
        job.kill()
    try:
        wait_for(lambda: running(mark) == [])
    except AssertionError:
        everything = subprocess.run(["ps", "-eo", "pid,ppid,sid,stat,etimes,args"], capture_output=True, check=False)
        pytest.fail(f"{mark} is left:\n{everything.stdout.decode()}")
    assert (tmp_path / "saved").read_text() == "saved\n" * 2


@pytest.mark.slow
def test_an_mpirun_that_stays_is_ended(line: list[str]) -> None:
    with subprocess.Popen([*line, "-np", "2", "sh", "-c", "echo up; sleep 2"], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        os.kill(mpirun_of(job.pid), signal.SIGSTOP)
        job.stdout.read()
    assert job.returncode == 0


def test_clean_spares_a_job_whose_mpirun_stays(line: list[str], tmp_path: Path) -> None:
    """Between the end of the ranks and that of mpirun a job has no keepers, and is no orphan.

    That holds for a clean that does not know the run either, as its state folder is another.
    """
    mark = word()
    with subprocess.Popen([*line, "-np", "2", "sh", "-c", "echo up; sleep 1", mark], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        mpirun = mpirun_of(job.pid)
        os.kill(mpirun, signal.SIGSTOP)
        keepers = re.compile(rf"[^\x00]+\x00-I\x00-S\x00[^\x00]*/rank/start\.py\x00.*\x00{mark}\x00", re.DOTALL)
        wait_for(lambda: not any(keepers.match(cmdline(process)) for process in Path("/proc").glob("[0-9]*")))
        clean = [sys.executable, "-m", "ddlrun", "clean", "--dry-run", "localhost"]
        assert f"process {mpirun} of" not in run(clean, XDG_STATE_HOME=tmp_path / "state").stdout
        job.stdout.read()
    assert job.returncode == 0


def test_signals_are_as_without_ddlrun(line: list[str]) -> None:
    program = ["bash", "-c", "yes | head -1; echo ${PIPESTATUS[@]}; grep SigIgn /proc/self/status"]

    def parse(done: subprocess.CompletedProcess[str]) -> tuple[str, int]:
        text, _, ignored = done.stdout.partition("SigIgn:")
        return text, int(ignored, 16) & ~(3 << 31)  # 32 and 33 are the C library's own, and it resets them

    plain = parse(subprocess.run(program, capture_output=True, text=True, check=True))
    assert plain[0] == "y\n141 0\n"
    assert parse(run(line, "-np", "1", *program)) == plain


EARLY_SIGNAL = """
import os, signal
from ddlrun.rank import program
from ddlrun.rank.signals import SignalQueue
SignalQueue()
started = program.start(["true"], "rank 0", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
print(os.WTERMSIG(os.waitpid(started.pid, 0)[1]))
"""


def test_a_signal_between_fork_and_exec_ends_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY_SIGNAL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{signal.SIGTERM:d}\n", "")


def test_connections_without_the_token_are_closed(line: list[str]) -> None:
    """Strangers neither end the job nor exhaust its file descriptors."""
    limited = ["sh", "-c", 'ulimit -n 400; exec "$@"', "sh", *line, "-np", "2", "sh", "-c"]
    script = (
        'test $OMPI_COMM_WORLD_RANK = 0 || sleep 1; tr "\\0" "\\n" </proc/$PPID/environ | grep ^DDLRUN_CHANNEL; sleep 2'
    )
    with subprocess.Popen([*limited, script], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        port = int(job.stdout.readline().rpartition(":")[2])
        strangers = []
        for _ in range(600):
            stranger = socket.socket()
            strangers.append(stranger)
            if stranger.connect_ex(("127.0.0.1", port)) == 0:
                with contextlib.suppress(OSError):
                    stranger.sendall(b"h\xff\xff\xff\xff" + b"x" * 50)
        job.stdout.read()
        for stranger in strangers:
            stranger.close()
    assert job.returncode == 0


SHARED_MEMORY = "/dev/shm"  # noqa: S108
SHARED = f"""from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
print(*(line.split()[-1] for line in open("/proc/self/maps") if "{SHARED_MEMORY}" in line))
"""
PYTHON = [
    ("print(1)", 0, ""),
    ("import sys; sys.exit(3)", 3, ""),
    ("import sys; sys.exit('words')", 1, "words"),
    ("import sys; sys.exit()", 0, ""),
    ("raise SystemExit(4)", 4, ""),
    ("import sys\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    pass", 0, ""),
    (
        "import sys\ndef f():\n    try:\n        exit(3)\n    except SystemExit as end:\n        return end.code\nf()",
        0,
        "",
    ),
    ("import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", 0, ""),
    ("import atexit; atexit.register(print, 'bye'); 1 / 0", 1, "ZeroDivisionError"),
    ("import atexit, sys; atexit.register(lambda: sys.exit(5))", 0, "SystemExit"),
    (
        "import sys\ntry:\n    1 / 0\nexcept Exception:\n    sys.excepthook(*sys.exc_info())\nprint(1)",
        0,
        "ZeroDivision",
    ),
    ("import sys\ntry:\n    sys.exit(3)\nexcept SystemExit as end:\n    kept = end", 0, ""),
    ("import sys; sys.excepthook = lambda *_: print('own', file=sys.stderr); 1 / 0", 1, "own"),
    ("import os; print(os.environ.get('PYTHONPATH'), [p for p in __import__('sys').path if 'hook' in p])", 0, ""),
]


@pytest.mark.parametrize(("script", "code", "error"), PYTHON)
def test_python_ends_as_without_ddlrun(line: list[str], script: str, code: int, error: str) -> None:
    plain = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    launched = run(line, "-np", "1", sys.executable, "-c", script)
    assert (launched.returncode, launched.stdout) == (plain.returncode, plain.stdout) == (code, plain.stdout)
    assert error in launched.stderr
    assert "atexit" in script or plain.stderr in launched.stderr  # a traceback from atexit has one frame more


def test_a_sitecustomize_of_the_users_still_runs(line: list[str], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.MINE = 1\n")
    script = "import os; print(MINE, os.environ['PYTHONPATH'])"
    done = run(line, "-np", "1", sys.executable, "-c", script, PYTHONPATH=tmp_path / "site")
    assert done.stdout == f"1 {tmp_path / 'site'}\n"


@pytest.mark.parametrize(
    "how", ["raise ValueError('no')", "sys.exit(6)", "sys.exit('no')", "exit(6)", "raise SystemExit(6)"]
)
def test_no_rank_waits_for_one_that_failed(line: list[str], tmp_path: Path, how: str) -> None:
    """Without the hook the failing rank waits in MPI_Finalize for the other, which waits in a barrier for it."""
    if how.startswith("raise SystemExit") and sys.version_info < (3, 12):
        pytest.skip("before Python 3.12 a SystemExit that the script raises by itself is not noticed")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1:\n"
        f"    file = open('kept', 'w'); file.write('lines'); {how}\n"
        "MPI.COMM_WORLD.barrier()\nMPI.COMM_WORLD.barrier()\n"
    )
    done = subprocess.run(
        [*line, "-np", "2", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (tmp_path / "kept").read_text() == "lines"
    assert done.returncode == (6 if "6" in how else 1), done.stderr
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["root"]["rank"] == 1


@pytest.mark.slow
def test_many_launches_leave_nothing(line: list[str], tmp_path: Path) -> None:
    """Launch many jobs; no process, file or shared memory is left. The last job prints the names of its segments."""
    (tmp_path / "tmp").mkdir()
    environ = {"TMPDIR": tmp_path / "tmp", "XDG_STATE_HOME": tmp_path / "state"}
    mark = word()
    at = line.index("--run-dir") + 1
    program = ["sh", "-c", f": {mark}"]
    for number in range(60):
        if number == 59:
            program = [sys.executable, "-c", SHARED, mark]
        line[at] = str(tmp_path / "runs" / str(number))
        done = run(line, "-np", "2", *program, **environ)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert [path for path in Path("/proc").glob("[0-9]*") if mark in cmdline(path)] == []
    assert list((tmp_path / "tmp").iterdir()) == []
    segments = [word for word in done.stdout.split() if word.startswith(SHARED_MEMORY)]
    assert segments
    job = segments[0].split(".")[3]
    assert [name for name in os.listdir(SHARED_MEMORY) if job in name] == []
    assert list((tmp_path / "state" / "ddlrun" / "active").iterdir()) == []


def mpirun_of(ddlrun: int) -> int:
    """Return the mpirun that a ddlrun has started."""
    children = map(int, Path(f"/proc/{ddlrun}/task/{ddlrun}/children").read_text().split())
    (pid,) = [pid for pid in children if re.search(r"^[^\0]*(mpi|orte|prte)run\0", cmdline(Path(f"/proc/{pid}")))]
    return pid


def cmdline(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_ps_kill_and_clean(line: list[str], tmp_path: Path) -> None:
    ours = [sys.executable, "-m", "ddlrun"]
    environ = {"XDG_STATE_HOME": tmp_path / "state", "TMPDIR": tmp_path}
    mark = word()
    with subprocess.Popen(
        [*line, "-np", "2", "sleep", mark], env={**os.environ, **{k: str(v) for k, v in environ.items()}}
    ) as job:
        wait_for(lambda: len(running(mark)) == 2)
        shown = json.loads(run(ours, "ps", "--json", **environ).stdout)
        (record,) = shown["runs"]
        assert (record["alive"], record["ranks"], record["program"]) == (True, 2, ["sleep", mark])
        keepers = [process for process in shown["processes"]["localhost"] if process["keeper"]]
        ranks = [keeper["rank"] for keeper in keepers if keeper["run"] == record["run"]]
        assert sorted(ranks) == [0, 1]
        assert "ranks seen: 2 of 2" in run(ours, "ps", **environ).stdout
        assert mark not in run(ours, "clean", **environ).stdout  # a running job is no leftover
        assert len(running(mark)) == 2
        assert run(ours, "kill", record["run"], **environ).returncode == 0
    assert (job.returncode, running(mark)) == (143, [])
    assert record["run"] not in run(ours, "ps", **environ).stdout
    assert run(ours, "kill", record["run"], **environ).returncode == 2
    left = {**os.environ, "DDLRUN_RUN": record["run"], **{k: str(v) for k, v in environ.items()}}
    with subprocess.Popen(["sleep", mark], env=left) as stray:
        assert "left processes on localhost: ddlrun clean localhost" in run(ours, "ps", **environ).stdout
        assert mark in run(ours, "clean", "--dry-run", **environ).stdout
        assert len(running(mark)) == 1
        assert mark in run(ours, "clean", **environ).stdout
        assert stray.wait() == -15
