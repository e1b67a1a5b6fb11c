"""A real Slurm on the test cluster: jobs over racks, and ddlrun inside them."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.cluster.slurm import SlurmCluster, why_not
from tests.support.slurm_jobs import RANK_REPORT, Launch, run

pytestmark = [pytest.mark.extra, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_job_over_all_hosts_sees_its_list(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = 'echo "$SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE"; srun hostname | sort | uniq -c | xargs'
    job = slurm.submit(script, "-N4", "--ntasks-per-node=2", f"--output={tmp_path}/out")
    assert slurm.wait_for(job) == "COMPLETED"
    assert (tmp_path / "out").read_text() == "h[1-4] 2(x4)\n2 h1 2 h2 2 h3 2 h4\n"


def test_exit_code_of_a_finished_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = slurm.submit("exit 7", f"--output={tmp_path}/out")
    assert (slurm.wait_for(job), slurm.job(job)["ExitCode"]) == ("FAILED", "7:0")


def test_topology_has_two_racks(slurm: SlurmCluster) -> None:
    lines = slurm.run("h2", ["scontrol", "show", "topology"]).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["SwitchName=rack0", "Level=0", "LinkSpeed=1", "Nodes=h[1-2]"],
        ["SwitchName=rack1", "Level=0", "LinkSpeed=1", "Nodes=h[3-4]"],
        ["SwitchName=spine", "Level=1", "LinkSpeed=1", "Nodes=h[1-4]", "Switches=rack[0-1]"],
    ]


def test_gpus_are_counted(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = slurm.submit('echo "$SLURM_GPUS_ON_NODE"', "-N2", "--gpus-per-node=2", f"--output={tmp_path}/out")
    assert slurm.wait_for(job) == "COMPLETED"
    assert (tmp_path / "out").read_text() == "2\n"


RANKS = [f"{rank} h{rank // 2 + 1} {rank % 2} 8 0" for rank in range(8)]


@pytest.mark.openmpi(5)
def test_hosts_tasks_and_racks_come_from_the_job(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    state, lines = run(slurm, tmp_path, launch(RANK_REPORT), "-N4", "--ntasks-per-node=2")
    assert (state, sorted(lines[-8:])) == ("COMPLETED", RANKS)
    assert lines[0].startswith("2x2x2: 8 ranks on h[1-4], 2 per host (the slots of Slurm job ")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["reasons"]["launcher"].startswith("srun: Slurm job ")


@pytest.mark.parametrize("launcher", ["auto", "ssh"])
def test_more_ranks_than_tasks(slurm: SlurmCluster, launch: Launch, tmp_path: Path, launcher: str) -> None:
    line = launch(RANK_REPORT, "--quiet", "--topology", "2x2x2", "--launcher", launcher)
    assert run(slurm, tmp_path, f"{line} | sort", "-N4") == ("COMPLETED", RANKS)


def test_inside_salloc_and_steps(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = shlex.split(launch(RANK_REPORT, "--quiet", "--topology", "2x2x2"))
    for number, step in enumerate(([], ["srun", "-N1", "-n1", "-w", "h1"])):  # the step holds its cores
        argv = ["salloc", "-Q", "-N4", *step, *[word.replace("/run", f"/run{number}") for word in line]]
        done = slurm.run("h1", argv, cwd=tmp_path)
        assert (done.returncode, sorted(done.stdout.splitlines())) == (0, RANKS), done.stderr


@pytest.mark.openmpi(5)
def test_srun_of_ddlrun_is_refused(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    state, lines = run(slurm, tmp_path, f"srun {launch(RANK_REPORT)}", "-N2", "--ntasks-per-node=2")
    assert state == "FAILED"
    assert sum("srun starts ddlrun 4 times" in line for line in lines) == 4
    assert not (tmp_path / "run").exists()


@pytest.mark.openmpi(5)
def test_named_hosts_win_over_those_of_the_job(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = launch(RANK_REPORT, "--quiet", "-H", "h3,h2", "--ranks-per-host", "1")
    assert run(slurm, tmp_path, f"{line} | sort", "-N3")[1] == ["0 h3 0 1 2 0", "1 h2 0 1 2 0"]
    outside = launch(RANK_REPORT, "--quiet", "-H", "h4,localhost", "-np", "2").replace("/run", "/run2")
    assert run(slurm, tmp_path, f"{outside} | sort", "-w", "h1")[1] == ["0 h4 0 1 2 0", "1 h1 0 1 2 0"]


@pytest.mark.openmpi(5)
def test_cyclic_ranks_and_whole_racks(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = launch(RANK_REPORT, "--quiet", "--topology", "2x1x2")
    lines = run(slurm, tmp_path, f"{line} | sort", "-N4", "--ntasks-per-node=2", "--distribution=cyclic")[1]
    assert lines == ["0 h1 0 4 0", "1 h3 0 4 0", "2 h1 1 4 0", "3 h3 1 4 0"]


@pytest.mark.parametrize("launcher", ["auto", "ssh"])
def test_hosts_with_different_numbers_of_tasks(
    slurm: SlurmCluster, launch: Launch, tmp_path: Path, launcher: str
) -> None:
    """Ranks are where srun would put its tasks."""
    srun = "srun sh -c 'echo task $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID' | sort"
    state, lines = run(slurm, tmp_path, f"{srun}; {launch(RANK_REPORT, '--launcher', launcher)}", "-wh[1-2]", "-n3")
    tasks = [line.removeprefix("task ") for line in lines if line.startswith("task ")]
    assert (state, tasks) == ("COMPLETED", ["0 h1 0", "1 h1 1", "2 h2 0"]), lines
    assert any(line.startswith("2+1: 3 ranks on h[1-2] (the slots of Slurm job ") for line in lines)
    ranks = sorted(line for line in lines if line.endswith(" 3 0"))
    assert ranks == ["0 h1 0 3 0", "1 h1 1 3 0", "2 h2 0 1 3 0"]


@pytest.mark.openmpi(5)
def test_each_task_of_an_array_is_a_job(slurm: SlurmCluster, launch: Launch, tmp_path: Path) -> None:
    line = launch(RANK_REPORT, "--quiet", "--topology", "1x2").replace("/run", "/run$SLURM_ARRAY_TASK_ID", 1)
    job = slurm.submit(
        line.replace("'", ""), f"--output={tmp_path}/out.%a", "-N2", "--exclusive", "--array=0-1", cwd=tmp_path
    )
    for number in (0, 1):
        slurm.wait_for(f"{job}_{number}", "COMPLETED")
    hosts = [sorted((tmp_path / f"out.{number}").read_text().split()[1::6]) for number in (0, 1)]
    assert sorted(hosts) == [["h1", "h2"], ["h3", "h4"]]


@pytest.mark.parametrize(
    ("options", "topology", "problem"),
    [
        (("-wh[1-2]", "-n3"), "2x2", "topology 2x2x1 puts 2 ranks on each host, but h2 offers 1 slot"),
        (("-N4",), "1x3x2", "needs 6 hosts (3 hosts per rack x 2 racks), but the job has 4"),
    ],
)
def test_a_job_that_is_too_small(
    slurm: SlurmCluster, launch: Launch, tmp_path: Path, options: tuple[str, ...], topology: str, problem: str
) -> None:
    state, lines = run(slurm, tmp_path, launch(RANK_REPORT, "--topology", topology), *options)
    assert state == "FAILED"
    assert problem in lines[0]
    assert lines[0].endswith("would fit")


def test_show_and_gen_rankfile_inside_a_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    ddlrun = f"{sys.executable} -m ddlrun"
    script = f"{ddlrun} show hosts; {ddlrun} show topology; {ddlrun} check; {ddlrun} gen-rankfile 1x2x2 2>&1"
    state, lines = run(slurm, tmp_path, script, "-N4", "--ntasks-per-node=1")
    assert state == "COMPLETED", lines
    assert "h3  rack rack1  host 0  ranks 2" in lines
    assert "rack1: h[3-4]" in lines
    assert any(line.startswith("daemons started by srun: Slurm job ") for line in lines)
    assert any(line.startswith("rank 1=h3 slot=") for line in lines)
