"""Samples of ranks on several hosts."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddlrun.monitor.diagnosis import SlownessCause, diagnose
from ddlrun.monitor.history import History
from ddlrun.monitor.metrics_file import read_samples
from ddlrun.monitor.samples import HostSample, RankSample
from tests.cluster.cluster import Cluster
from tests.conftest import launch_line
from tests.support.processes import started, wait_for

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
    line = launch_line(mpirun, tmp_path, "--sample-interval", "0.1", "-H", "h1:2,h2:2", "--overload")
    done = cluster.run("h1", [*line, sys.executable, "-c", WAIT, str(metrics)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    samples = read_samples(str(metrics))
    hosts = {sample.host: sample for sample in samples if isinstance(sample, HostSample)}
    ranks = {sample.ranks: sample.host for sample in samples if isinstance(sample, RankSample)}
    assert ranks == {"0": "h1", "1": "h1", "2": "h2", "3": "h2"}
    assert all(sample.nics for sample in hosts.values())
    assert set(hosts) == {"h1", "h2"}


@pytest.fixture(scope="module")
def slow_nic() -> Iterator[Cluster]:
    """Provide h1 to h4; the NIC of h3 has half the others' rate, and reports none."""
    with Cluster(hosts_per_rack=4, racks=1, nic="40mbit", nics={"h3": "20mbit"}) as hosts:
        yield hosts


REDUCES = """
import numpy as np, time
from ddlrun import ddl
with ddl.init("-mode r"):
    while True:
        ddl.all_reduce(np.ones(2**20, np.float32))
        time.sleep(0.2)  # the links are idle for a part of the time
"""


@pytest.mark.extra
@pytest.mark.openmpi(4)
def test_a_nic_at_half_rate_is_named(slow_nic: Cluster, mpirun: str, tmp_path: Path) -> None:
    line = launch_line(mpirun, tmp_path, "--skip-checks", "-H", "h1:1,h2:1,h3:1,h4:1")
    line += ["--env", "OMPI_MCA_mpi_yield_when_idle=1", sys.executable, "-c", REDUCES]

    def find() -> list[str]:
        assert job.poll() is None
        history = History()
        history.add(read_samples(str(tmp_path / "run" / "metrics.jsonl")))
        return [finding.text for finding in diagnose(history) if finding.cause is SlownessCause.SLOW_NIC]

    with started(slow_nic.argv("h1", line), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        wait_for(find)
        assert [text.partition(":")[0] for text in find()] == ["h3"], find()
        job.terminate()
