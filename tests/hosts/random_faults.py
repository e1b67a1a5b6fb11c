"""Run jobs that meet random faults: python -m tests.hosts.random_faults [NUMBER [SEED]].

A run has a seed of its own, from SEED on; by default there are 50 runs from seed 0. Four properties hold: a run ends
within its bound, nothing of it is left on any host, exit code and first line name the fault, and no output is lost.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS
from tests.hosts.random_faults_run import Report, Run
from tests.hosts.random_faults_scenario import draw


def run_seed(cluster: Cluster, seed: int) -> Report:
    """Run the scenario of a seed."""
    scenario = draw(seed)
    with tempfile.TemporaryDirectory(prefix="ddlf") as folder:
        return Run(cluster, MPIRUNS[scenario.major], Path(folder), scenario).execute()


def render(report: Report) -> str:
    """Render a run in a line, and each violation in another."""
    late = " (over the bound)" if report.seconds > report.scenario.bound else ""
    ended = f"exit code {report.code}, nothing left after {report.seconds:.1f} s{late}: {report.line}"
    missed = [f"not injected: {fault}" for fault in report.scenario.faults if fault not in report.injected]
    lines = ["; ".join([f"{report.scenario} -> {ended}", *missed])]
    lines += [f"  VIOLATED {violation.property}: {violation.facts}" for violation in report.violations]
    return "\n".join(lines)


def main(number: int = 50, first: int = 0) -> int:
    """Run scenarios, print each and the number of violations; return 1 if there is one."""
    if reason := why_not():
        sys.exit(reason)
    os.environ |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    violated = 0
    with tempfile.TemporaryDirectory(prefix="ddls") as state, Cluster(hosts_per_rack=2, racks=2) as cluster:
        os.environ["XDG_STATE_HOME"] = state
        for seed in range(first, first + number):
            report = run_seed(cluster, seed)
            violated += bool(report.violations)
            print(time.strftime("%H:%M:%S"), render(report), flush=True)
    print(f"{number} runs, {violated} with a violation")
    return min(violated, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
