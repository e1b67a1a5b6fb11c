"""Real launches on this machine under both Open MPI majors."""

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlrun.managers.installation import allows_root
from ddlrun.managers.openmpi import OVERRULING
from ddlrun.ranges import render_ranges
from ddlrun.runs.state_folders import elsewhere
from ddlrun.wording import counted
from tests.cluster.two_hosts import TwoHosts
from tests.conftest import launch_line
from tests.support import needs
from tests.support.cpus import CORES, USABLE, node_of, package_of
from tests.support.processes import listed, mark, mpirun_of, running, started, wait_for

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "digits.py"
# What a rank says of itself, in one write.
TELL = (
    "import json, os, sys; e = os.environ; os.write(1, (json.dumps(dict("
    "rank=int(e['OMPI_COMM_WORLD_RANK']), cpus=sorted(os.sched_getaffinity(0)), threads=e.get('OMP_NUM_THREADS'),"
    "topology=e['DDLRUN_TOPOLOGY'], ddl=e['DDL_OPTIONS'], path=e['PATH'], mine=e.get('MINE'), argv=sys.argv[1:],"
    "cwd=os.getcwd())) + '\\n').encode())"
)
PLAIN = ("--output", "no-tag", "--allow-run-as-root")
Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def line(mpirun: str, tmp_path: Path) -> list[str]:
    return launch_line(mpirun, tmp_path, *PLAIN)


@pytest.fixture
def launch(line: list[str]) -> Launch:
    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*line, *arguments], capture_output=True, text=True, timeout=300, check=False, **options)  # type: ignore[call-overload,no-any-return]

    return run


def told(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda rank: int(str(rank["rank"])))


def cpus_of(rank: dict[str, object]) -> list[int]:
    cpus = rank["cpus"]
    assert isinstance(cpus, list)
    return cpus


def planned_cpus(folder: Path) -> list[str]:
    """Return the CPUs that the plan of a run gives to each rank."""
    plan = json.loads((folder / "run" / "plan.json").read_text())
    return [seat.split("@")[1] for seat in plan["variables"]["DDLRUN_SEATS"].partition("*")[2].split(";")]


def binding_of(folder: Path) -> Any:
    return json.loads((folder / "run" / "binding.json").read_text())


# Prints its CPUs, and waits for a file.
HOLD = (
    "import os, sys, time; print(*sorted(os.sched_getaffinity(0)), flush=True)\n"
    "while not os.path.exists(sys.argv[1]): time.sleep(0.05)"
)


@pytest.mark.openmpi(5)
def test_launches_at_the_same_time_take_different_cores(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    options = ["--allow-run-as-root", "--output", "no-tag", "-np", "1", "--cores-per-rank", "1"]
    line = [sys.executable, "-m", "ddlrun", "launch", *options, sys.executable, "-c", HOLD, str(tmp_path / "stop")]
    outputs = [tmp_path / f"out{number}" for number in range(len(CORES) + 1)]
    with ExitStack() as stack:
        launches = [
            stack.enter_context(subprocess.Popen(line, env=environ, stdout=file, stderr=subprocess.STDOUT))
            for file in (stack.enter_context(path.open("w")) for path in outputs)
        ]
        wait_for(lambda: all(path.read_text().count("\n") > 5 for path in outputs))
        wait_for(lambda: all(path.read_text().splitlines()[-1][0].isdigit() for path in outputs))
        (tmp_path / "stop").touch()
        assert [launch.wait() for launch in launches] == [0] * len(launches)
    cpus = sorted((path.read_text().splitlines()[-1] for path in outputs), key=len)
    *bound, loose = [[int(cpu) for cpu in line.split()] for line in cpus]
    assert (sorted(cpu for own in bound for cpu in own), loose) == (USABLE, USABLE)
    assert sum("they share CPUs" in path.read_text() for path in outputs) == 1
    assert os.listdir(tmp_path / "state" / "ddlrun" / "active") == []


# A process of another user with a rank's announcement, on a CPU.
OTHER_USER = (
    "import os, sys; sys.path.insert(0, sys.argv[2]); from ddlrun.keeper.kept_rank import announce_cpus; "
    "os.setuid(65534); os.sched_setaffinity(0, {int(sys.argv[1])}); announce_cpus(); print('up', flush=True); input()"
)


@pytest.mark.openmpi(5)
@pytest.mark.parametrize("host", ["h1", "h2"])
def test_cores_of_another_users_ranks_are_left_to_them(hosts: TwoHosts, host: str, tmp_path: Path) -> None:
    needs.root()
    if len(CORES) < 2:
        needs.skip("one core, and none that is free")
    taken = min(CORES[0])
    line = [sys.executable, "-m", "ddlrun", "launch", "--dry-run", "--json", "-np", "1", "--cores-per-rank", "1"]
    line += ["-H", host, "--checks", "ssh", "true"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with started(
        hosts.argv(host, [sys.executable, "-c", OTHER_USER, str(taken), str(ROOT)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout.readline() == b"up\n"
        done = subprocess.run(hosts.argv("h1", line), env=environ, capture_output=True, text=True, check=False)
        other.stdin.close()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["variables"]["DDLRUN_SEATS"].split("@")[1] == render_ranges(CORES[1])


# Prints the CPUs that the processes above it announce.
ANNOUNCED = """
import os, re
pid, above = os.getpid(), []
while pid:
    above.append(str(pid))
    pid = int(re.search(r"PPid:\\s(\\d+)", open(f"/proc/{pid}/status").read())[1])
names = re.findall(r"@ddlrun-cpus/(\\d+)/(\\d+)/(\\S+)", open("/proc/net/unix").read())
print([cpus for user, keeper, cpus in names if keeper in above and user == str(os.getuid())])
"""


@pytest.mark.parametrize(("option", "value"), [("--cores-per-rank", "1"), ("--bind", "none")])
def test_ranks_announce_their_cpus_to_other_users(launch: Launch, option: str, value: str) -> None:
    if len(CORES) < 2:
        needs.skip("one core, and a rank has all")
    done = launch("-np", "1", option, value, sys.executable, "-c", ANNOUNCED)
    assert done.returncode == 0, done.stderr
    assert (ast.literal_eval(done.stdout) == []) == (value == "none")


def test_each_rank_is_bound_to_the_cores_of_the_plan(launch: Launch, tmp_path: Path) -> None:
    ranks = told(launch("--ranks-per-host", "core", "python3", "-c", TELL))
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert len(ranks) == len(plan["ranks"]) == len(CORES)
    assert sorted(cpu for rank in ranks for cpu in cpus_of(rank)) == USABLE
    assert [render_ranges(cpus_of(rank)) for rank in ranks] == planned_cpus(tmp_path)
    assert [rank["threads"] for rank in ranks] == [str(rank["threads"]) for rank in plan["ranks"]]


def test_the_memory_of_each_rank_is_bound_where_the_plan_says(launch: Launch, tmp_path: Path) -> None:
    needs.memory_policy()
    shown = "print(open('/proc/self/numa_maps').readline().split()[1])"
    done = launch("--ranks-per-host", "2", "--membind", "local", "--strict-binding", "python3", "-c", shown)
    nodes = [rank["memory_nodes"] for rank in json.loads((tmp_path / "run" / "plan.json").read_text())["ranks"]]
    assert sorted(done.stdout.splitlines()) == sorted(f"bind:{render_ranges(inside)}" for inside in nodes), done.stderr
    assert "memory of NUMA node" in done.stderr


def test_what_would_overrule_the_rank_file_is_left_out(launch: Launch) -> None:
    values = {"mapping_policy": "slot", "cpu_list": str(USABLE[-1])}
    environ = {**os.environ, **{name: values.get("_".join(name.split("_")[-2:]), "none") for name in OVERRULING}}
    done = launch("--ranks-per-host", "core", "--verbose", "python3", "-c", TELL, env=environ)
    assert sorted(cpu for rank in told(done) for cpu in cpus_of(rank)) == USABLE
    assert [name for name in OVERRULING if f"{name}: left out" not in done.stderr] == []


def test_one_rank_gets_the_whole_package(launch: Launch) -> None:
    (rank,) = told(launch("--ranks-per-host", "1", "python3", "-c", TELL))
    assert {*cpus_of(rank)} >= package_of(USABLE[0])


def test_the_run_folder_keeps_what_each_rank_was_given(launch: Launch, tmp_path: Path) -> None:
    done = launch("-np", "2", "--cores-per-rank", "1", "sh", "-c", "printf no-newline; printf end >&2")
    assert (done.returncode, done.stdout) == (0, "no-newline\nno-newline")
    assert done.stderr.endswith("\nend\nend")
    binding = binding_of(tmp_path)
    assert (binding["ranks"], binding["reported"], binding["different"]) == (2, 2, [])
    planned = planned_cpus(tmp_path)
    assert [rank["cpus"] for rank in binding["bindings"]] == planned
    assert [rank["planned"] for rank in binding["bindings"]] == planned


SWAP = """
import re, sys
text = open(sys.argv[1]).read()
first, second = re.findall("(?m)^rank .*slot=(.*)", text)
slots = iter([second, first])
open(sys.argv[1], "w").write(re.sub("(?m)slot=.*", lambda _: f"slot={next(slots)}", text))
"""


def wrap(mpirun: str, folder: Path, version: str = "") -> list[str]:
    """Return a launch of two ranks whose mpirun is a site's wrapper that exchanges their cores."""
    if len(CORES) < 2:
        needs.skip("one core, which ranks cannot exchange")
    (folder / "swap.py").write_text(SWAP)
    path = folder / "mpirun"
    swap = f"{sys.executable} {folder}/swap.py {folder}/run/rankfile"
    text = f'echo "mpirun (Open MPI) {version}"' if version else f"{mpirun} --version"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ {text}; exit; }}\n{swap}\nexec {mpirun} "$@"\n')
    path.chmod(0o755)
    return [*launch_line(str(path), folder, *PLAIN), "-np", "2", "--cores-per-rank", "1"]


@pytest.fixture
def swapping(mpirun: str, tmp_path: Path) -> list[str]:
    return wrap(mpirun, tmp_path)


def test_a_rank_that_is_bound_otherwise_says_so_and_why(swapping: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*swapping, "echo", "started"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "started\n" * 2)
    host = os.uname().nodename
    first, second = planned_cpus(tmp_path)
    lines = [line for line in done.stderr.splitlines() if "planned" in line]
    why = "the host changed since it was probed, or an MCA setting binds otherwise"
    assert sorted(lines) == [
        f"ddlrun: rank 0 on {host}: bound to CPUs {second}, planned {first}; {why}",
        f"ddlrun: rank 1 on {host}: bound to CPUs {first}, planned {second}; {why}",
    ]
    assert binding_of(tmp_path)["different"] == [0, 1]


def test_strict_binding_ends_the_job_before_it_starts(swapping: list[str]) -> None:
    argv = [*swapping, "--strict-binding", "echo", "started"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "")


NEWER = "Open MPI 7.0.1 is newer than 6.1, the last one that ddlrun knows"


@pytest.mark.openmpi(5)
@pytest.mark.parametrize(("option", "ended"), [([], (5, "")), (["--no-strict-binding"], (0, "started\n" * 2))])
def test_misplaced_ranks_of_a_newer_open_mpi(
    mpirun: str, tmp_path: Path, option: list[str], ended: tuple[int, str]
) -> None:
    argv = [*wrap(mpirun, tmp_path, "7.0.1"), *option, "echo", "started"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == ended
    assert NEWER in done.stderr
    assert "bound to CPUs" in done.stderr


@pytest.mark.openmpi(5)
def test_a_newer_open_mpi_is_noted_and_used(mpirun: str, tmp_path: Path) -> None:
    line = wrap(mpirun, tmp_path, "7.0.1")
    (tmp_path / "swap.py").write_text("")
    options = ["--mpirun", str(tmp_path / "mpirun")]
    check = [*line[:3], "check", *options, "--checks", "ssh"]
    for argv in ([*line, "true"], [*line[:3], "launch", *options, "--dry-run", "true"], check):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert NEWER in done.stdout + done.stderr


def test_more_ranks_than_cores(mpirun: str, launch: Launch, tmp_path: Path) -> None:
    ranks, cores = str(2 * len(CORES)), counted(len(CORES), "core")
    line = launch_line(mpirun, tmp_path, *PLAIN)
    strict = [*line, "-np", ranks, "--strict-binding", "true"]
    refused = subprocess.run(strict, capture_output=True, text=True, check=False)
    assert refused.returncode == 4
    assert f"use at most {counted(len(CORES), 'rank')} per host" in refused.stderr
    shared = launch("-np", ranks, "python3", "-c", TELL)
    assert [cpus_of(rank) for rank in told(shared)] == [[*USABLE]] * int(ranks)
    assert f"note: localhost: {ranks} ranks run unbound on {cores}; for a core per rank, use at most" in shared.stderr
    assert not binding_of(tmp_path)["different"]
    variables = json.loads((tmp_path / "run" / "plan.json").read_text())["variables"]
    assert variables["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_more_ranks_than_cores_where_there_is_no_ssh(mpirun: str, tmp_path: Path) -> None:
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("ssh", "rsh"):
            (tmp_path / program.name).symlink_to(program)
    ranks = str(2 * len(CORES))
    argv = [*launch_line(mpirun, tmp_path, "--allow-run-as-root", "-np", ranks), sys.executable, "-c", ""]
    done = subprocess.run(argv, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("bind", "wide"), [("numa", node_of), ("package", package_of), ("none", lambda _: {*USABLE})])
def test_ranks_that_may_run_on_more_than_their_own_cores(
    launch: Launch, bind: str, wide: Callable[[int], set[int]], tmp_path: Path
) -> None:
    ranks = told(launch("--ranks-per-host", "core", "--bind", bind, "python3", "-c", TELL))
    assert all({*cpus_of(rank)} == wide(cpus_of(rank)[0]) for rank in ranks)
    assert {rank["threads"] for rank in ranks} == {str(len(CORES[0]))}
    assert binding_of(tmp_path)["different"] == []


def test_fewer_cores_and_threads(launch: Launch, tmp_path: Path) -> None:
    (rank,) = told(launch("-np", "1", "--cores-per-rank", "1", "--threads-per-core", "1", "python3", "-c", TELL))
    assert (len(cpus_of(rank)), rank["threads"]) == (1, "1")
    if len(CORES) > 1:
        (rank,) = told(
            launch("-np", "1", "--reserve-cores", "1", "--run-dir", str(tmp_path / "2"), "python3", "-c", TELL)
        )
        assert USABLE[0] not in cpus_of(rank)


def test_threads_are_bound_only_if_asked(launch: Launch, tmp_path: Path) -> None:
    show = ["sh", "-c", "echo $OMP_PROC_BIND $OMP_PLACES"]
    assert launch("-np", "1", *show).stdout == "\n"
    assert launch("-np", "1", "--run-dir", str(tmp_path / "2"), "--bind-threads", *show).stdout == "close cores\n"
    assert launch("-np", "1", "--run-dir", str(tmp_path / "3"), "--no-bind-threads", *show).stdout == "false\n"


def test_the_users_own_rank_file(launch: Launch, tmp_path: Path) -> None:
    if len(package_of(0) & {cores[0] for cores in CORES}) < 2:
        needs.skip("fewer than two cores in package 0")
    (tmp_path / "ranks").write_text("# mine\nrank 0=localhost slot=0:1\nrank 1=localhost slot=0:0\n")
    ranks = told(launch("--rankfile", str(tmp_path / "ranks"), "python3", "-c", TELL))
    assert cpus_of(ranks[0]) > cpus_of(ranks[1])
    assert [render_ranges(cpus_of(rank)) for rank in ranks] == planned_cpus(tmp_path)
    assert (tmp_path / "run" / "rankfile").read_text().startswith("# mine\n")
    assert binding_of(tmp_path)["different"] == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("rank 1=localhost slot=0:1\nrank 0=localhost slot=0:0\n", ":2:1: rank 0 comes after rank 1; Open MPI"),
        ("rank 0=localhost slot=0:0-4095\n", ":1:23: slot=0:0-4095 on localhost"),
        ("rank 0=localhost slot=0:0\nrank 1=other slot=0:0\n", ":2:8: host 'other' is not among the job's hosts"),
    ],
)
def test_nothing_is_skipped_because_the_rank_file_is_the_users(
    launch: Launch, tmp_path: Path, text: str, part: str
) -> None:
    (tmp_path / "ranks").write_text(text)
    done = launch("--rankfile", str(tmp_path / "ranks"), "-H", "localhost", "echo", "started")
    assert (done.returncode, done.stdout) == (4, "")
    assert f"ddlrun: error: {tmp_path / 'ranks'}{part}" in done.stderr
    assert not (tmp_path / "run").exists()


def test_affinity_that_we_were_given_is_kept(launch: Launch) -> None:
    cpu = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
        (rank,) = told(launch("--ranks-per-host", "core", "python3", "-c", TELL))
    finally:
        os.sched_setaffinity(0, before)
    assert rank["cpus"] == [cpu]


def test_environment_words_and_folder_reach_every_rank(launch: Launch, tmp_path: Path) -> None:
    words = ["a b", "", "$HOME", "*", "'\"", "--np", "ü\n", "-x"]
    environ = {**os.environ, "PATH": f"/nonexistent:{os.environ['PATH']}"}
    ranks = told(
        launch("-np", "2", "--env", "MINE=x y$z'\"\n", sys.executable, "-c", TELL, *words, env=environ, cwd=tmp_path)
    )
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["argv"] == words
        assert rank["mine"] == "x y$z'\"\n"
        assert rank["topology"] == "2x1x1"
        assert rank["ddl"] == "-mode p:2x1x1"
        assert rank["path"] == environ["PATH"]
        assert rank["cwd"] == str(tmp_path)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, max_size=20), st.lists(st.text("$x '\"\n\\*;&`ü") | TEXT, min_size=1, max_size=10))
def test_any_words_and_any_values_arrive_as_they_are(mpirun: str, words: list[str], values: list[str]) -> None:
    variables = {f"MINE{number}": value for number, value in enumerate(values)}
    code = (
        "import json, os, sys; e = os.environ; print(json.dumps([sys.argv[1:], {n: e[n] for n in e if 'MINE' in n}]))"
    )
    with tempfile.TemporaryDirectory() as folder:
        argv = launch_line(mpirun, Path(folder), *PLAIN, "-np", "1")
        argv += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        done = subprocess.run([*argv, sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [words, variables]


def test_threads_that_the_user_set_stay_and_are_shown(launch: Launch, tmp_path: Path) -> None:
    done = launch("-np", "2", "python3", "-c", TELL, env={**os.environ, "OMP_NUM_THREADS": "700,2"})
    assert {rank["threads"] for rank in told(done)} == {"700,2"}
    assert "ddlrun: note: OMP_NUM_THREADS=700, as you set it: ranks have cores for " in done.stderr
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert [rank["threads"] for rank in plan["ranks"]] == [700, 700]
    assert "planned" not in done.stderr


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("test $OMPI_COMM_WORLD_RANK = 0 || exit 5", 5),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
        ("kill -TERM $$", 143),
    ],
)
def test_the_exit_code_is_the_failing_ranks(launch: Launch, tmp_path: Path, script: str, code: int) -> None:
    done = launch("-np", "2", "sh", "-c", script)
    assert done.returncode == code
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["exit_code"] == code
    assert (f"exit code {code}" in done.stderr) == (code != 0)


def test_a_program_that_is_missing_or_not_executable(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    monkeypatch.setenv("PATH", f"{tmp_path}/closed:{os.environ['PATH']}:{tmp_path}")
    missing = launch("-np", "2", "no-such-program")
    assert missing.returncode == 127
    assert "cannot start 'no-such-program': No such file" in missing.stderr
    (tmp_path / "run").rename(tmp_path / "run1")
    (tmp_path / "plain").write_text("no program\n")
    plain = launch("-np", "1", "plain")
    assert plain.returncode == 126
    (tmp_path / "closed").chmod(0o700)


def test_output_goes_to_our_streams_and_to_the_logs(line: list[str], tmp_path: Path) -> None:
    argv = [*line, "-np", "1", "--quiet", "sh", "-c", "printf 'no newline'; printf 'ü\\rx' >&2"]
    done = subprocess.run(argv, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"no newline", "ü\rx".encode())
    logged = subprocess.run(
        [sys.executable, "-m", "ddlrun", "logs", str(tmp_path / "run")], capture_output=True, check=True
    )
    assert (logged.stdout, logged.stderr) == (done.stdout, done.stderr)


def test_a_flood_of_output_arrives_whole(launch: Launch) -> None:
    done = launch("-np", "1", "--quiet", "sh", "-c", "seq 1 400000")
    assert done.stdout == "".join(f"{number}\n" for number in range(1, 400001))


def test_output_comes_while_the_job_runs(line: list[str]) -> None:
    script = "print('now'); import time; time.sleep(600)"
    with started(
        [*line, "-np", "1", "python3", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as job:
        assert job.stdout.readline() == b"now\n"
        job.terminate()
    assert job.returncode == 143


def test_arguments_of_any_length_reach_the_ranks(line: list[str]) -> None:
    script = "import hashlib, os, sys; print(hashlib.md5(b'-'.join(map(os.fsencode, sys.argv))).hexdigest(), *"
    script += "(name for name in os.environ if 'ARGUMENTS' in name))"
    words = [*(b"%05d \xff'\"\n\\" % number for number in range(20_000)), b":", b"", b"x" * 120_000]
    argv = [*map(os.fsencode, [*line, "--quiet", "-np", "2", sys.executable, "-c", script]), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    digest = hashlib.md5(b"-".join([b"-c", *words])).hexdigest()  # noqa: S324 - for a comparison
    assert (done.stdout.split(), done.stderr) == ([digest] * 2, "")


@pytest.mark.openmpi(5)
def test_a_variable_that_is_too_long_is_an_error_before_the_start(launch: Launch, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"env: {{LONG: {'x' * 140_000}}}\n")
    done = launch("--config-file", str(config), "-np", "1", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ddlrun: error: LONG: 140005 characters are too long, Linux allows 131071")


def test_standard_input_reaches_rank_0_with_its_end(launch: Launch) -> None:
    text = "".join(f"{number}\n" for number in range(100_000))
    assert launch("-np", "2", "--quiet", "cat", input=text).stdout == text


def test_a_file_is_read_from_where_it_stands(line: list[str], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    with (tmp_path / "in").open("rb", buffering=0) as file:
        file.seek(4)
        done = subprocess.run([*line, "--quiet", "-np", "1", "cat"], stdin=file, capture_output=True, check=True)
    assert done.stdout == b"two\n"


def test_without_input_a_rank_reads_the_end_at_once(launch: Launch) -> None:
    assert launch("-np", "2", "--quiet", "cat", stdin=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_ends_the_job_and_leaves_nothing(line: list[str], name: str, times: int) -> None:
    number = signal.Signals[name]
    word = mark()
    argv = ["env", f"--default-signal={name[3:]}", *line, "--quiet", "-np", "2", "sleep", word]
    with started(argv) as job:
        wait_for(lambda: len(running(word)) == 2)
        for _ in range(times):
            job.send_signal(number)
            time.sleep(0.1)  # so that the second signal comes while the job ends, or after it
    assert job.returncode == 128 + number
    assert running(word) == []


def test_an_mpirun_that_is_killed_takes_its_ranks_along(line: list[str]) -> None:
    word = mark()
    with started([*line, "--quiet", "-np", "2", "sleep", word]) as job:
        wait_for(lambda: len(running(word)) == 2)
        os.kill(mpirun_of(job.pid), signal.SIGKILL)
    assert job.returncode == 137
    assert running(word) == []


def test_a_ddlrun_that_is_killed_takes_its_ranks_along(line: list[str]) -> None:
    word = mark()
    with started([*line, "--quiet", "-np", "2", "sleep", word]) as job:
        wait_for(lambda: len(running(word)) == 2)
        job.kill()
    wait_for(lambda: running(word) == [], lambda: listed(word))


def outlived(mpirun: str, folder: Path, word: str) -> list[str]:
    """Return a launch whose mpirun has a child that does not end with it, as an ssh client of a cut network does."""
    wrapper = folder / "mpirun"
    start = f"sleep {word} >/dev/null 2>&1 &\n"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {start}exec {mpirun} "$@"\n')
    wrapper.chmod(0o755)
    return [*launch_line(str(wrapper), folder, *PLAIN), "--quiet"]


def test_a_child_of_mpirun_ends_after_a_job_that_succeeds(mpirun: str, tmp_path: Path) -> None:
    word = mark()
    assert subprocess.run([*outlived(mpirun, tmp_path, word), "-np", "1", "true"], check=False).returncode == 0
    wait_for(lambda: running(word) == [], lambda: listed(word))


def test_a_child_of_mpirun_ends_after_both_were_killed(mpirun: str, tmp_path: Path) -> None:
    word = mark()
    with started([*outlived(mpirun, tmp_path, word), "-np", "1", "sleep", word]) as job:
        wait_for(lambda: len(running(word)) == 2)
        own = mpirun_of(job.pid)
        job.kill()
        os.kill(own, signal.SIGKILL)
    wait_for(lambda: running(word) == [], lambda: listed(word))


def test_a_job_leaves_nothing_in_the_temporary_folder(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = launch("-np", "2", "ls", str(tmp_path / "tmp"), env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    assert done.stdout.count("ddlrun-") == 2  # the session's own folder, while it lasts
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_reader_that_went_away_ends_the_job(line: list[str]) -> None:
    word = mark()
    script = f"sleep {word} & while :; do echo x; done"
    with started([*line, "--quiet", "-np", "1", "sh", "-c", script], stdout=subprocess.PIPE) as job:
        assert job.stdout.read(2) == b"x\n"
        job.stdout.close()
    assert job.returncode == 141
    assert running(word) == []


def test_the_printed_command_does_the_same_by_hand(launch: Launch, tmp_path: Path) -> None:
    launch("-np", "2", "--dry-run", "python3", "-c", TELL)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    environ = {**os.environ, **plan["variables"]}
    by_hand = subprocess.run(plan["command"], env=environ, capture_output=True, text=True, check=True)
    shown = (tmp_path / "run" / "command").read_text()
    by_shell = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
    assert sorted(by_hand.stdout.splitlines()) == sorted(by_shell.stdout.splitlines())
    assert len(by_hand.stdout.splitlines()) == 2


def test_a_machine_without_ssh_is_enough_for_one_host(line: list[str], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "grep", "env"):
        (tools / tool).symlink_to(f"/bin/{tool}")
    done = subprocess.run(
        [*line, "--quiet", "-np", "2", "/bin/echo", "x"],
        env={"PATH": str(tools), "HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\nx\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_root_must_say_that_it_is_meant_outside_of_containers(mpirun: str, tmp_path: Path) -> None:
    line = launch_line(mpirun, tmp_path, "true")
    environ = {name: value for name, value in os.environ.items() if "ALLOW_RUN_AS_ROOT" not in name}
    done = subprocess.run(line, env=environ, capture_output=True, text=True, check=False)
    if allows_root(environ):  # in a container
        assert done.returncode == 0, done.stderr
    else:
        assert (done.returncode, "--allow-run-as-root" in done.stderr) == (5, True)
        assert not (tmp_path / "run").exists()
        planned = subprocess.run([*line[:4], "--dry-run", *line[4:]], env=environ, capture_output=True, check=False)
        assert planned.returncode == 0


def test_without_a_home_that_can_be_written_it_runs_all_the_same(mpirun: str, tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "ddlrun",
        "launch",
        "--mpirun",
        mpirun,
        *PLAIN,
        "-np",
        "1",
        "--verbose",
        "/bin/echo",
        "x",
    ]
    plain = {name: os.environ[name] for name in ("PATH", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")}
    state = {**plain, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(line, env=state, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
    barred = {**plain, "XDG_STATE_HOME": "/dev/null/none", "TMPDIR": str(tmp_path)}
    done = subprocess.run(line, env=barred, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
    named = re.search(r"(?m)^ddlrun: note: /dev/null/none/ddlrun/runs: .*; this run is in (/tmp/\S+)$", done.stderr)
    assert named is not None, done.stderr
    shutil.rmtree(elsewhere("/dev/null"))


@pytest.mark.parametrize(("major", "ranks"), [(5, 1), (4, 2)], indirect=["major"])
def test_the_example_trains(launch: Launch, ranks: int) -> None:
    done = launch("-np", str(ranks), str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [text.split(" on ")[0] for text in lines[:ranks]] == [f"rank {rank} of {ranks}" for rank in range(ranks)]
    assert lines[-1].startswith("done: accuracy 9")
    assert lines[-1].endswith(f"{ranks} rank{'s' * (ranks > 1)}")


def test_mpi4py_loads_the_library_of_this_mpirun(launch: Launch, major: int) -> None:
    script = (
        "import os; from mpi4py import MPI; version = MPI.Get_library_version().split(',')[0]\n"
        "os.write(1, f'{MPI.COMM_WORLD.size} {version}\\n'.encode())"
    )
    found = launch("-np", "2", "--quiet", sys.executable, "-c", script).stdout
    assert found.count(f"2 Open MPI v{major}.") == 2
