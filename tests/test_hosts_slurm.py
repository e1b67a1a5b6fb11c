"""The test cluster's Slurm is a real one: jobs over racks, real topology."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.slurm import SlurmCluster, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with SlurmCluster(hosts_per_rack=2, racks=2) as cluster:
        yield cluster


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
