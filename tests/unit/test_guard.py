"""The guard of a rank, without a job: a keeper that is killed, and a guard that is killed or stopped."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlrun.agent.archive import build_archive
from tests.support import needs, processes
from tests.support.processes import Started, running, started, wait_for

KEEPER = """
import os, sys, time
from ddlrun.keeper import program
from ddlrun.keeper.forks import PR_SET_CHILD_SUBREAPER, load_prctl
from ddlrun.keeper.settings import KeeperSettings
prctl = load_prctl()
prctl(PR_SET_CHILD_SUBREAPER, 1)
settings = KeeperSettings(
    argv=sys.argv[1:], label="rank 0", local_rank=0, parent=os.getppid(), grace=0.0, heartbeat=0.0
)
running = program.start(settings, prctl)
print(running.guard_pid, flush=True)
while not running.reap_children():
    running.resume()
    time.sleep(0.01)
print(running.status, flush=True)
"""
# Neither the environment nor the session nor the open files of the first process are those of the program.
HIDDEN = "env -i setsid sleep {mark} <>/dev/null >&0 2>&0 & sleep {mark}"


@pytest.fixture
def mark() -> str:
    return processes.mark()


@pytest.fixture
def keeper(mark: str) -> Iterator[Started]:
    """Provide a process that starts a program as a keeper does, when the program and its child run."""
    argv = [sys.executable, "-c", KEEPER, "sh", "-c", HIDDEN.format(mark=mark)]
    with started(argv, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(running(mark)) == 2)
        yield process


def test_a_killed_keeper_leaves_no_hidden_process(keeper: Started, mark: str) -> None:
    keeper.kill()
    wait_for(lambda: running(mark) == [])


def test_a_killed_guard_leaves_the_processes_to_the_keeper(keeper: Started, mark: str) -> None:
    os.kill(int(keeper.stdout.readline()), signal.SIGKILL)
    assert int(keeper.stdout.readline()) == signal.SIGKILL
    keeper.wait()
    for pid in running(mark):  # the keeper of this test has no escalation
        os.kill(pid, signal.SIGKILL)


def test_a_stopped_guard_is_continued(keeper: Started, mark: str) -> None:
    os.kill(int(keeper.stdout.readline()), signal.SIGSTOP)
    for pid in running(mark):
        os.kill(pid, signal.SIGTERM)
    assert os.WEXITSTATUS(int(keeper.stdout.readline())) == 128 + signal.SIGTERM


# A keeper whose program is that of a container; the runtime is a stand-in.
CONTAINED = KEEPER.replace(
    "settings = KeeperSettings(",
    """from ddlrun.keeper.container import Container
container = Container(sys.argv.pop(1), rank=0)
settings = KeeperSettings(
    container=container,""",
)
RUNTIME = """#!/bin/sh
[ "$1" = run ] && exec sleep {mark}
touch {folder}/begun
until [ -e {folder}/go ]; do sleep 0.05; done
echo removed >>{folder}/removals
"""


def test_a_guard_removes_the_container_before_it_kills(tmp_path: Path, mark: str) -> None:
    runtime, removals = tmp_path / "podman", tmp_path / "removals"
    runtime.write_text(RUNTIME.format(mark=mark, folder=tmp_path))
    runtime.chmod(0o755)
    record = {"runtime": "podman", "image": "none", "args": [], "hidden": [], "program": str(runtime)}
    with started([sys.executable, "-c", CONTAINED, json.dumps(record), str(runtime), "run"]) as process:
        wait_for(lambda: len(running(mark)) == 1)
        process.kill()
        wait_for((tmp_path / "begun").exists)
        assert len(running(mark)) == 1
        (tmp_path / "go").touch()
        wait_for(lambda: running(mark) == [])
        wait_for(lambda: removals.read_text() == "removed\n" * 2)


# As on a host without ddlrun.
ARCHIVED = """
import os, sys
archive = os.memfd_create("ddlrun")
os.write(archive, bytes.fromhex(sys.stdin.read()))
sys.path.insert(0, f"/proc/self/fd/{archive}")
"""
SHOW_HOOK = """
import os, sys
folder = os.path.dirname(sys.modules["ddlrun_exit"].__file__)
open(sys.argv[1], "w").write(" ".join([folder, *sys.path]))
"""


def test_the_hook_of_python_is_in_the_archive_of_an_agent(tmp_path: Path) -> None:
    program = [sys.executable, "-c", SHOW_HOOK, f"{tmp_path}/shown"]
    keeper = [sys.executable, "-I", "-S", "-c", ARCHIVED + KEEPER, *program]
    subprocess.run(keeper, input=build_archive().hex(), stdout=subprocess.DEVNULL, text=True, check=True)
    hook, *folders = (tmp_path / "shown").read_text().split()
    assert re.fullmatch(r"/proc/\d+/fd/\d+/ddlrun/keeper/hook", hook)
    assert not [folder for folder in folders if folder.startswith("/proc/")]


# A keeper that may have some processes of its user, who has no others if the test is root's.
LIMITED = """
import os, resource, sys
from ddlrun.keeper import program
from ddlrun.keeper.forks import load_prctl
from ddlrun.keeper.settings import KeeperSettings
prctl = load_prctl()
settings = KeeperSettings(
    argv=["true"], label="rank 0", local_rank=0, parent=os.getppid(), grace=1.0, heartbeat=0.0
)
if os.geteuid() == 0:
    os.setuid(54329)
resource.setrlimit(resource.RLIMIT_NPROC, (int(sys.argv[1]),) * 2)
end = program.start(settings, prctl).report_end(ordered=False, reason="")
print(end.exit_code, end.signal, end.reason)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_rank_that_may_start_no_process_gives_that_reason(processes: int) -> None:
    if processes > 1:
        needs.root()
    done = subprocess.run([sys.executable, "-c", LIMITED, str(processes)], capture_output=True, text=True, check=False)
    reason = "no process can be started: Resource temporarily unavailable (see ulimit -u)"
    assert (done.stdout, done.stderr) == (f"5 0 {reason}\n", "")
