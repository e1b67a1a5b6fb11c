"""A real Grid Engine on the test cluster: parallel jobs over hosts, and remote starts by qrsh."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.cluster.grid_engine import GridEngineCluster, why_not
from tests.conftest import OWN, launch_line
from tests.support.agent_ranks import TELL
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.extra, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_parallel_job_sees_its_hosts(sge: GridEngineCluster, tmp_path: Path) -> None:
    sge.wait_for(sge.submit("cat $PE_HOSTFILE; echo $NHOSTS $NSLOTS", "-pe", "fill", "6", "-o", f"{tmp_path}/out"))
    hosts = sorted(tuple(line.split()[1:]) for line in (tmp_path / "out").read_text().splitlines()[:-1])
    assert hosts in (
        [("2", "all.q@h1", "UNDEFINED"), ("4", "all.q@h2", "UNDEFINED")],
        [("2", "all.q@h2", "UNDEFINED"), ("4", "all.q@h1", "UNDEFINED")],
    )
    assert (tmp_path / "out").read_text().splitlines()[-1] == "2 6"


def test_qrsh_reaches_each_host_of_the_job(sge: GridEngineCluster, tmp_path: Path) -> None:
    script = "for host in h1 h2; do echo hostname | qrsh -inherit $host sh -s; done"
    sge.wait_for(sge.submit(script, "-pe", "spread", "4", "-o", f"{tmp_path}/out"))
    assert (tmp_path / "out").read_text() == "h1\nh2\n"


RANK_REPORT = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
print(world.rank, os.uname().nodename, *sorted(os.sched_getaffinity(0)), world.allreduce(1), flush=True)
"""


@pytest.mark.parametrize(("slots", "options"), [("4", []), ("6", ["--launcher", "ssh", "--ranks-per-host", "2"])])
def test_ddlrun_launches_on_the_hosts_of_the_job(
    sge: GridEngineCluster, mpirun: str, tmp_path: Path, slots: str, options: list[str]
) -> None:
    (tmp_path / "script.py").write_text(RANK_REPORT)
    line = launch_line(mpirun, tmp_path, "--output", "no-tag", "--quiet", *options, f"{tmp_path}/script.py")
    job = sge.submit(f"{shlex.join(line)} | sort", "-V", "-pe", "spread", slots, "-o", f"{tmp_path}/out")
    sge.wait_for(job)
    first, second = ("h1", "h2") if " h1 " in (tmp_path / "out").read_text().partition("\n")[0] else ("h2", "h1")
    assert (tmp_path / "out").read_text().splitlines() == [
        f"0 {first} 0 4", f"1 {first} 1 4", f"2 {second} 0 4", f"3 {second} 1 4",
    ]  # fmt: skip
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reasons"]["launcher"] == ("--launcher ssh" if options else f"qrsh: Grid Engine job {job}")


def test_agents_are_started_by_qrsh(sge: GridEngineCluster, tmp_path: Path) -> None:
    """Each rank has its CPUs, the exit code comes back, and nothing is left after qdel."""
    (tmp_path / "script.py").write_text(TELL)
    (tmp_path / "ranks").mkdir()
    words = launch_line(OWN, tmp_path, "--output", "no-tag", "--quiet", f"{tmp_path}/script.py", f"{tmp_path}/ranks")
    line = shlex.join(words)
    options = ("-V", "-pe", "spread", "4", "-o", f"{tmp_path}/out")
    job = sge.submit(f"{line}; echo code $?", *options)
    sge.wait_for(job)
    output = (tmp_path / "out").read_text().splitlines()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    reports = [f"{rank['rank']} {rank['host']} {rank['local_rank']} 4" for rank in plan["ranks"]]
    assert (sorted(output[:4]), output[-1]) == (reports, "code 7"), output
    assert plan["reasons"]["launcher"] == f"qrsh: Grid Engine job {job}"
    before = sge.processes()
    job = sge.submit(f"{line} stay".replace("/run", "/run2"), *options)
    wait_until(lambda: (tmp_path / "out").read_text().count(" 4\n") == 2 * len(reports))
    sge.run("h1", ["qdel", job], check=True)
    wait_until(lambda: sge.processes() <= before)


def test_a_job_with_too_few_slots_is_an_error(sge: GridEngineCluster, tmp_path: Path) -> None:
    script = f"{sys.executable} -m ddlrun launch --topology 4x2 true"
    sge.wait_for(sge.submit(script, "-V", "-pe", "fill", "6", "-o", f"{tmp_path}/out"))
    assert "offers 2 slots (Grid Engine job " in (tmp_path / "out").read_text()
    assert "2x2x1 would fit" in (tmp_path / "out").read_text()
