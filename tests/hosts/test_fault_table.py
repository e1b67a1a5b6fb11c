"""Each row of the table of faults: exit code and first line, and nothing is left on any host."""

import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.hosts.fault_table import FAULTS, Fault, Scene
from tests.hosts.random_faults_results import first_line
from tests.hosts.test_faults import RANKS, Job

# `make faults` runs each row with both major versions; `make test-all` every sixth row, with one of them.
ALL = [(major, fault) for major in (4, 5) for fault in FAULTS]
CASES = ALL if "FAULT_TABLE" in os.environ else [*ALL[: len(FAULTS) : 12], *ALL[len(FAULTS) + 6 :: 12]]


@pytest.mark.extra
@pytest.mark.parametrize(
    ("major", "fault"), CASES, indirect=["major"], ids=[f"openmpi{major}-{fault.name}" for major, fault in CASES]
)
def test_fault(cluster: Cluster, mpirun: str, tmp_path: Path, fault: Fault) -> None:
    with ExitStack() as stack:
        stack.enter_context(fault.before(cluster, tmp_path))
        options = (*fault.options, *(() if fault.after is None else ("--skip-checks",)))
        with Job(cluster, mpirun, tmp_path, *fault.words, options=options, prefix=fault.prefix) as job:
            if fault.after is not None:
                scene = Scene(cluster, tmp_path, job, stack)
                scene.all(0)
                job.wait_for_output("started", RANKS)
                fault.after(scene)
            code, _, err = job.end()
    assert (code, bool(re.search(fault.line, first_line(err)))) == (fault.code, True), (code, err)
