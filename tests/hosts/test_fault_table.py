"""Each row of the table of faults: exit code and first line, and nothing is left on any host."""

import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import OWN_MAJOR, OWN_MANAGERS, manager_id
from tests.hosts.fault_table import FAULTS, Fault, Scene
from tests.hosts.random_faults_results import first_line
from tests.hosts.test_faults import RANKS, Job

# `make faults` runs each row with all process managers. `make test-all` runs every sixth row with one of Open MPI's
# major versions, and the rows of ddlrun's own process manager.
OPEN_MPI_FAULTS = [fault for fault in FAULTS if not fault.only_own]
OWN_FAULTS = [fault for fault in FAULTS if fault.only_own]
ALL = [(major, fault) for major in (4, 5) for fault in OPEN_MPI_FAULTS]
ALL_OWN = [(major, fault) for major in OWN_MANAGERS for fault in FAULTS]
FEW = [*ALL[: len(OPEN_MPI_FAULTS) : 12], *ALL[len(OPEN_MPI_FAULTS) + 6 :: 12]]
CASES = [*ALL, *ALL_OWN] if "FAULT_RESULTS" in os.environ else [*FEW, *((OWN_MAJOR, fault) for fault in OWN_FAULTS)]


@pytest.mark.extra
@pytest.mark.parametrize(
    ("major", "fault"), CASES, indirect=["major"], ids=[f"{manager_id(major)}-{fault.name}" for major, fault in CASES]
)
def test_fault(cluster: Cluster, mpirun: str, tmp_path: Path, fault: Fault) -> None:
    with ExitStack() as stack:
        stack.enter_context(fault.before(cluster, tmp_path))
        options = (*fault.options, *(() if fault.after is None else ("--checks", "none")))
        options = tuple(option.replace("FOLDER", str(tmp_path)) for option in options)
        with Job(cluster, mpirun, tmp_path, *fault.words, options=options, prefix=fault.prefix) as job:
            scene = Scene(cluster, tmp_path, job, stack)
            if fault.during is not None:
                fault.during(scene)
            if fault.after is not None:
                scene.all(0)
                job.wait_for_output("started", RANKS)
                fault.after(scene)
            code, _, err = job.end()
    expected, line = (
        fault.own if fault.own is not None and mpirun in OWN_MANAGERS.values() else (fault.code, fault.line)
    )
    assert (code, bool(re.search(line, first_line(err)))) == (expected, True), (code, err)
