"""The doctor on several hosts: the host whose network is cut is named."""

import json
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import MPIRUNS
from tests.hosts.test_faults import RANKS, Job
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.busy, pytest.mark.extra]
SCRIPT = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print("started", flush=True)
while True:
    world.allreduce(world.rank)
"""
LINE = SCRIPT.splitlines().index("    world.allreduce(world.rank)") + 1


def test_the_rank_behind_a_cut_network_is_named(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = (sys.executable, str(script))
    options = ("--heartbeat", "60", "--stall-timeout", "2")
    with Job(cluster, MPIRUNS[5], tmp_path, *words, options=options) as job:
        job.wait_for_output("started", RANKS)
        with cluster.cut("h3"):
            job.process.wait(PATIENCE)
        code, _, errors = job.end()
    assert code == 123, errors
    verdict = json.loads((tmp_path / "run" / "examination.json").read_text())["verdict"]
    assert (verdict["hangs"], verdict["finding"], verdict["guilty"]) == (True, "silent_host", [2])
    assert f"ranks 0, 1 and 3 wait in allreduce (train.py:{LINE}); rank 2: no reply from h3" in verdict["text"]
