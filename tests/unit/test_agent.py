"""ddlrun's own process manager: its command line, its messages, and jobs that it runs on this machine by itself."""

import binascii
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.agent import protocol as agent_protocol
from ddlrun.agent.archive import BOOTSTRAP, PARTS, build_archive
from ddlrun.agent.child import divide
from ddlrun.agent.launcher import agent_script, take_greeting
from ddlrun.agent.protocol import (
    AgentJob,
    AgentTree,
    HostRanks,
    LostHost,
    ProgramEnd,
    ProgramOutput,
    ProgramRequest,
    pack_words,
    unpack_words,
)
from ddlrun.environment.open_mpi import ROOT
from ddlrun.errors import InputError, PreflightError
from ddlrun.hosts import parse_hosts
from ddlrun.keeper import protocol
from ddlrun.managers import AUTO, OPEN_MPI, ManagerJob, ProcessManager
from ddlrun.managers.choice import ManagerRequest, PendingManager
from ddlrun.managers.installation import allows_root
from ddlrun.managers.own import START, OwnManager, own_manager
from ddlrun.wire.frames import Checksums, Decoder, Encoder
from tests.support.processes import mark, running
from tests.support.waiting import wait_until

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
PYTHON = (sys.executable, "train.py")


@given(st.lists(st.binary(max_size=300)))
def test_words_survive(words: list[bytes]) -> None:
    assert unpack_words(pack_words(words)) == words


@given(st.lists(WORDS, max_size=4), st.dictionaries(WORDS, WORDS, max_size=4), WORDS)
def test_a_job_survives(words: list[str], environ: dict[str, str], folder: str) -> None:
    job = AgentJob(program=words, folder=folder, name="n", size=7, environ=environ)
    assert vars(AgentJob.parse(job.pack())) == vars(job)
    tree = AgentTree(launcher=words, python=folder, script="s", fan_out=2, run="r", idle=0.1)
    assert vars(AgentTree.parse(tree.pack())) == vars(tree)
    lost = LostHost(name="n", reason=folder, code=255, errors=folder, below=words)
    assert LostHost.parse(lost.pack()) == lost


@given(st.lists(WORDS), st.binary(), st.floats(0, 1e9), st.integers(0, 1 << 60))
def test_programs_survive(hosts: list[str], data: bytes, seconds: float, number: int) -> None:
    for module in ("", "ddlrun.a"):
        request = ProgramRequest(
            number=number, seconds=seconds, linger=seconds, hosts=hosts, script=data, module=module
        )
        assert vars(ProgramRequest.parse(request.pack())) == vars(request)
    output = ProgramOutput(host="".join(hosts), number=number, stream=2, data=data)
    assert vars(ProgramOutput.parse(output.pack())) == vars(output)
    for code in (None, number):
        end = ProgramEnd(host="h", number=number, code=code)
        assert vars(ProgramEnd.parse(end.pack())) == vars(end)


def test_a_changed_message_has_a_new_revision() -> None:
    job = AgentJob(program=["p"], folder="f", name="n", size=7, environ={"A": "b"})
    tree = AgentTree(launcher=["l"], python="p", script="s", fan_out=2, run="r")
    kinds = {
        f"{module.__name__} {name}": value
        for module in (agent_protocol, protocol)
        for name, value in vars(module).items()
        if isinstance(value, bytes)
    }
    end = protocol.RankEnd(exit_code=1, reason="r", tail="t")
    messages = (
        job.pack(),
        tree.pack(),
        LostHost(name="n", reason="r", code=1, errors="e", below=["b"]).pack(),
        ProgramRequest(number=1, seconds=2.0, hosts=["h"], script=b"s").pack(),
        ProgramOutput(host="h", number=1, stream=2, data=b"d").pack(),
        ProgramEnd(host="h", number=1, code=None).pack(),
        HostRanks(number=1, name="h1", ranks=[0, 4]).pack(),
        end.pack(),
        Encoder(Checksums(), agent_protocol.TO_AGENT).encode(agent_protocol.JOB, b"text"),
        sorted(kinds.items()),
    )
    found = protocol.REVISION, binascii.crc32(repr(messages).encode())
    assert found == (17, 941966601), "increase protocol.REVISION: hosts may have this version and the other one"


@given(st.integers(0, 200), st.integers(1, 64))
def test_hosts_are_divided_evenly_and_in_order(count: int, fan_out: int) -> None:
    hosts = [f"h{number}" for number in range(count)]
    parts = divide(hosts, fan_out)
    assert [host for part in parts for host in part] == hosts
    assert len(parts) == min(count, fan_out)
    assert max(map(len, parts), default=0) - min(map(len, parts), default=0) <= 1


@given(st.lists(st.tuples(st.sampled_from([b"J", b"P"]), st.binary(max_size=100)), max_size=5), st.integers(1, 30))
def test_messages_arrive_in_any_pieces_after_a_login_shell_has_printed(
    messages: list[tuple[bytes, bytes]], size: int
) -> None:
    encoder = Encoder(Checksums(), agent_protocol.TO_AGENT)
    frames = (buffer for message in messages for buffer in encoder.encode(*message))
    data = b"".join((b"Welcome!\nno newline@ddlrun-agent 1.0\n", *frames))
    decoder, received, greeting = Decoder(Checksums(), agent_protocol.TO_AGENT), [], None
    printed, noise = bytearray(), bytearray()
    for at in range(0, len(data), size):
        part = data[at : at + size]
        if greeting is None:
            printed += part
            greeting = take_greeting(printed, noise)
            part = bytes(printed)
        received += list(decoder.feed(part)) if greeting else []
    assert (greeting, received, bytes(noise)) == (b"1.0", messages, b"Welcome!\nno newline")


def test_the_command_shows_the_program() -> None:
    program = ("python", "-I", "-S", "start.py", "x")
    job = ManagerJob(
        ranks=2, hosts=parse_hosts("a,b"), rankfile="rf", hostfile="hf", root=False, ssh=(), exports=(), extra=(),
        program=program,
    )  # fmt: skip
    assert own_manager("").command(job) == (sys.executable, "-I", "-S", START, "--here", "--", *program)


OLD = "import sys; sys.version_info, sys.version = (3, 7, 16), '3.7.16 (main)'; "


@pytest.mark.parametrize("program", [BOOTSTRAP, Path(START).read_text()], ids=["archive", "files"])
def test_an_old_python_on_a_host_is_named(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", OLD + "exec(sys.argv[1])", program], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)  # fmt: skip
    reason = f"{os.uname().nodename}: {sys.executable} is Python 3.7.16, and agents need 3.8 or later"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"ddlrun: {reason}\n")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (ManagerRequest(program=PYTHON), "no mpirun is installed"),
        (ManagerRequest("ddlrun", program=PYTHON), "--process-manager ddlrun"),
    ],
)
def test_without_an_mpirun_ddlrun_starts_the_ranks_itself(
    request_: ManagerRequest, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # nothing is beside it
    manager = PendingManager(request_, {"PATH": str(tmp_path)}).result()
    assert (isinstance(manager, OwnManager), manager.reason) == (True, reason)


@pytest.mark.parametrize("major", [None, 4, 5])
@pytest.mark.parametrize("host", ["[2001:db8::1]", "node_1", "9n.site"])
def test_names_matter_to_the_open_mpi_that_runs_alone(host: str, major: int | None, tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) {major}.0.0'\n")
    mpirun.chmod(0o755)
    line = [sys.executable, "-m", "ddlrun", "launch", "--dry-run", "--allow-run-as-root", "--machine", "dgx1"]
    line += ["--mpirun", str(mpirun)] if major else ["--process-manager", "ddlrun"]
    done = subprocess.run([*line, "-H", f"{host}:2", "true"], capture_output=True, text=True, check=False)
    accepted = major is None or (host == "node_1" and major == 5)
    assert (done.returncode, "give it another name in /etc/hosts" in done.stderr) == (
        (0, False) if accepted else (4, True)
    )


@pytest.mark.parametrize(("options", "code"), [(["--output", "no-tag"], 0), (["--strict-binding"], 5)])
def test_ranks_that_cannot_bind_themselves(options: list[str], code: int, tmp_path: Path) -> None:
    """Agents bind by OS indexes, which a preset does not have."""
    launch = [sys.executable, "-m", "ddlrun", "launch", "--process-manager", "ddlrun", "--run-dir", f"{tmp_path}/run"]
    line = [*launch, "--machine", "dgx1", *options, "-np", "2", "true"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    message = "ranks are not bound to cores: preset dgx1 has no OS indexes of CPUs; leave out --machine"
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


@pytest.fixture
def mpirun(tmp_path: Path) -> Path:
    """Return a stand-in of an mpirun that prints the version of Open MPI 5."""
    path = tmp_path / "mpirun"
    path.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    path.chmod(0o755)
    return path


def choose(folder: Path, output: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> ProcessManager:
    """Return the process manager of a program whose Python prints what a search for its MPI has found."""
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\nprintf '{output}'\nexit {code}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    request = ManagerRequest(program=(str(python), "train.py"))
    return PendingManager(request, {"PATH": str(folder)}).result()


@pytest.mark.parametrize(
    ("output", "code", "major"),
    [
        (r"\n", 0, None),
        (r"horovod\n", 0, 5),
        (r"mpi4py\nOpen MPI v5.0.11, package: x\n", 0, 5),
        (r"mpi4py\nMPICH Version:\t4.0.2\nMPICH ABI: 14\n", 0, None),
        (r"mpi4py\nIntel(R) MPI Library 2021.18 for Linux* OS\n", 0, None),
        (r"mpi4py\nMVAPICH2 Version :\t2.3.7\n", 0, None),
        (r"mpi4py\nMPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\n", 0, None),
        (r"mpi4py\n", 1, 5),
        ("", 1, 5),
    ],
    ids=["no-mpi", "horovod", "openmpi", "mpich", "intel", "mvapich", "cray", "no-library", "no-python"],
)
def test_the_mpi_of_the_programs_python_decides(
    output: str, code: int, major: int | None, mpirun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = choose(mpirun.parent, output, monkeypatch, code)
    assert (manager.mpi_generation, isinstance(manager, OwnManager), manager.warning) == (major, major is None, "")


def test_the_mpirun_of_mpich_is_not_needed(mpirun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpirun.write_text("#!/bin/sh\necho HYDRA build details:\n")
    manager = choose(mpirun.parent, r"mpi4py\nMPICH Version: 5.0.2\n", monkeypatch)
    assert (isinstance(manager, OwnManager), manager.reason) == (True, "mpi4py uses MPICH 5.0.2")
    with pytest.raises(PreflightError, match="is MPICH, which takes no Open MPI rank file"):
        choose(mpirun.parent, r"mpi4py\nOpen MPI v5.0.11\n", monkeypatch)


def test_an_open_mpi_without_its_mpirun_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manager = choose(tmp_path, r"mpi4py\nOpen MPI v5.0.11, package: x\n", monkeypatch)
    assert isinstance(manager, OwnManager)
    assert manager.warning.startswith("mpi4py uses Open MPI 5.0.11, and no mpirun is installed: ranks that use MPI")


@pytest.mark.parametrize(
    "request_",
    [
        ManagerRequest(program=("./a.out",)),
        ManagerRequest(program=PYTHON, openmpi_options=("--mpi-args",)),
        ManagerRequest("openmpi", program=PYTHON),
        ManagerRequest(program=PYTHON, foreign_launcher=True),
    ],
)
def test_an_mpirun_is_used_where_the_job_may_need_it(
    request_: ManagerRequest, mpirun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert PendingManager(request_, {"PATH": f"{mpirun.parent}:/bin"}).result().mpi_generation == 5


@pytest.mark.parametrize("manager", [AUTO, OPEN_MPI])
def test_root_starts_mpirun_only_where_that_is_allowed(
    manager: str, mpirun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    request = ManagerRequest(manager, program=("./a.out",), unallowed_root=True)
    environ = {"PATH": f"{mpirun.parent}:/bin"}
    if manager == OPEN_MPI:
        with pytest.raises(PreflightError, match="you are root, whom mpirun refuses"):
            PendingManager(request, environ).result()
        assert PendingManager(request._replace(dry_run=True), environ).result().mpi_generation == 5
    else:
        chosen = PendingManager(request, environ).result()
        assert (isinstance(chosen, OwnManager), chosen.reason) == (True, "mpirun refuses root")
        assert chosen.warning.startswith("mpirun refuses root, so that ranks cannot use MPI")


@pytest.mark.parametrize("path", ["", ".dockerenv", "run/.containerenv", "run/systemd/container", ".singularity.d/env"])
def test_root_is_usual_in_a_container(path: str, tmp_path: Path) -> None:
    if path:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert allows_root({"OMPI_ALLOW_RUN_AS_ROOT": "1"}, str(tmp_path)) == bool(path)
    for variable in ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER"):
        assert allows_root({variable: "x"}, str(tmp_path))
    assert allows_root(dict.fromkeys(ROOT, "1"), str(tmp_path))


def test_options_of_open_mpi_do_not_go_with_ddlruns_own_process_manager() -> None:
    with pytest.raises(InputError, match="--mpi-args is for Open MPI"):
        PendingManager(ManagerRequest("ddlrun", openmpi_options=("--mpi-args",)), {})
    with pytest.raises(InputError, match="--mpirun is for Open MPI"):
        PendingManager(ManagerRequest("ddlrun", mpirun="mpirun"), {})


def by_hand(
    script: str,
    *,
    via: Path | None = None,
    others: tuple[str, ...] = ("there",),
    start: str = START,
    ranks: int = 2,
    before: str = "",
) -> list[str]:
    """Return the command line of a job without ddlrun: ranks here, or one here and one on each stand-in of a host."""
    hosts = ["here"] if via is None else ["here", *others]
    topology = f"{ranks}x1" if via is None else f"1x{len(hosts)}"
    return [
        sys.executable, "-m", "tests.support.agent_job", f"--hosts={','.join(hosts)}", "--local=here",
        f"--topology={topology}", f"--via={via} @host", f"--start={start}", f"--before={before}",
        "--", "sh", "-c", script,
    ]  # fmt: skip


def shell(folder: Path) -> Path:
    """Return the stand-in of a program that leads to a host; it writes its ways from host to host into a file."""
    path = folder / "shell"
    way = f'echo "from ${{ON:-here}} to $1" >>{folder}/ways'
    path.write_text(f"#!/bin/sh\n{way}\necho Welcome to $1\ncat | env -i PATH=$PATH ON=$1 sh -s\n")
    path.chmod(0o755)
    return path


def wait_for_rank_0(folder: Path) -> str:
    """Return the commands by which rank 1, whose failure ends rank 0, awaits what rank 0 has written before."""
    return f"[ $DDLRUN_RANK = 1 ] || touch {folder}/written; until [ -e {folder}/written ]; do sleep 0.01; done"


def test_ranks_know_their_numbers_and_the_first_failure_is_the_exit_code(tmp_path: Path) -> None:
    numbers = "$DDLRUN_RANK $DDLRUN_LOCAL_RANK $DDLRUN_SIZE"
    script = f"echo {numbers}; {wait_for_rank_0(tmp_path)}; exit $((DDLRUN_RANK * 3))"
    done = subprocess.run(by_hand(script), capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, sorted(done.stderr.splitlines())) == (3, ["0 0 2", "1 1 2"])


def test_a_rank_behind_a_shell_gets_the_environment_and_the_folder(tmp_path: Path) -> None:
    script = f"echo $DDLRUN_RANK $DDLRUN_SIZE $PWD >&2; {wait_for_rank_0(tmp_path)}; exit $((DDLRUN_RANK * 3))"
    line = by_hand(script, via=shell(tmp_path))
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    assert (done.returncode, sorted(done.stderr.splitlines())) == (3, [f"0 2 {tmp_path}", f"1 2 {tmp_path}"])


@pytest.fixture
def copied_start(tmp_path: Path) -> Path:
    """Provide a copy of the script of agents, and of the modules that it imports."""
    package = Path(START).parents[1]
    for part in PARTS:
        copy = shutil.copytree if (package / part).is_dir() else shutil.copy
        (tmp_path / "ddlrun" / part).parent.mkdir(parents=True, exist_ok=True)
        copy(package / part, tmp_path / "ddlrun" / part)
    return tmp_path / "ddlrun/agent/start.py"


@pytest.fixture
def hidden_start(copied_start: Path) -> str:
    """Provide the script of agents under another name, so that no agent finds it on its host."""
    return str(copied_start.rename(copied_start.with_name("renamed.py")))


@pytest.mark.parametrize("shipped", [False, True])
def test_a_tree_of_agents_over_hosts_with_and_without_ddlrun(
    tmp_path: Path, hidden_start: str, *, shipped: bool
) -> None:
    script = f"""
        echo $DDLRUN_RANK $DDLRUN_SIZE $(tr '\\0' ' ' </proc/$PPID/cmdline | grep -c memfd[_]create) >&2
        touch {tmp_path}/written-$DDLRUN_RANK
        until [ $(ls {tmp_path} | grep -c written) = 3 ]; do sleep 0.01; done
        [ $DDLRUN_RANK = 2 ] && exit 3 || exec sleep 300
    """
    start = hidden_start if shipped else START
    line = by_hand(script, via=shell(tmp_path), others=("one", "two"), start=start)
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    here, there = "0", str(int(shipped))
    assert (done.returncode, sorted(done.stderr.splitlines())) == (3, [f"0 3 {here}", f"1 3 {there}", f"2 3 {there}"])
    assert (tmp_path / "ways").read_text().splitlines() == ["from here to one", "from one to two"]


def test_an_agent_of_another_version_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "shell"
    greeting = f"if mkdir {tmp_path}/other; then echo '@ddlrun-agent 0.1.0'; exec cat; fi"
    path.write_text(f"#!/bin/sh\n{greeting} 2>/dev/null\ncat | env -i PATH=$PATH sh -s\n")
    path.chmod(0o755)
    line = by_hand("echo $DDLRUN_RANK $(tr '\\0' ' ' </proc/$PPID/cmdline | grep -c memfd[_]create) >&2",
                   via=path)  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, sorted(done.stderr.splitlines())) == (0, ["0 0", "1 1"])


def test_no_part_of_the_script_of_an_agent_runs_if_its_end_is_missing(tmp_path: Path) -> None:
    tree = AgentTree(launcher=["l"], python="/bin/echo", script=str(tmp_path), fan_out=2, run="r")
    for ship in (False, True):
        script = agent_script(tree, ship=ship).encode()
        for size in (len(script), *range(0, len(script) - 1, 7)):
            done = subprocess.run(["sh", "-s"], input=script[:size], capture_output=True, check=False)
            complete = size == len(script)
            assert (done.stdout != b"", done.returncode == 0) == (complete, complete or size == 0), script[:size]


def test_an_agent_without_a_tree_exits_after_its_limit() -> None:
    assert "alarm(60)" in BOOTSTRAP
    for program in ("from ddlrun.agent import main; main.TREE_SECONDS = 1; main.main(['--agent'])",
                    BOOTSTRAP.replace("alarm(60)", "alarm(1)")):  # fmt: skip
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as agent:
            assert agent.wait(300) == -signal.SIGALRM


def test_an_idle_agent_ends_for_a_cut_network_does_not_report_the_end_of_its_link() -> None:
    tree = AgentTree(launcher=["l"], python="p", script="s", fan_out=2, run="r", idle=0.1)
    frames = Encoder(Checksums(), agent_protocol.TO_AGENT).encode(
        agent_protocol.TREE, pack_words([tree.pack(), pack_words([b"here"])])
    )
    line = [sys.executable, "-I", "-S", START, "--agent"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        agent.stdin.write(b"".join(frames))
        agent.stdin.flush()
        assert agent.wait(300) == 0


def test_an_agent_that_is_cut_off_ends_a_daemon_with_a_session_of_its_own() -> None:
    tree = AgentTree(launcher=["l"], python="p", script="s", fan_out=2, run="r", idle=1.0)
    seconds = mark()
    script = f"setsid sleep {seconds} & wait".encode()
    request = ProgramRequest(number=1, seconds=0.0, linger=0.1, hosts=["here"], script=script)
    messages = {agent_protocol.TREE: pack_words([tree.pack(), pack_words([b"here"])])}
    messages[agent_protocol.RUN] = request.pack()
    encoder = Encoder(Checksums(), agent_protocol.TO_AGENT)
    frames = [part for message in messages.items() for part in encoder.encode(*message)]
    line = [sys.executable, "-I", "-S", START, "--agent"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        agent.stdin.write(b"".join(frames))
        agent.stdin.flush()
        wait_until(lambda: running(seconds) or agent.poll() is not None)
        assert agent.wait(300) == 0
    assert not running(seconds)


# Lines for the script of agents, by which one records whether it has an alarm when it waits for the tree and has a job.
RECORD = """
import signal
from ddlrun.agent.agent import Agent

def record(function):
    def call(*words):
        with open("RECORD", "a") as file:
            print(function.__name__, signal.getitimer(signal.ITIMER_REAL)[0] > 0, file=file)
        return function(*words)
    return call

Agent.run, Agent._take_job = record(Agent.run), record(Agent._take_job)
"""


def test_a_tree_cancels_the_limit_of_its_agent(tmp_path: Path, copied_start: Path) -> None:
    lines = tmp_path / "lines"
    script, end, rest = copied_start.read_text().partition('if __name__ == "__main__":')
    record = RECORD.replace("RECORD", str(lines))
    copied_start.write_text(script + record + end + rest)
    line = by_hand("true", via=shell(tmp_path), start=str(copied_start))
    assert subprocess.run(line, check=False, timeout=300).returncode == 0
    assert sorted(lines.read_text().splitlines()) == ["_take_job False"] * 2 + ["run True"] * 2


# What an MPI library sends and reads in MPI_Init.
INIT = r"import os; fd = int(os.environ['PMI_FD']); os.write(fd, b'cmd=init pmi_version=1\n'); os.read(fd, 99)"


# Passes its input on, with a text that is in it replaced.
ALTER = """
import os, sys
while data := os.read(0, 65536):
    os.write(1, data.replace(*map(bytes.fromhex, sys.argv[1:])))
"""


FAILED, SUCCEEDED = (agent_protocol.ExitedRank(rank=1, code=code).pack() for code in (7, 0))


@pytest.mark.parametrize(("old", "new"), [(b"exit 7 # to", b"exit 0 # to"), (FAILED, SUCCEEDED)], ids=["to", "from"])
def test_a_message_that_is_altered_between_agents_ends_the_job(tmp_path: Path, old: bytes, new: bytes) -> None:
    alter = shlex.join([sys.executable, "-c", ALTER, old.hex(), new.hex()])
    path = tmp_path / "shell"
    path.write_text(f"#!/bin/sh\n{alter} | env -i PATH=$PATH sh -s | {alter}\n")
    path.chmod(0o755)
    line = by_hand("[ $DDLRUN_RANK = 0 ] || exit 7 # to", via=path)
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    reason = "host there was lost: a message of its agent, or to it, was altered on the way (shell)"
    assert (done.returncode, done.stderr.splitlines()[:1]) == (3, [f"ddlrun: {reason}"])


def test_what_the_way_to_a_host_prints_at_its_end_is_no_message(tmp_path: Path) -> None:
    path = tmp_path / "shell"
    path.write_text("#!/bin/sh\nenv -i PATH=$PATH sh -s; echo 'Connection to there closed.'\n")
    path.chmod(0o755)
    line = by_hand("true", via=path)
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rank_without_mpi_finalize_ends_the_job(tmp_path: Path) -> None:
    script = f'[ $DDLRUN_RANK = 1 ] || exec sleep 300; exec {sys.executable} -c "{INIT}"'
    line = by_hand(script, via=shell(tmp_path))
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, "ddlrun: rank 1 ended without MPI_Finalize\n" in done.stderr) == (1, True)


@pytest.mark.parametrize(("hosts", "request_"), [(1, "cmd=barrier_in"), (1, "cmd=get_appnum"), (2, "cmd=barrier_in")])
@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_ends_before_mpi_init_ends_the_job(tmp_path: Path, hosts: int, request_: str, late: int) -> None:
    meet = f"{INIT}; os.write(fd, b'{request_}\\n'); open('{tmp_path}/0', 'w'); import time; time.sleep(300)"
    parts = [f'exec {sys.executable} -c "{meet}"', f"touch {tmp_path}/1; exit 0"]
    parts[late] = f"until [ -e {tmp_path}/{1 - late} ]; do sleep 0.01; done; {parts[late]}"
    script = f"[ $DDLRUN_RANK = 0 ] || {{ {parts[1]}; }}; {parts[0]}"
    line = by_hand(script, via=shell(tmp_path) if hosts > 1 else None)
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, "ddlrun: rank 1 ended without MPI_Finalize\n" in done.stderr) == (1, True)


def test_sigterm_ends_the_ranks_of_all_hosts(tmp_path: Path) -> None:
    script = "exec >&2; trap 'echo end; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    line = by_hand(script, via=shell(tmp_path))
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        assert [job.stderr.readline() for _ in range(2)] == ["up\n"] * 2
        job.send_signal(signal.SIGTERM)
        job.stderr.read()
    assert job.returncode == 128 + signal.SIGTERM


def test_a_host_that_cannot_be_reached_ends_the_job(tmp_path: Path) -> None:
    path = tmp_path / "shell"
    path.write_text("#!/bin/sh\necho 'No route to host' >&2\nexit 255\n")
    path.chmod(0o755)
    line = by_hand("exec sleep 300", via=path)
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 3
    assert "ddlrun: host there was lost: its agent did not start (shell: exit code 255)" in done.stderr.splitlines()


def test_ranks_that_cannot_reach_the_ddlrun_that_supervises_them_end_the_job() -> None:
    environ = {**os.environ, protocol.ADDRESSES: "of another version"}
    done = subprocess.run(by_hand("true"), env=environ, capture_output=True, check=False, timeout=300)
    assert (done.returncode, b"cannot reach ddlrun: its host has version" in done.stderr) == (3, True)


def test_the_host_is_named_from_which_another_cannot_be_reached(tmp_path: Path) -> None:
    path = tmp_path / "shell"
    path.write_text("#!/bin/sh\n[ $1 = one ] || exit 255\ncat | env -i PATH=$PATH sh -s\n")
    path.chmod(0o755)
    line = by_hand("exec sleep 300", via=path, others=("one", "two"))
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    reason = "its agent did not start (shell on one: exit code 255)"
    assert (done.returncode, done.stderr) == (3, f"ddlrun: host two was lost: {reason}\n")


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    line = by_hand("exec sleep 300", via=tmp_path / "missing")
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"{tmp_path}/missing: No such file or directory",
        "ddlrun: host there was lost: its agent did not start (missing: exit code 127)",
    ]


@pytest.mark.parametrize("files", [40, 41])
def test_a_host_with_too_low_limits_is_named(files: int) -> None:
    reason = "no process can be started: Too many open files (see ulimit -u, ulimit -n)"
    failed = (5, f"ddlrun: {os.uname().nodename}: {reason}\n")
    ends = []
    for ranks in range(12, 19):  # the last file goes to another purpose each time
        line = by_hand("exit 0", ranks=ranks, before=f"prlimit --nofile={files}")
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
        ends.append((done.returncode, done.stderr))
    assert ends == sorted(ends)
    assert set(ends) == {(0, ""), failed}


def test_programs_that_lead_to_hosts_end_with_a_process_manager_that_was_killed(tmp_path: Path) -> None:
    seconds = mark()
    path = tmp_path / "shell"
    path.write_text(f"#!/bin/sh\nexec sleep {seconds}\n")  # it does not notice the end of its input
    path.chmod(0o755)
    with subprocess.Popen(by_hand("exec sleep 300", via=path)) as job:
        wait_until(lambda: running(seconds))
        job.kill()
    wait_until(lambda: not running(seconds))


def test_the_archive_has_the_modules_that_agents_and_keepers_import() -> None:
    names = zipfile.ZipFile(io.BytesIO(build_archive())).namelist()
    assert {"ddlrun/__init__.py", "ddlrun/errors.py", "ddlrun/agent/agent.py", "ddlrun/keeper/keeper.py"} <= set(names)


@pytest.mark.parametrize("absent", ["None", "type('C', (), {'make_scanner': None, 'make_encoder': None})()"])
def test_json_itself_serves_where_its_c_code_differs(absent: str) -> None:
    program = (
        f"import sys; sys.modules['_json'] = {absent}\n"
        "from ddlrun.agent.bare_json import parse_json, render_json\n"
        "assert parse_json(render_json({'a': [1, None, 'é']})) == {'a': [1, None, 'é']}\n"
        "print('json' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"
