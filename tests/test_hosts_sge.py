"""The test cluster's Grid Engine is a real one: parallel jobs over hosts, remote starts by qrsh."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.grid_engine import GridEngineCluster, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module")
def sge() -> Iterator[GridEngineCluster]:
    with GridEngineCluster(hosts_per_rack=2, racks=1) as cluster:
        yield cluster


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
