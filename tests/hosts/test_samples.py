"""Samples of ranks on several hosts."""

import sys
from pathlib import Path

import pytest

from ddlrun.metrics.samples import HostSample, RankSample
from tests.cluster.cluster import Cluster
from tests.conftest import launch_line
from tests.hosts.seeded_nics import SeededNics, named
from tests.support.processes import wait_for
from tests.support.seeded_runs import read_samples

# Every rank stays until the samples of all ranks and of both hosts are in the run folder.
WAIT = """
import sys, time
wanted = [f'"ranks": "{rank}"' for rank in range(4)] + [f'"host": "{host}", "cores"' for host in ("h1", "h2")]
while True:
    try:
        text = open(sys.argv[1]).read()
        if all(word in text for word in wanted):
            break
    except OSError:
        pass
    time.sleep(0.1)
"""


@pytest.mark.extra
@pytest.mark.openmpi(5)
@pytest.mark.own(quick=False)
def test_every_rank_and_every_host_has_samples(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    metrics = tmp_path / "run" / "metrics.jsonl"
    line = launch_line(mpirun, tmp_path, "--sample-interval", "0.1", "-H", "h1:2,h2:2")
    done = cluster.run("h1", [*line, sys.executable, "-c", WAIT, str(metrics)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    samples = read_samples(str(metrics))
    hosts = {sample.host: sample for sample in samples if isinstance(sample, HostSample)}
    ranks = {sample.ranks: sample.host for sample in samples if isinstance(sample, RankSample)}
    assert ranks == {"0": "h1", "1": "h1", "2": "h2", "3": "h2"}
    assert all(sample.nics for sample in hosts.values())
    assert set(hosts) == {"h1", "h2"}


@pytest.mark.extra
@pytest.mark.openmpi(4)
def test_a_nic_at_half_rate_is_named(mpirun: str, tmp_path: Path) -> None:
    nics = SeededNics(hosts=4, rate=40, pause=0.2, slow="h3")

    def find() -> list[str]:
        assert job.poll() is None
        return [*named(tmp_path)]

    with nics.cluster() as cluster, nics.running(cluster, mpirun, tmp_path) as job:
        wait_for(find)
        assert find() == ["h3"], named(tmp_path)
