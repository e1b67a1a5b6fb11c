"""Jobs that meet random faults: 25 scenarios of tests.hosts.random_faults, which runs as many as it is given."""

import subprocess
import sys

import pytest

from tests.hosts.random_faults_scenario import Kind, draw

RUNS, FIRST_SEED, JOBS = "25", "0", "5"


# The longest test of all starts with the file of the most tests, and not at the very end, when all others wait for it.
@pytest.mark.extra
@pytest.mark.xdist_group("tests/hosts/test_faults.py")
def test_random_faults() -> None:
    argv = [sys.executable, "-m", "tests.hosts.random_faults", RUNS, FIRST_SEED, "--jobs", JOBS]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("-> exit code")) == (0, int(RUNS)), done.stdout + done.stderr


def test_scenarios_have_every_kind_of_fault() -> None:
    assert {kind for seed in range(300) for kind in draw(seed).kinds} == {*Kind}
    assert draw(7) == draw(7)
