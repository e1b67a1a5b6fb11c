"""Runs: their names, their history, their logs, and the words of another launch."""

import functools
import io
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.application.inputs import reach
from ddlrun.application.run_processes import end_named_runs
from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.arguments import merge_arguments, parse_changes, strip_secrets
from ddlrun.cli.rerun import command as rerun_command
from ddlrun.errors import InputError
from ddlrun.keeper import leftovers
from ddlrun.keeper.processes import mark_of
from ddlrun.keeper.protocol import AGENT_RUN
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.settings import Retention, parse_retention
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.links import HostLinks
from ddlrun.runs.history import PastRunState, attempt_names, find_run, read_history
from ddlrun.runs.log_files import read_logs, seek_last_lines
from ddlrun.runs.names import NAME, choose_name, match_names, new_name, strip_date
from ddlrun.runs.orphans import LIST, end_runs, orphans, parse_processes
from ddlrun.runs.registry import born
from ddlrun.runs.retention import empty_trash, remove_old_runs
from ddlrun.runs.run_list import list_runs
from ddlrun.runs.run_table import render_runs, runs_record
from ddlrun.runs.state_folders import ELSEWHERE, choose_path, elsewhere, make_folder, run_paths
from ddlrun.runs.store import RESERVED_BYTES, reserve_outcome, state_folder, write_private
from tests.support.processes import command_line, mark, see_only
from tests.support.run_folders import make_run
from tests.support.waiting import wait_until

DAY = 86400


def test_a_new_name_is_a_date_and_a_word() -> None:
    names = {new_name() for _ in range(200)}
    assert len(names) == 200
    assert all(re.fullmatch(r"[0-9]{8}-([bdfjklmnrstvwy][aeiou]){4}", name) for name in names)
    assert all(re.fullmatch(NAME, name) for name in (*names, "20261122-135350-19226-cf72d2d4"))


NAMES = ("20261122-tokarumi", "20261122-tolevuka", "20261123-belosika", "20261123-belo")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("20261122-tokarumi", 0),
        ("tokarumi", 0),
        ("tok", 0),
        ("20261122-tol", 1),
        ("20261123-belo", 3),
        ("belo", 3),
        ("belos", 2),
    ],
)
def test_a_name_or_its_beginning(text: str, name: int) -> None:
    assert choose_name(text, NAMES) == NAMES[name]


def test_an_ambiguous_beginning_lists_its_candidates() -> None:
    with pytest.raises(InputError, match="run 'to' is ambiguous: 20261122-tokarumi, 20261122-tolevuka; write more"):
        choose_name("to", NAMES)
    with pytest.raises(InputError, match="and 12 more"):
        choose_name("2026", [f"20261123-{index:04}" for index in range(20)])
    assert choose_name("x", NAMES) is None


@given(st.lists(st.from_regex(r"2026112[0-9]-([bdf][aeiou]){4}", fullmatch=True), unique=True))
def test_every_name_means_itself(names: list[str]) -> None:
    assert [choose_name(name, names) for name in names] == names
    assert all(name in match_names(strip_date(name), names) for name in names)


def test_runs_are_found(tmp_path: Path) -> None:
    state = str(tmp_path)
    with pytest.raises(InputError, match="no run was started here"):
        find_run(None, state)
    older = make_run(tmp_path, "20261122-tokarumi", age=50)
    newer = make_run(tmp_path, "20261123-belosika")
    (older / "restart-1").mkdir()
    (tmp_path / "runs" / "20261123-davorine").symlink_to(tmp_path / "elsewhere")
    assert [find_run(text, state) for text in (None, "last", "belo", str(newer))] == [str(newer)] * 4
    assert find_run("toka-1", state) == str(older / "restart-1")
    assert find_run("davorine", state) == str(tmp_path / "elsewhere")
    (tmp_path / "last").symlink_to(older)
    assert find_run("last", state) == str(older)
    for text in ("toka-2", "kaka", "kaka-1"):
        with pytest.raises(InputError, match=f"run '{text}': no run of this name"):
            find_run(text, state)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("belo", "run 20261123-belosika: it has ended; ddlrun clean ends processes that it left"),
        ("davo", "run 'davo': no run of this name that was started here is running; "),  # it may run elsewhere
        ("last", "run 'last': no run that was started here is running; "),
    ],
)
def test_no_run_to_end(text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_run(tmp_path / "ddlrun", "20261123-belosika")
    elsewhere_started = make_run(tmp_path / "ddlrun", "20261123-davorine", exit_code=None) / "run.json"
    elsewhere_started.write_text(elsewhere_started.read_text().replace(os.uname().nodename, "login2"))
    with pytest.raises(InputError) as error:
        end_named_runs([text], {"grace": 1.0, "hosts": None, "hostfile": None})
    assert str(error.value).startswith(problem)


def test_the_history_has_the_final_exit_codes(tmp_path: Path) -> None:
    for name, of in (("20261120-a", "ddlrun"), ("20261120-b", "program")):
        folder = make_run(tmp_path, name)
        outcome = {"exit_code": 3, "exit_code_of": of, "seconds": 1.0, "requested": False}
        (folder / "outcome.json").write_text(json.dumps(outcome))
    codes = {past.run.run: past.exit_code for past in read_history(str(tmp_path))}
    assert codes == {"20261120-a": 3, "20261120-b": 3}


def test_the_history_has_states(tmp_path: Path) -> None:
    make_run(tmp_path, "20261120-a", age=5)
    make_run(tmp_path, "20261120-b", age=4, exit_code=3)
    make_run(tmp_path, "20261120-c", age=3, exit_code=130)
    make_run(tmp_path, "20261120-d", age=2, exit_code=None)
    make_run(tmp_path, "20261120-e", age=1, exit_code=None, pid=os.getpid())
    (tmp_path / "runs" / "20261120-cut").mkdir()
    history = read_history(str(tmp_path))
    assert [past.run.run[-1] for past in history] == ["e", "d", "c", "b", "a"]
    assert [past.state for past in history] == [
        PastRunState.RUNNING, PastRunState.LOST, PastRunState.ENDED, PastRunState.FAILED, PastRunState.SUCCEEDED,
    ]  # fmt: skip
    assert [past.run.run[-1] for past in read_history(str(tmp_path), 2)] == ["e", "d"]
    table = render_runs(list_runs(str(tmp_path), None, {})).splitlines()
    assert table[0].split() == ["RUN", "STARTED", "STATE", "DURATION", "RANKS", "HOSTS", "PROGRAM"]
    assert re.search(r"20261120-b  .*  failed \(3\)   2m05s     4      n\[1-2\]  train.py$", table[4])
    narrow = render_runs(list_runs(str(tmp_path), None, {}), 40).splitlines()
    assert narrow[0].split() == ["RUN", "STATE", "PROGRAM"]
    assert max(map(len, narrow)) <= 40
    assert render_runs([]) == "no runs\n"


def test_running_runs_are_listed_first(tmp_path: Path) -> None:
    make_run(tmp_path, "20261120-a", age=9, exit_code=None, pid=os.getpid())
    for age in (3, 2, 1):
        make_run(tmp_path, f"20261120-{age}", age=age)
    (tmp_path / "active").mkdir()
    (tmp_path / "active/20261120-a").write_text((tmp_path / "runs/20261120-a/run.json").read_text())
    assert [run.name[-1] for run in list_runs(str(tmp_path), 2, {})] == ["a", "1"]
    assert [run.name[-1] for run in list_runs(str(tmp_path), None, {})] == ["a", "1", "2", "3"]
    (tmp_path / "runs/20261120-a/run.json").unlink()  # as on a full disk
    assert render_runs(list_runs(str(tmp_path), 3, {})).splitlines()[1].split()[0] == "20261120-a"


def test_runs_with_processes_come_before_others_of_any_number(tmp_path: Path) -> None:
    for age, name in enumerate(("20261120-a", "20261120-b", "20261120-old"), 1):
        make_run(tmp_path, name, age=age)
    left = parse_processes(AGENT.format(parent=1, state="T").replace("20261123-tokarumi", "20261120-old"))
    processes = {"h3": [*left, *parse_processes(AGENT.format(parent=5, state="S"))]}
    table = render_runs(list_runs(str(tmp_path), 1, processes)).splitlines()
    assert [line.split()[0] for line in table if not line.startswith(" ")] == [
        "RUN", "20261123-tokarumi", "20261120-old", "20261120-a",
    ]  # fmt: skip
    assert table[2:5] == [
        "  h3: 1 process, ranks none", table[3], "  ended, but left processes on h3: ddlrun clean h3",
    ]  # fmt: skip


def test_processes_tell_the_state_of_a_run_of_another_computer(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "20261123-tokarumi", exit_code=None)
    start = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**start, "host": "elsewhere"}))
    for processes, state in (({}, "unknown"), ({"h3": parse_processes(AGENT.format(parent=5, state="S"))}, "running")):
        listed = list_runs(str(tmp_path), None, processes)
        assert [run["state"] for run in runs_record(listed, processes)["runs"]] == [state]
        assert render_runs(listed).splitlines()[1].split()[3] == state


def test_the_latest_runs_are_counted_as_they_are_shown(tmp_path: Path) -> None:
    for age, name in enumerate("cba"):
        make_run(tmp_path, f"20261120-{name}", age=age)
    (tmp_path / "runs/20261120-c/run.json").unlink()
    restart = make_run(tmp_path / "other", "20261120-b-1", age=0.5)
    restart.rename(tmp_path / "runs/20261120-b/restart-1")
    names = [past.run.run for past in read_history(str(tmp_path))]
    assert names == ["20261120-b-1", "20261120-b", "20261120-a"]
    assert [[past.run.run for past in read_history(str(tmp_path), most)] for most in (1, 2)] == [names[:1], names[:2]]


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    """Provide a state folder that nobody can make; what replaces it in /tmp is removed."""
    (tmp_path / "file").touch()
    state = tmp_path / "file" / "ddlrun"
    yield state
    shutil.rmtree(elsewhere(str(tmp_path)), ignore_errors=True)


def test_runs_are_in_tmp_where_the_state_folder_is_not_writable(unwritable: Path) -> None:
    state = str(unwritable)
    chosen = choose_path(f"{state}/runs/20261120-karo")
    assert chosen == elsewhere(f"{state}/runs/20261120-karo") == f"{ELSEWHERE}{os.geteuid()}{state}/runs/20261120-karo"
    folder = make_run(Path(elsewhere(state)), "20261120-karo", age=5)
    make_run(Path(elsewhere(state)), "20261120-belo")
    assert find_run("20261120-karo", state) == str(folder)
    assert [past.run.run for past in read_history(state)] == ["20261120-belo", "20261120-karo"]
    assert find_run(None, state) == find_run("20261120-belo", state)
    (folder / "restart-1").mkdir()
    assert attempt_names(str(folder)) == ["20261120-karo", "20261120-karo-1"]
    assert remove_old_runs(state, Retention(runs=1)) == 1
    assert [past.run.run for past in read_history(state)] == ["20261120-belo"]


def test_parts_of_a_run_may_be_in_tmp(tmp_path: Path) -> None:
    """Its disk became full: its end and a restart are elsewhere."""
    folder = make_run(tmp_path, "20261120-karo", exit_code=None)
    other = Path(elsewhere(str(folder)))
    try:
        make_folder(str(other))
        restart = make_run(other.parent / "x", "20261120-karo-1")
        restart.rename(other / "restart-1")
        (folder / "plan.json").write_text(json.dumps({"ranks": [{}]}))
        (other / "outcome.json").write_text(json.dumps({"exit_code": 3, "seconds": 1.0, "requested": False}))
        states = {past.run.run: past.state for past in read_history(str(tmp_path))}
        assert states == {"20261120-karo": PastRunState.FAILED, "20261120-karo-1": PastRunState.SUCCEEDED}
        assert find_run("20261120-karo-1", str(tmp_path)) == str(other / "restart-1")
        assert attempt_names(str(folder)) == ["20261120-karo", "20261120-karo-1"]
        assert remove_old_runs(str(tmp_path), Retention(runs=0)) == 1
        assert not other.exists()
    finally:
        shutil.rmtree(elsewhere(str(tmp_path)), ignore_errors=True)


def test_the_outcome_has_its_place_on_the_disk(tmp_path: Path) -> None:
    files = RunDir(str(tmp_path))
    reserve_outcome(files)
    assert os.stat(f"{files.outcome}.new").st_blocks * 512 >= RESERVED_BYTES
    write_private(files.outcome, ["{}"])
    assert [path.name for path in tmp_path.iterdir()] == ["outcome.json"]


def test_old_runs_are_removed(tmp_path: Path) -> None:
    state = str(tmp_path)
    make_run(tmp_path, "20261101-old", age=9 * DAY)
    make_run(tmp_path, "20261102-running", age=8 * DAY, exit_code=None, pid=os.getpid())
    make_run(tmp_path, "20261103-lost", age=7 * DAY, exit_code=None)
    make_run(tmp_path, "20261104-new", age=DAY, exit_code=1)
    outside = make_run(tmp_path / "other", "20261105-outside")
    (tmp_path / "runs" / "20261105-outside").symlink_to(outside)
    (tmp_path / "runs" / "20261106-gone").symlink_to(tmp_path / "gone")
    (tmp_path / "runs" / "20261107-starting").mkdir()
    unstarted = make_run(tmp_path, "20261108-unstarted", age=9 * DAY, exit_code=None)
    changed = unstarted.stat().st_mtime
    (unstarted / "run.json").unlink()
    (unstarted / "link").symlink_to("nowhere")
    os.utime(unstarted / "link", (changed, changed), follow_symlinks=False)
    os.utime(unstarted, (changed, changed))
    assert remove_old_runs(state, Retention()) == 0
    assert remove_old_runs(state, Retention(days=8.5)) == 2
    left = run_paths(state)
    assert "20261101-old" not in left
    assert len(left) == 6
    assert remove_old_runs(state, Retention(runs=3)) == 1
    assert not (tmp_path / "runs" / "20261103-lost").exists()
    assert remove_old_runs(state, Retention(days=0.0)) == 3
    assert sorted(run_paths(state)) == ["20261102-running", "20261107-starting"]
    assert (outside / "plan.json").exists()
    empty_trash(state).join()
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"20261102-running", "20261107-starting"}


def test_a_running_run_without_its_records_stays(tmp_path: Path) -> None:
    """The disk was full when it started, and is not any more."""
    folder = make_run(tmp_path, "20261101-running", age=9 * DAY, exit_code=None, pid=os.getpid())
    changed = folder.stat().st_mtime
    (tmp_path / "active").mkdir()
    (folder / "run.json").rename(tmp_path / "active" / folder.name)
    os.utime(folder, (changed, changed))
    assert remove_old_runs(str(tmp_path), Retention(days=1.0)) == 0
    assert folder.exists()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="/dev/shm is the other disk")  # noqa: S108 - as it says
def test_runs_may_be_on_another_disk(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        make_run(Path(disk), "20261101-old", age=9 * DAY)
        (tmp_path / "runs").symlink_to(f"{disk}/runs")
        assert remove_old_runs(str(tmp_path), Retention(days=1.0)) == 1
        assert read_history(str(tmp_path)) == []
        empty_trash(str(tmp_path)).join()
        assert os.listdir(f"{disk}/runs") == []


def test_ended_runs_have_a_size_in_all(tmp_path: Path) -> None:
    for age, name in enumerate(("20261103-new", "20261102-mid", "20261101-old")):
        make_run(tmp_path, name, age=DAY * age, printed=40_000)
    assert remove_old_runs(str(tmp_path), Retention(bytes=100_000)) == 1
    assert sorted(run_paths(str(tmp_path))) == ["20261102-mid", "20261103-new"]
    (tmp_path / "runs" / "20261102-mid" / "mpirun.log").unlink()  # sizes are read once
    assert remove_old_runs(str(tmp_path), Retention(bytes=1)) == 1
    assert list(run_paths(str(tmp_path))) == ["20261103-new"]


@pytest.mark.parametrize(
    ("text", "retention"),
    [
        ("20", Retention(runs=20)),
        ("30d,5GB", Retention(days=30.0, bytes=5 * 10**9)),
        ("0.5d, 7, 1GiB", Retention(7, 0.5, 1 << 30)),
        ("all", Retention()),
    ],
)
def test_runs_to_keep(text: str, retention: Retention) -> None:
    assert parse_retention(text, "--keep-runs") == retention


@pytest.mark.parametrize("text", ["", "week", "-1", "30d;5GB"])
def test_what_is_no_retention(text: str) -> None:
    with pytest.raises(InputError, match=r"--keep-runs: '.*' is not a number of runs, age or size, such as 100,"):
        parse_retention(text, "--keep-runs")


def test_a_child_of_its_ddlrun_is_supervised() -> None:
    rows = ("7 5 S {run} - 5 mpirun", "8 1 S {run} 0 5 sleep", "9 1 S x - - y")
    text = "".join(f"@process {row}\n" for row in rows).format(run="20261123-tokarumi")
    assert [(process.pid, process.supervised) for process in parse_processes(text)] == [(7, True), (8, False)]


def test_a_process_without_the_name_of_its_run_has_the_mark_of_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20261123-tokarumi")
    (run / "restart-1").mkdir()
    names = attempt_names(str(run))
    assert names == ["20261123-tokarumi", "20261123-tokarumi-1"]
    rows = (f"@process {pid} 1 S {mark_of(name)} - - sleep 9\n" for pid, name in enumerate((*names, "another")))
    assert [process.run for process in parse_processes("".join(rows), names)] == names


HIDDEN = """
import os, sys
from ddlrun.keeper.processes import mark_process
from ddlrun.keeper.protocol import AGENT_RUN
mark_process(sys.argv[1])
print(os.getpid(), flush=True)
os.execvpe("setsid", ["setsid", "sleep", "300"], {})
"""


def test_a_marked_process_without_an_environment_is_found_and_ended(tmp_path: Path) -> None:
    name = f"20261123-{os.getpid()}"
    make_run(tmp_path / "ddlrun", name)
    argv = [sys.executable, "-c", HIDDEN, name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as hidden:
        assert hidden.stdout is not None
        hidden.stdout.readline()
        wait_until(lambda: command_line(hidden.pid).startswith("sleep"))
        run = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
        processes = parse_processes(run(["sh", "-c", LIST]).stdout, [name])
        assert [process.pid for process in processes if process.run == name] == [hidden.pid]
        replies = end_runs({"localhost": [name]}, 0, reach(HostLinks(AgentLauncher())))
        assert (replies, hidden.wait()) == (({"localhost": 1}, {}), -signal.SIGKILL)


def test_a_run_that_another_run_has_started_is_not_ended_with_it() -> None:
    """Its processes have the mark of the other one, as they inherit it."""
    outer, inner = f"20261123-{os.getpid()}-outer", f"20261124-{os.getpid()}-inner"
    argv = [sys.executable, "-c", HIDDEN.replace("{}", repr({"DDLRUN_RUN": inner})), outer]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: command_line(process.pid).startswith("sleep"))
        ended = end_runs({"localhost": [outer]}, 0, reach(HostLinks(AgentLauncher())))
        running = process.poll() is None
        end_runs({"localhost": [inner]}, 0, reach(HostLinks(AgentLauncher())))
        assert (ended, running, process.wait()) == (({"localhost": 0}, {}), True, -signal.SIGKILL)


def test_a_users_systemd_is_no_parent() -> None:
    """It adopts processes as that of the system does."""
    name = f"20261123-{os.getpid()}"
    script = f"echo systemd >/proc/$$/comm; DDLRUN_RUN={name} sleep 300 & echo $!; read line; kill $!"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: command_line(child).startswith("sleep"))
        listed = subprocess.run(["sh", "-c", LIST], capture_output=True, text=True, check=True).stdout
        parents = [process.parent for process in parse_processes(listed) if process.pid == child]
        parent.communicate("\n")
    assert parents == [1]


def test_an_agent_is_found_and_ended_only_if_nothing_else_ends_it() -> None:
    """Agents stay for the next runs: that of the first one is over, and a sweep spares them."""
    name = f"20261123-{os.getpid()}"
    script = f"echo systemd >/proc/$$/comm; {AGENT_RUN}={name} sleep 300 & echo $!; read line; kill $!"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        agent = int(parent.stdout.readline())
        wait_until(lambda: command_line(agent).startswith("sleep"))

        def find() -> tuple[list[int], dict[str, int]]:
            listed = subprocess.run(["sh", "-c", LIST], capture_output=True, text=True, check=True).stdout
            found = [process.pid for process in parse_processes(listed, [name]) if process.run == name]
            return found, end_runs({"localhost": [name]}, 0, reach(HostLinks(AgentLauncher())))[0]

        running = find()
        os.kill(agent, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(agent).status() == psutil.STATUS_STOPPED)
        stopped = find()
        parent.communicate("\n")
    assert (running, stopped) == (([], {"localhost": 0}), ([agent], {"localhost": 1}))


def test_a_keeper_without_a_mark_has_the_run_of_its_program() -> None:
    rows = ["7 5 S @20261123-first - - python -I -S /x/ddlrun/agent/start.py --agent",
            "8 7 S 20261123-first-1 0 - train", "9 1 S @20261123-first - - python -I -S /x/agent/start.py"]  # fmt: skip
    processes = parse_processes("".join(f"@process {row}\n" for row in rows))
    assert [(process.pid, process.run) for process in processes] == [(7, "20261123-first-1"), (8, "20261123-first-1")]
    assert orphans(processes) == {}


AGENT = "@process 7 {parent} {state} 20261123-tokarumi - - python -I -S /x/ddlrun/agent/start.py --agent\n"


@pytest.mark.parametrize(("parent", "state", "left"), [(5, "S", 0), (1, "S", 0), (5, "T", 0), (1, "T", 1)])
def test_a_stopped_agent_without_its_parent_is_left(parent: int, state: str, left: int, tmp_path: Path) -> None:
    """One that runs ends by itself, and a job that was stopped as a whole has its parents."""
    processes = parse_processes(AGENT.format(parent=parent, state=state))
    assert len(orphans(processes)) == left
    table = render_runs(list_runs(str(tmp_path), None, {"h3": processes}))
    assert ("left processes on h3: ddlrun clean h3" in table, "20261123-tokarumi  -        running" in table) == (
        left == 1,
        left == 0,
    )
    assert orphans(processes, {"20261123-tokarumi"}), "its run has an outcome"


@given(st.binary(max_size=30).map(lambda data: data.replace(b"0", b"\n")), st.integers(0, 5))
def test_the_last_lines_of_a_log(data: bytes, count: int) -> None:
    file = io.BytesIO(data)
    seek_last_lines(file, count)
    lines = re.findall(rb"[^\n]*\n|[^\n]+\Z", data)
    assert file.read() == b"".join(lines[len(lines) - count :] if count < len(lines) else lines)


@pytest.mark.parametrize("words", [["--", "--more"], ["last", "--", "--more"], ["-np", "2"], ["last"], []])
def test_rerun_gets_every_word(words: list[str]) -> None:
    assert rerun_command.make_context("rerun", [*words]).params["changes"] == tuple(words)


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "20261101-karo")
    (folder / "plan.json").write_text(json.dumps({"ranks": [{}]}))
    (folder / "output.order").mkdir()
    (folder / "ranks" / "0.log").mkdir(parents=True)
    for ranks, name in ((None, "output.order"), ([0], "0.log")):
        with pytest.raises(InputError, match=f"{name}: Is a directory"):
            list(read_logs(str(folder), ranks, None, follow=False))


def test_a_run_that_is_starting_has_no_logs_yet(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"ranks": [{}]}')
    assert [*read_logs(str(tmp_path), [0], None, follow=False)] == []
    assert [*read_logs(str(tmp_path), None, 3, follow=False)] == []
    with pytest.raises(InputError, match="rank 1: the run has 1 rank, numbered from 0"):
        [*read_logs(str(tmp_path), [1], None, follow=False)]


def run_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that knows the runs, processes and files of a folder alone, but for shared memory and /tmp."""
    environ = os.environ | {"XDG_STATE_HOME": str(folder), "TMPDIR": str(folder), "PATH": see_only(mark(), folder)}
    argv = [sys.executable, "-m", "ddlrun", *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def make_leftovers(folder: Path, number: str) -> list[Path]:
    """Make the folders that ddlrun and Open MPI name after a process; return them."""
    users = folder / f"ompi.host.{os.geteuid()}"
    for name in (f"ompi.{number}", f"prted.{number}", f"ddlrun-{number}-ab12"):
        (folder / name / "0").mkdir(parents=True)
    (users / f"pid.{number}").mkdir(parents=True)
    (users / f"jf.{number}" / f"pmix_dstor_ds21_{number}").mkdir(parents=True)
    return [path for path in (*folder.glob("*"), *users.glob("*")) if number in path.name]


def test_clean_removes_what_dead_jobs_have_left(tmp_path: Path) -> None:
    """Not the folders of processes that live, nor shared memory that is mapped, nor what another file links to.

    A failing job of another test may remove the unused file before.
    """
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    dead, alive = make_leftovers(tmp_path, str(ended.pid)), make_leftovers(tmp_path, str(os.getpid()))
    (tmp_path / f"prted.{ended.pid}0").symlink_to(tmp_path)
    names = "ucx_shm_posix_", "open_mpi.", "mpich_shm_"
    *unused, used = (Path(f"{leftovers.FOLDER}/{name}{mark()}") for name in names)
    for path in (*unused, used):
        path.write_bytes(b"x")
    try:
        with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            file.close()
            listed = run_command(tmp_path, "clean", "--dry-run")
            assert all(path.exists() for path in (*dead, *alive, used))
            cleaned = run_command(tmp_path, "clean")
            assert [path.exists() for path in (*unused, used)] == [False, False, True]
    finally:
        for path in (*unused, used):
            path.unlink(missing_ok=True)
    assert [path for path in (*dead, *alive) if path.exists()] == alive
    for done, verb in ((listed, "left by a job"), (cleaned, "removed")):
        named = {Path(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if f"localhost: {verb}: " in line}
        assert ({*dead} <= named, named & {*alive, used}) == (True, set()), done


def test_clean_leaves_folders_that_other_hosts_share(tmp_path: Path) -> None:
    """As they are named after processes of these; df -l fails for what is not local."""
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    left = make_leftovers(tmp_path, str(ended.pid))
    remote = tmp_path / "bin" / "df"
    remote.parent.mkdir()
    remote.write_text('#!/bin/sh\n[ "$PWD" != "$TMPDIR" ]\n')
    remote.chmod(0o755)
    run_command(tmp_path, "clean")
    assert all(path.exists() for path in left)


def test_shared_memory_that_is_being_mapped_is_used(tmp_path: Path) -> None:
    """Its user maps it, and closes the file, at the worst moment. What NCCL does not write stays in any case."""
    path, other = Path(f"{leftovers.FOLDER}/mpich_shm_{mark()}"), Path(f"{leftovers.FOLDER}/nccl-{mark()}.xml")
    cat, mapped, closed = (tmp_path / name for name in ("cat", "mapped", "closed"))
    for fifo in (mapped, closed):
        os.mkfifo(fifo)
    cat.write_text(f"#!/bin/sh\n{shutil.which('cat')} $*\n: >{mapped}\nread line <{closed}\n")
    cat.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    path.write_bytes(b"x")
    other.write_bytes(b"x")
    try:
        with path.open("r+b") as file, subprocess.Popen(["sh", "-c", leftovers.SCRIPT], env=environ) as search:
            mapped.read_bytes()
            with mmap.mmap(file.fileno(), 0):
                file.close()
                closed.write_bytes(b"\n")
                search.wait()
                assert (path.exists(), other.exists()) == (True, True)
    finally:
        path.unlink(missing_ok=True)
        other.unlink(missing_ok=True)


LIMITED = """
import os, resource, sys
from ddlrun.keeper.leftovers import remove_leftovers
if sys.argv[1] == "processes":
    if os.geteuid() == 0:
        os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
remove_leftovers(0.1)
print("on")
"""


@pytest.mark.parametrize("problem", ["processes", "blocked"])
def test_a_search_for_shared_memory_that_is_impossible_stops_nothing(tmp_path: Path, problem: str) -> None:
    """Where the user may have no further process, or reading what a process has mapped blocks."""
    path, cat = Path(f"{leftovers.FOLDER}/mpich_shm_{mark()}"), tmp_path / "cat"
    cat.write_text("#!/bin/sh\nexec sleep 300\n")
    cat.chmod(0o755)
    path.touch()
    try:
        argv = [sys.executable, "-c", LIMITED, problem]
        environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=300)
    finally:
        path.unlink(missing_ok=True)
    assert (done.stdout, done.stderr) == ("on\n", "")


def test_clean_reports_what_it_removed(tmp_path: Path) -> None:
    done = run_command(tmp_path, "clean")
    summary = "ended processes: 0; removed records of ended runs: 0; removed folders of runs: 0"
    assert done.stdout.splitlines()[0] == summary


def test_a_host_that_cannot_be_searched_has_not_been_cleaned(tmp_path: Path) -> None:
    """The record of its run stays, so that kill can be repeated."""
    run = make_run(tmp_path, "20261120-lost", exit_code=None)
    start = json.loads((run / "run.json").read_text())
    record = tmp_path / "ddlrun/active/20261120-lost"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({**start, "hosts": ["nowhere.invalid"]}))
    killed, listed = (
        run_command(tmp_path, "kill", "lost"),
        run_command(tmp_path, "clean", "--dry-run", "nowhere.invalid"),
    )
    assert ((killed.returncode, killed.stdout), record.exists()) == ((3, ""), True), killed
    assert (listed.returncode, listed.stdout) == (3, ""), listed


def test_the_beginning_of_a_name_that_an_ended_run_shares_kills_nothing(tmp_path: Path) -> None:
    for name in ("20261120-ended", "20261120-lost", "20261120-lonely"):
        make_run(tmp_path / "ddlrun", name)
    record = tmp_path / "ddlrun/active/20261120-lost-1"
    record.parent.mkdir()
    start = json.loads((tmp_path / "ddlrun/runs/20261120-lost/run.json").read_text())
    record.write_text(json.dumps({**start, "run": record.name, "hosts": ["localhost"]}))
    shared = run_command(tmp_path, "kill", "2026112")
    assert (shared.returncode, record.exists()) == (2, True), shared
    assert "run '2026112' is ambiguous: 20261120-ended, 20261120-lonely, 20261120-lost-1" in shared.stderr
    killed = run_command(tmp_path, "kill", "los")
    assert (killed.stdout, record.exists()) == ("ended: 20261120-lost-1\n", False), killed


def test_the_last_run_is_one_that_goes_on(tmp_path: Path) -> None:
    """A later one, whose ddlrun was killed, keeps its record until `ddlrun clean`."""
    active = tmp_path / "ddlrun/active"
    active.mkdir(parents=True)
    with subprocess.Popen(["sleep", "300"]) as ddlrun:
        for started, (name, pid) in enumerate({"20261120-going": ddlrun.pid, "20261120-killed": 1}.items()):
            start = json.loads((make_run(tmp_path, name, exit_code=None) / "run.json").read_text())
            own = {"pid": pid, "host": os.uname().nodename, "process_start": born(ddlrun.pid), "started": started}
            (active / name).write_text(json.dumps({**start, **own, "run": name, "hosts": ["localhost"]}))
        killed = run_command(tmp_path, "kill", "last")
        ddlrun.kill()
    assert killed.stdout == "ended: 20261120-going\n"
    assert [entry.name for entry in active.iterdir()] == ["20261120-killed"]


def test_a_relative_state_folder_is_ignored() -> None:
    """As the XDG specification demands: runs of another working folder would not be found."""
    assert state_folder({"HOME": "/h", "XDG_STATE_HOME": "state"}) == "/h/.local/state/ddlrun"
    assert state_folder({"HOME": "/h", "XDG_STATE_HOME": "/state"}) == "/state/ddlrun"


def rerun(stored: str, changes: str) -> str:
    return " ".join(merge_arguments(stored.split(), parse_changes(changes.split(), launch.params), launch.params))


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--", "y", "--z"], ("--", "y", "--z")),
        (["--tcp", "--", "last"], ("--tcp", "--", "last")),
        (["last", "--", "-h"], ("last", "--", "-h")),
    ],
)
def test_arguments_of_the_script_follow_two_dashes(words: list[str], changes: tuple[str, ...]) -> None:
    assert rerun_command.make_context("rerun", words).params["changes"] == changes


@pytest.mark.parametrize(
    ("stored", "changes", "words"),
    [
        ("-np 4 train.py -np 2", "", "-np 4 train.py -np 2"),
        ("-np 4 --bind none train.py", "toka -np 2", "--bind none -np 2 train.py"),
        ("--topology 2x2 -H n1,n2 a.py", "--num-proc=2 --hostfile h", "--num-proc=2 --hostfile h a.py"),
        ("--tcp --env A=1 a.py", "--tcp --env B=2", "--env A=1 --tcp --env B=2 a.py"),
        ("--run-dir d --json a.py x", "last -- y --z", "--json a.py x y --z"),
        ("-m pkg.train -v", "-- -w", "-m pkg.train -v -w"),
        ("-x TOKEN=<redacted> --env A_KEY=<redacted> a", "-x TOKEN --env A_KEY=1", "-x TOKEN --env A_KEY=1 a"),
        ("-- train.py x", "-- y", "-- train.py x y"),
    ],
)
def test_the_words_of_another_launch(stored: str, changes: str, words: str) -> None:
    assert rerun(stored, changes) == words


@pytest.mark.parametrize(
    ("stored", "changes", "problem"),
    [
        ("a.py", "toka b.py", "'b.py': unexpected argument"),
        ("a.py", "--nope 3", "'--nope': ddlrun launch has no such option"),
        ("a.py", "toka -np", "'-np': the value of this option is missing"),
        (
            "--on-event <redacted> a.py",
            "",
            "the value of --on-event was not stored, as it may be secret; give it again",
        ),
        ("a.py --token <redacted>", "", "an argument of the program was not stored, as it may be secret"),
        ("--env A_KEY=<redacted> a.py", "", "the value of A_KEY was not stored, as it may be secret; add -x A_KEY"),
    ],
)
def test_changes_that_cannot_be_made(stored: str, changes: str, problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)):
        rerun(stored, changes)


def test_secrets_are_not_stored() -> None:
    words = ["--env", "TOKEN=a", "--env=B=1", "-xKEY=b", "-x", "C", "-np", "2", "a.py", "--env", "TOKEN=c"]
    stored = ("--env", "TOKEN=<redacted>", "--env", "B=1", "--env", "KEY=<redacted>", "-x", "C", "-np", "2")
    assert strip_secrets(words, launch.params) == (*stored, "a.py", "--env", "TOKEN=<redacted>")
    hook = "https://hooks.slack.com/services/x"
    for option in (("--on-event", hook), (f"--on-event={hook}",)):
        assert strip_secrets([*option, "-H", "h1:4", "a.py"], launch.params) == (
            "--on-event", "<redacted>", "-H", "h1:4", "a.py",
        )  # fmt: skip
