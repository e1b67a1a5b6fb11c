"""The keepers of ranks: real launches on this machine, under both major versions of Open MPI."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import OWN, launch_line
from tests.support import processes
from tests.support.launches import run
from tests.support.processes import Started, command_line, mark, mpirun_of, running, started, wait_for
from tests.support.waiting import wait_until


@pytest.fixture
def line(mpirun: str, tmp_path: Path) -> list[str]:
    return launch_line(mpirun, tmp_path, "--quiet")


# For a minute. A signal just before a single sleep() would be handled only after it.
STAY = "[time.sleep(0.1) for _ in range(600)]"


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Return a named pipe: a program that reads it waits until the test opens it for writing."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.mark.own
def test_children_of_a_rank_end_with_it(line: list[str]) -> None:
    mark = processes.mark()
    starts = ["{} &", "setsid {} &", "nohup {} >/dev/null 2>&1 &", "(setsid sh -c '{} & exit' &)"]
    script = "\n".join(start.format(f"sleep {mark}") for start in starts)
    done = run(line, "-np", "1", "sh", "-c", f"{script}\necho done")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert running(mark) == []


def test_output_of_a_child_after_the_end_of_its_rank_is_read(line: list[str]) -> None:
    # Builtins alone: what a rank leaves behind has a second to end.
    child = "read line; while kill -0 $$; do :; done 2>/dev/null; echo $line; echo second"
    done = run(line, "-np", "1", "bash", "-c", f"echo first > >({child})")
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n")


@pytest.mark.own
def test_a_signal_gives_all_ranks_one_grace(line: list[str]) -> None:
    script = f"import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('saved'))); print('up'); {STAY}"
    with started(
        [*line, "--grace", "60", "-np", "2", "sh", "-c", f'{sys.executable} -c "{script}"; exit 0'],
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert [job.stdout.readline()[-3:] for _ in range(2)] == ["up\n"] * 2
        job.terminate()
        out = job.stdout.read()
    assert (job.returncode, out.count("saved")) == (143, 2)


def test_a_signalled_keeper_is_the_cause_of_the_failures_that_follow(tmp_path: Path) -> None:
    log = f"{tmp_path}/run/ranks/1.log"
    rank_0 = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 7"
    # The parent of a program is its guard, and that of the guard its keeper.
    rank_1 = f"cut -d ' ' -f 4 /proc/$PPID/stat >{tmp_path}/keeper; echo up; exec sleep 300"
    program = ["-np", "2", "sh", "-c", f"[ $DDLRUN_RANK = 1 ] || {{ {rank_0}; }}; {rank_1}"]
    with started([*launch_line(OWN, tmp_path), *program], stderr=subprocess.PIPE, text=True) as job:

        def has_log() -> bool:
            return log in processes.open_files(job.pid)

        wait_until(has_log)
        os.kill(int((tmp_path / "keeper").read_text()), signal.SIGTERM)
        wait_until(lambda: not has_log())  # ddlrun knows of the end of rank 1
        (tmp_path / "go").touch()
        report = job.stderr.read()
    assert job.returncode == 128 + signal.SIGTERM
    assert re.search("rank 1 on .* had to end: its keeper received a signal", report), report


@pytest.mark.own
def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(line: list[str]) -> None:
    mark = processes.mark()
    script = f"trap '' TERM INT; echo up; while :; do sleep {mark}; done"
    with started([*line, "--grace", "1", "-np", "1", "sh", "-c", script], stdout=subprocess.PIPE) as job:
        assert job.stdout.readline() == b"up\n"
        job.send_signal(signal.SIGINT if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else signal.SIGTERM)
    assert job.returncode in (130, 143)
    assert running(mark) == []


def test_a_signal_is_passed_on(line: list[str]) -> None:
    script = f"import signal, time; signal.signal(10, lambda *_: exit(print('got it'))); print('up'); {STAY}"
    with started([*line, "-np", "2", sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as job:
        assert [job.stdout.readline()[-3:] for _ in range(2)] == ["up\n"] * 2
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.read().count("got it") == 2
    assert job.returncode == 0


@pytest.mark.own
@pytest.mark.parametrize(("options", "stopped"), [((), False), (("--forward-signals", "TSTP"), True)])
def test_ctrl_z_says_that_it_suspends_nothing(line: list[str], options: tuple[str, ...], stopped: bool) -> None:  # noqa: FBT001
    argv = [
        *line,
        *options,
        "-np",
        "1",
        sys.executable,
        "-c",
        "import os; print(os.getpid(), flush=True); print(input())",
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(["env", "--default-signal=TSTP", *argv], text=True, **pipes) as job:
        rank = psutil.Process(int(job.stdout.readline()))
        job.send_signal(signal.SIGTSTP)
        if stopped:
            wait_for(lambda: rank.status() == psutil.STATUS_STOPPED)
            rank.resume()
        job.stdin.write("on\n")
        job.stdin.close()
        out, err = job.stdout.read(), job.stderr.read()
    assert (job.returncode, out) == (0, "on\n")
    assert ("Ctrl-Z does not suspend a job" in err) is not stopped


def test_invalid_ranks_and_signals(line: list[str]) -> None:
    done = run(line, "--ranks", "0,x", "true")
    assert (done.returncode, "--ranks '0,x': 'x' is not a rank" in done.stderr) == (2, True)
    done = run(line, "--forward-signals", "KILL", "true")
    assert (done.returncode, "'KILL' cannot be passed on" in done.stderr) == (2, True)


def test_silent_ranks_are_reported_with_their_stacks(line: list[str], fifo: Path) -> None:
    script = f"def here():\n    open('{fifo}').read()\nprint('up', flush=True); here()"
    argv = [*line, "-np", "1", "--stall-timeout", "1", "--stall-action", "report", sys.executable, "-c", script]
    with started(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline().endswith("up\n")
        report = job.stderr.readline()
        # A slow start is reported, too; the program is silent again after its line.
        while "    here (<string>:2)" not in report:
            line_of_report = job.stderr.readline()
            assert line_of_report, report
            report += line_of_report
        fifo.write_text("")
        for stream in (job.stdout, job.stderr):
            stream.read()  # without a reader of either the job would be ended
    assert job.returncode == 0
    assert re.search(
        r"ddlrun: rank 0 on \S+ printed nothing for 1 s.*\nddlrun: .*: rank 0 opens a file \(here, <string>:2\)\n"
        r"ddlrun: state of rank 0 on \S+:\nddlrun: process \d+ \(python\S*\): state S", report,
    ), report  # fmt: skip


def test_an_inspection_gives_way_to_the_end_of_the_job(line: list[str], tmp_path: Path) -> None:
    """A py-spy that takes its time, though less than the 15 s that it is allowed, does not delay SIGTERM."""
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nsleep 13\ntouch {tmp_path}/finished\n")
    spy.chmod(0o755)
    environ = {**os.environ, "PATH": f"{spy.parent}:{os.environ['PATH']}"}
    argv = [*line, "--heartbeat", "0", "--stall-timeout", "1", "--stall-action", "report", "-np", "1"]
    argv += [sys.executable, "-c", "import time; time.sleep(3600)"]
    with started(argv, env=environ, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        wait_for((tmp_path / "started").exists)
        os.kill(mpirun_of(job.pid), signal.SIGKILL)
        _, errors = job.communicate()
    assert job.returncode == 137, errors
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


def test_the_child_of_a_shell_gets_signals_and_has_the_whole_grace(line: list[str], wrapper: str) -> None:
    """The shell itself does not die of a signal that is passed on."""
    with started([*line, "-np", "2", "--grace", "60", wrapper], stdout=subprocess.PIPE, text=True) as job:
        assert [job.stdout.readline()[-3:] for _ in range(2)] == ["up\n"] * 2
        job.send_signal(signal.SIGUSR1)
        assert [job.stdout.readline()[-7:] for _ in range(2)] == ["got it\n"] * 2
        job.terminate()
        assert job.stdout.read().count("saved") == 2
    assert job.returncode == 143


def test_a_killed_ddlrun_leaves_the_ranks_their_grace(line: list[str], tmp_path: Path) -> None:
    mark = processes.mark()
    script = f"trap 'sleep 2; echo saved >>{tmp_path}/saved; exit' TERM; echo up; sleep {mark} & wait"
    with started([*line, "-np", "2", "--grace", "60", "sh", "-c", script], stdout=subprocess.PIPE) as job:
        assert [job.stdout.readline()[-3:] for _ in range(2)] == [b"up\n"] * 2
        job.kill()
    wait_for(lambda: running(mark) == [], lambda: processes.listed(mark))
    wait_for(lambda: (tmp_path / "saved").exists() and (tmp_path / "saved").read_text() == "saved\n" * 2)


@pytest.mark.own
def test_a_killed_ddlrun_leaves_no_process_that_ignores_sigterm(line: list[str]) -> None:
    """Rank 1 ends at once with a failure; that does not end the keeper of rank 0 before its grace is over."""
    mark = processes.mark()
    stubborn = f'trap \\"\\" TERM INT HUP; while :; do sleep {mark}; done'
    script = f'echo up; test $OMPI_COMM_WORLD_RANK = 0 && setsid sh -c "{stubborn}" & exec sleep {mark}'
    with started([*line, "-np", "2", "--grace", "3", "sh", "-c", script], stdout=subprocess.PIPE) as job:
        assert [job.stdout.readline()[-3:] for _ in range(2)] == [b"up\n"] * 2
        wait_for(lambda: len(running(mark)) == 3)
        job.kill()
    wait_for(lambda: running(mark) == [], lambda: processes.listed(mark))


def test_clean_spares_a_job_whose_mpirun_stays(line: list[str], tmp_path: Path) -> None:
    """Between the end of the ranks and that of mpirun a job has no keepers, and is not an orphan.

    That holds for a clean that does not know the run either, as its state folder is another.
    """
    mark = processes.mark()
    argv = [*line, "-np", "2", "sh", "-c", "echo up; cat", mark]
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        mpirun = stop_mpirun(job, mark)
        job.send_signal(signal.SIGSTOP)  # otherwise it continues mpirun after 2 s
        clean = [sys.executable, "-m", "ddlrun", "clean", "--dry-run", "localhost"]
        assert f"process {mpirun} of" not in run(clean, XDG_STATE_HOME=tmp_path / "state").stdout
        job.send_signal(signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):  # it was stopped for more than 2 s before
            os.kill(mpirun, signal.SIGCONT)
        job.stdout.read()
    assert job.returncode == 0


@pytest.mark.extra  # it is ended after 5 s
def test_an_mpirun_that_hangs_after_its_ranks_is_ended(mpirun: str, tmp_path: Path) -> None:
    """That of Open MPI 5.0.11 does so if a rank ends before its daemon has recorded the start."""
    hanging = tmp_path / "mpirun"
    hanging.write_text(f'#!/bin/sh\n{mpirun} "$@"\n[ "$1" = --version ] || exec sleep 3600\n')
    hanging.chmod(0o755)
    done = run([*launch_line(str(hanging), tmp_path), "--quiet"], "-np", "2", "true")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.extra  # it is continued after 2 s
@pytest.mark.own
def test_an_mpirun_that_stays_is_ended(line: list[str]) -> None:
    mark = processes.mark()
    argv = [*line, "-np", "2", "sh", "-c", "echo up; cat", mark]
    with started(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        stop_mpirun(job, mark)
        job.stdout.read()
    assert job.returncode == 0


def stop_mpirun(job: Started, mark: str) -> int:
    """Stop the mpirun of two ranks, and wait for the end of its keepers; return its pid."""
    assert [job.stdout.readline()[-3:] for _ in range(2)] == [b"up\n"] * 2
    mpirun = mpirun_of(job.pid)
    os.kill(mpirun, signal.SIGSTOP)
    job.stdin.close()
    keeper = re.compile(rf"[^\x00]+\x00-I\x00-S\x00[^\x00]*/(?:keeper|agent)/start\.py\x00.*\x00{mark}\x00", re.DOTALL)
    wait_for(
        lambda: (
            not any(
                keeper.match(command_line(path.name))
                for path in Path("/proc").glob("[0-9]*")
                if path.name != str(mpirun)
            )
        ),
        lambda: processes.listed(mark),
    )
    return mpirun


@pytest.mark.own
def test_signals_are_as_without_ddlrun(line: list[str]) -> None:
    # The tests themselves may be started by nohup, or in the background of a script.
    program = ["env", "--default-signal", "bash", "-c"]
    program += ["yes | head -1; echo ${PIPESTATUS[@]}; grep SigIgn /proc/self/status"]

    def parse(done: subprocess.CompletedProcess[str]) -> tuple[str, int]:
        text, _, ignored = done.stdout.partition("SigIgn:")
        return text, int(ignored, 16) & ~(3 << 31)  # 32 and 33 are the C library's own, and it resets them

    plain = parse(subprocess.run(program, capture_output=True, text=True, check=True))
    assert plain[0] == "y\n141 0\n"
    assert parse(run(["env", "--default-signal", *line], "-np", "1", *program[2:])) == plain


EARLY_SIGNAL = """
import os, signal, time
from ddlrun.keeper import program
from ddlrun.keeper.settings import KeeperSettings
from ddlrun.keeper.signals import SignalQueue
from ddlrun.wire.loop import Loop
settings = KeeperSettings(
    argv=["true"], label="rank 0", local_rank=0, parent=os.getppid(), grace=0.0, heartbeat=0.0
)
SignalQueue(Loop())
started = program.start(settings, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
while not started.reap_children():
    time.sleep(0.01)
print(started.signal)
"""


def test_a_signal_between_fork_and_exec_ends_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY_SIGNAL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{signal.SIGTERM:d}\n", "")


def test_connections_without_the_secret_are_closed(mpirun: str, tmp_path: Path, fifo: Path) -> None:
    """UnauthenticatedConnections that come before the keepers neither end the job nor exhaust its file descriptors."""
    site = tmp_path / "mpirun"
    channel = tmp_path / "channel"
    site.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {mpirun} --version\n'
        f'printenv DDLRUN_CHANNEL >{channel}.part\nmv {channel}.part {channel}\nread line <{fifo}\nexec {mpirun} "$@"\n'
    )
    site.chmod(0o755)
    line = launch_line(str(site), tmp_path, "--quiet", "--start-timeout", "300")
    argv = ["sh", "-c", 'ulimit -n 400; exec "$@"', "sh", *line, "-np", "2", "sh", "-c", "echo done"]
    with contextlib.ExitStack() as clients, started(argv, stdout=subprocess.PIPE, text=True) as job:
        wait_for(channel.exists)
        port = int(channel.read_text().split("@")[2].rpartition(":")[2])
        for _ in range(600):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            with contextlib.suppress(OSError):
                client.sendall(b"h\xff\xff\xff\xff" + b"x" * 50)
        fifo.write_text("\n")
        assert job.stdout.read().count("done") == 2
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


@pytest.mark.openmpi(4)
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


# Before Python 3.12 a SystemExit that the script raises by itself is not noticed.
FAILURES = ["raise ValueError('no')", "sys.exit(6)", "sys.exit('no')", "exit(6)"]
FAILURES += ["raise SystemExit(6)"] if sys.version_info >= (3, 12) else []


SLOW_CAT = """#!/bin/sh
case $* in /proc/*/maps)
  until [ -e ended ]; do sleep 0.01; done
  touch searched$OMPI_COMM_WORLD_RANK ;;
esac
exec {cat} "$@"
"""


@pytest.mark.openmpi(4)
def test_a_failure_is_reported_before_the_search_for_shared_memory(line: list[str], tmp_path: Path) -> None:
    cat, shared = tmp_path / "cat", Path(f"{SHARED_MEMORY}/mpich_shm_{mark()}")
    cat.write_text(SLOW_CAT.format(cat=shutil.which("cat")))
    cat.chmod(0o755)
    shared.touch()
    wait = "trap 'touch ended; exit 1' TERM; touch up; while :; do sleep 0.01; done"
    script = f"[ $OMPI_COMM_WORLD_RANK = 1 ] || {{ {wait}; }}; until [ -e up ]; do sleep 0.01; done; exit 3"
    path = f"{tmp_path}:{os.environ['PATH']}"
    try:
        done = subprocess.run(
            [*line, "-np", "2", "sh", "-c", script], cwd=tmp_path, env=os.environ | {"PATH": path},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
    finally:
        shared.unlink(missing_ok=True)
    assert (done.returncode, (tmp_path / "searched1").exists()) == (3, True), done.stderr


@pytest.mark.openmpi(4)  # as test_rank_exit.py does under 5
@pytest.mark.parametrize("how", FAILURES)
def test_no_rank_waits_for_one_that_failed(line: list[str], tmp_path: Path, how: str) -> None:
    """Without the hook the failing rank waits in MPI_Finalize for the other, which waits in a barrier for it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1:\n"
        f"    file = open('kept', 'w'); file.write('lines'); {how}\n"
        "MPI.COMM_WORLD.barrier()\nMPI.COMM_WORLD.barrier()\n"
    )
    done = subprocess.run(
        [*line, "-np", "2", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert (tmp_path / "kept").read_text() == "lines"
    assert done.returncode == (6 if "6" in how else 1), done.stderr
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["root"]["rank"] == 1


ABORTS_LATE = """
import os, signal, sys, time
from mpi4py import MPI
signal.signal(signal.SIGTERM, lambda *_: MPI.COMM_WORLD.Abort(3))
MPI.COMM_WORLD.barrier()
os._exit(6) if MPI.COMM_WORLD.rank == 1 else time.sleep(600)
"""


@pytest.mark.extra
@pytest.mark.openmpi(5)  # 4.1 kills rank 0 before it prints its message
def test_the_message_of_an_abort_that_arrives_after_a_failure_is_printed(line: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ABORTS_LATE)
    done = run(line, "-np", "2", str(tmp_path / "train.py"))
    assert done.returncode == 6, done.stderr
    assert done.stderr.count("MPI_ABORT was invoked on rank 0") == 1, done.stderr


@pytest.mark.parametrize("launches", [6, pytest.param(15, marks=pytest.mark.extra)])
def test_many_launches_leave_nothing(line: list[str], tmp_path: Path, launches: int) -> None:
    """Launch many jobs; no process, file or shared memory is left. The last job prints the names of its segments."""
    (tmp_path / "tmp").mkdir()
    environ = {"TMPDIR": tmp_path / "tmp", "XDG_STATE_HOME": tmp_path / "state"}
    mark = processes.mark()
    at = line.index("--run-dir") + 1
    program = ["sh", "-c", f": {mark}"]
    for number in range(launches):
        if number == launches - 1:
            program = [sys.executable, "-c", SHARED, mark]
        line[at] = str(tmp_path / "runs" / str(number))
        done = run(line, "-np", "2", *program, **environ)
        outcome = tmp_path / "runs" / str(number) / "outcome.json"
        assert (done.returncode, done.stderr) == (0, ""), f"launch {number}: {done.stderr}\n{outcome.read_text()}"
    assert processes.listed(mark) == ""
    assert list((tmp_path / "tmp").iterdir()) == []
    segments = [name for name in done.stdout.split() if name.startswith(SHARED_MEMORY)]
    assert segments
    job = segments[0].split(".")[3]
    assert [name for name in os.listdir(SHARED_MEMORY) if job in name] == []
    assert list((tmp_path / "state" / "ddlrun" / "active").iterdir()) == []


def test_runs_kill_and_clean(line: list[str], tmp_path: Path) -> None:
    ours = [sys.executable, "-m", "ddlrun"]
    mark = processes.mark()
    environ = {"XDG_STATE_HOME": tmp_path / "state", "TMPDIR": tmp_path, "PATH": processes.see_only(mark, tmp_path)}
    with started(
        [*line, "-np", "2", "sleep", mark], env={**os.environ, **{k: str(v) for k, v in environ.items()}}
    ) as job:
        wait_for(lambda: len(running(mark)) == 2)
        shown = json.loads(run(ours, "runs", "--processes", "--json", **environ).stdout)
        (record,) = shown["runs"]
        assert (record["state"], record["ranks"], record["program"]) == ("running", 2, ["sleep", mark])
        keepers = [process for process in shown["processes"]["localhost"] if process["keeper"]]
        ranks = [keeper["rank"] for keeper in keepers if keeper["run"] == record["run"]]
        assert sorted(ranks) == [0, 1]
        assert "ranks seen: 2 of 2" in run(ours, "runs", "--processes", **environ).stdout
        assert mark not in run(ours, "clean", **environ).stdout  # a running job is not a leftover
        assert len(running(mark)) == 2
        assert run(ours, "kill", record["run"], **environ).returncode == 0
    assert (job.returncode, running(mark)) == (143, [])
    assert "localhost: " not in run(ours, "runs", "--processes", **environ).stdout.partition(record["run"])[2]
    assert run(ours, "kill", record["run"], **environ).returncode == 2
    left = {**os.environ, "DDLRUN_RUN": record["run"], **{k: str(v) for k, v in environ.items()}}
    with started(["sleep", mark], env=left) as stray:
        listed = run(ours, "runs", "--processes", **environ).stdout
        assert "left processes on localhost: ddlrun clean localhost" in listed
        assert mark in run(ours, "clean", "--dry-run", **environ).stdout
        assert len(running(mark)) == 1
        assert mark in run(ours, "clean", **environ).stdout
        assert stray.wait() == -15
