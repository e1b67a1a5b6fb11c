"""Launches over two hosts that need neither root nor anything from apt: see tests/cluster/two_hosts.py."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.keeper import protocol
from tests.cluster.two_hosts import TwoHosts
from tests.conftest import OWN, launch_line, manager_options
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.own
SCRIPT = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
print(world.rank, os.uname().nodename, world.allreduce(world.rank + 1), flush=True)
if sys.argv[1] == "stay":
    time.sleep(3600)
sys.exit(int(sys.argv[1]) if world.rank == 1 else 0)
"""
WITHOUT_MPI = """
class World:
    rank = int(os.environ["RANK"])
    allreduce = lambda self, number: sum(range(1, int(os.environ["WORLD_SIZE"]) + 1))
world = World()
"""
PRINT_ENVIRONMENT = """
import json, os
hidden = {"MY_TOKEN": os.environ["MY_TOKEN"][::-1]}  # the output has a log
print(json.dumps([int(os.environ["RANK"]), {**os.environ, **hidden}]), flush=True)
"""
# The ports and addresses of one start.
CHOSEN_AT_START = ("TF_CONFIG", "OMPI_MCA_orte_hnp_uri")
RANKS = ["0 h1 3", "1 h2 3"]
VARIABLE = f"{protocol.ADDRESSES}="


def start(hosts: TwoHosts, mpirun: str, folder: Path, how: str) -> subprocess.Popen[str]:
    """Start a launch on h1, with one rank per host."""
    mpi, _, rest = SCRIPT.partition("world = MPI.COMM_WORLD\n")
    own = mpi.replace("from mpi4py import MPI\n", "") + WITHOUT_MPI + rest
    (folder / "train.py").write_text(own if mpirun == OWN else SCRIPT)
    line = launch_line(mpirun, folder, "--output", "no-tag", "-H", "h1:1,h2:1", str(folder / "train.py"), how)
    return subprocess.Popen(
        ["env", "--default-signal=INT", *hosts.argv("h1", line)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(hosts: TwoHosts, job: subprocess.Popen[str], before: set[int]) -> tuple[str, str]:
    """Wait for the end of a launch, and until nothing of it is left on the hosts; return its output and errors."""
    output, errors = job.communicate(timeout=PATIENCE)
    wait_until(lambda: hosts.processes() <= before, lambda: hosts.processes() - before)
    return output, errors


def find_leaks(pids: set[int]) -> list[str]:
    """Return the command lines that have the secret of a running job, which every user can read.

    Args:
        pids: The processes of all hosts.
    """
    words = (word for pid in pids for word in read_words(pid, "environ"))
    channel = next(word for word in words if word.startswith(VARIABLE)).removeprefix(VARIABLE)
    key = channel.partition("@")[0].partition(":")[2]
    lines = [" ".join(read_words(pid, "cmdline")) for pid in pids]
    return [line for line in lines if key in line]


def read_words(pid: int, file: str) -> list[str]:
    """Return the words of a file of a process in /proc, none if it has ended."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace").split("\0")
    except OSError:
        return []


@pytest.mark.parametrize("code", [0, 7])
def test_exit_code_and_output_of_ranks_on_two_hosts(hosts: TwoHosts, mpirun: str, tmp_path: Path, code: int) -> None:
    before = hosts.processes()
    with start(hosts, mpirun, tmp_path, str(code)) as job:
        output, errors = finish(hosts, job, before)
    assert job.returncode == code, errors
    if code:  # Open MPI 4.1 may drop what a rank writes while the job ends
        assert f"failed: rank 1 on h2 (local rank 0): exit code {code}" in errors
    else:
        assert sorted(output.splitlines()) == RANKS


def test_ranks_on_two_hosts_find_the_variables_that_are_shown(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINT_ENVIRONMENT)
    variables = {"SEED": "a b;c\n'd'", "MY_TOKEN": "geheim", "SSH_TTY": "here", "NOT_THIS": "1", "EMPTY": ""}
    options = ["-H", "h1:1,h2:1", "--export", "SEED,EMPTY", "-x", "MY_TOKEN"]
    line = launch_line(mpirun, tmp_path, "--output", "no-tag", *options, str(tmp_path / "train.py"))
    show = [sys.executable, "-m", "ddlrun", "show", "env", "--json", *manager_options(mpirun), *options]
    launched, shown = (
        subprocess.run(
            hosts.argv("h1", ["env", *(f"{name}={value}" for name, value in variables.items()), *argv]),
            capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
        ).stdout
        for argv in (line, show)
    )  # fmt: skip
    records = json.loads(shown)["ranks"]
    lines = [json.loads(text) for text in launched.splitlines()]
    for rank, found in sorted(lines):
        own = {name: value for name, value in records[rank]["variables"].items() if name not in CHOSEN_AT_START}
        expected = {**own, "SEED": variables["SEED"], "MY_TOKEN": "mieheg", "EMPTY": ""}
        assert {name: found.get(name) for name in expected} == expected
        assert "NOT_THIS" not in found
        assert ("SSH_TTY" in found) == (rank == 0)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if "geheim" in path.read_text(errors="replace")] == []


def test_interrupt_of_ranks_on_two_hosts(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    before = hosts.processes()
    with start(hosts, mpirun, tmp_path, "stay") as job:
        assert job.stdout is not None
        assert sorted(job.stdout.readline().strip() for _ in RANKS) == RANKS, finish(hosts, job, before)
        leaks = find_leaks(hosts.processes() - before)
        os.kill(job.pid, signal.SIGINT)
        _, errors = finish(hosts, job, before)
    assert job.returncode in (130, -signal.SIGINT), errors
    assert leaks == []


SNIFFER = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as packets, open(sys.argv[1], "wb") as file:
    print("ready", flush=True)
    while b"the end of the job" not in (packet := packets.recv(1 << 16)):
        file.write(packet)
"""
LAST_PACKET = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as sender:
    sender.sendto(b"the end of the job", ("10.77.0.2", 9))
"""


@pytest.mark.extra
@pytest.mark.openmpi(5)
@pytest.mark.parametrize("options", [(), ("--encrypt",)], ids=["plain", "encrypted"])
def test_encrypted_output_is_not_on_the_network(
    hosts: TwoHosts, mpirun: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    recorded = tmp_path / "packets"
    (tmp_path / "train.py").write_text("import os; print(os.uname().nodename + ' wrote ' + 'x'.join('secret'))")
    line = launch_line(mpirun, tmp_path, *options, "--output", "no-tag", "-H", "h1:1,h2:1", str(tmp_path / "train.py"))
    with subprocess.Popen(
        hosts.argv("h1", [sys.executable, "-c", SNIFFER, str(recorded)]), stdout=subprocess.PIPE, text=True
    ) as sniffer:
        assert sniffer.stdout is not None
        assert sniffer.stdout.readline() == "ready\n"
        done = subprocess.run(hosts.argv("h1", line), capture_output=True, text=True, check=False, timeout=PATIENCE)
        subprocess.run(hosts.argv("h1", [sys.executable, "-c", LAST_PACKET]), check=True, timeout=PATIENCE)
        sniffer.wait(PATIENCE)
    assert sorted(done.stdout.splitlines()) == [f"{host} wrote sxexcxrxext" for host in ("h1", "h2")], done.stderr
    assert done.returncode == 0, done.stderr
    assert (b"h2 wrote sxexcxrxext" in recorded.read_bytes()) == (not options)


@pytest.mark.extra
def test_a_rank_on_another_host_is_debugged(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    """ddlrun's standard input, output and Ctrl-C reach the debugger; nothing is left."""
    before = hosts.processes()
    (tmp_path / "train.py").write_text("import os\nname = os.uname().nodename\n")
    line = launch_line(mpirun, tmp_path, "-H", "h1:1,h2:1", "--debug-rank", "1", str(tmp_path / "train.py"))
    job = subprocess.Popen(
        hosts.argv("h1", line), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    with job:
        assert job.stdin is not None
        job.stdin.write("n\nn\np name * 2\nq\n")
        job.stdin.close()
        job.stdin = None
        output, errors = finish(hosts, job, before)
    assert (job.returncode, "'h2h2'" in output) == (1, True), output + errors
    assert "rank 1 has this terminal" in errors


EXCHANGE = "s/^rank 1=/rank x=/; s/^rank 2=/rank 1=/; s/^rank x=/rank 2=/"


def test_ranks_that_are_on_other_hosts_than_planned_do_not_start(hosts: TwoHosts, mpirun: str, tmp_path: Path) -> None:
    if mpirun == OWN:
        return  # it takes no rank file
    path = tmp_path / "mpirun"
    exchange = f"sed -i '{EXCHANGE}' {tmp_path}/run/rankfile"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {exchange}\nexec {mpirun} "$@"\n')
    path.chmod(0o755)
    options = ["-H", "h1:2,h2:2", "--rank-order", "ddl", "--strict-binding", "--tag-output", "echo", "started"]
    argv = hosts.argv("h1", launch_line(str(path), tmp_path, "--checks", "ssh", *options))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 5
    first = ("rank 1 on h1: is local rank 1, planned 0", "rank 2 on h2: is local rank 0, planned 1")
    assert any(f"{text}; the rank file was not followed" in done.stderr for text in first), done.stderr
    assert {line[:3] for line in done.stdout.splitlines()}.isdisjoint({"[1@", "[2@"})
