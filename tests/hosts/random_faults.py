"""Run jobs that meet random faults: python -m tests.hosts.random_faults [NUMBER [SEED]] [--jobs J].

The jobs run under Open MPI, or under ddlrun's own process manager: --process-manager ddlrun.

A run has a seed of its own, from SEED on; by default there are 50 runs from seed 0, one after the other. Four
properties hold: a run ends within its bound, nothing of it is left on any host, exit code and first line name the
fault, and no output is lost. J workers run jobs at once, each with hosts of its own.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ddlrun.managers import OPEN_MPI
from tests.cluster.cluster import Cluster, why_not
from tests.conftest import MPIRUNS, OWN, OWN_MANAGERS
from tests.hosts.random_faults_run import Report, Run, Violation
from tests.hosts.random_faults_scenario import Scenario, draw, draw_own
from tests.support.cpu_group import own_cpu_group

AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def run_scenario(cluster: Cluster, scenario: Scenario) -> Report:
    """Run a scenario."""
    mpirun = {**MPIRUNS, **OWN_MANAGERS}[scenario.major]
    with tempfile.TemporaryDirectory(prefix="ddlf") as folder:
        return Run(cluster, mpirun, Path(folder), scenario).execute()


def render(report: Report) -> str:
    """Render a run in a line, and each violation in another."""
    late = " (over the bound)" if report.seconds > report.scenario.bound else ""
    ended = f"exit code {report.code}, nothing left after {report.seconds:.1f} s{late}: {report.line}"
    missed = [f"not injected: {fault}" for fault in report.scenario.faults if fault not in report.injected]
    lines = ["; ".join([f"{report.scenario} -> {ended}", *missed])]
    lines += [f"  VIOLATED {violation.property}: {violation.facts}" for violation in report.violations]
    return "\n".join(lines)


def run_scenarios(scenarios: Iterable[Scenario]) -> list[Report]:
    """Run scenarios one after the other on hosts of their own, print each, and return the reports."""
    reports = []
    with tempfile.TemporaryDirectory(prefix="ddls") as state, Cluster(hosts_per_rack=2, racks=2) as cluster:
        os.environ |= {"XDG_STATE_HOME": state, **dict.fromkeys(AS_ROOT, "1")}
        for scenario in scenarios:
            reports.append(attempt(cluster, scenario))
            print(time.strftime("%H:%M:%S"), render(reports[-1]), flush=True)
    return reports


def attempt(cluster: Cluster, scenario: Scenario) -> Report:
    """Run a scenario; an error of the test itself is a violation, so that the other scenarios run."""
    try:
        return run_scenario(cluster, scenario)
    except Exception:  # noqa: BLE001 - it is reported
        violation = Violation("test", traceback.format_exc())
        return Report(scenario, injected=[], code=None, line="", seconds=0.0, violations=[violation])


def summary(reports: list[Report]) -> str:
    """Render the number of runs and of those with a violation, and the seeds per property that was violated."""
    seeds = defaultdict(set)
    for report in reports:
        for violation in report.violations:
            seeds[violation.property].add(report.scenario.seed)
    violated = sum(bool(report.violations) for report in reports)
    late = [report.scenario.seed for report in reports if report.seconds > report.scenario.bound]
    managers = Counter(report.scenario.manager for report in reports)
    faults = Counter(len(report.injected) for report in reports)
    lines = [f"{len(reports)} runs, {violated} with a violation, {len(late)} over the bound"]
    lines += [f"{manager}: {count} runs" for manager, count in sorted(managers.items())]
    lines += [f"faults injected: {number} in {count} runs" for number, count in sorted(faults.items())]
    lines += [f"VIOLATED {name}: seeds {', '.join(map(str, sorted(numbers)))}" for name, numbers in seeds.items()]
    lines += [f"over the bound: seeds {', '.join(map(str, sorted(late)))}"] if late else []
    return "\n".join(lines)


def main() -> int:
    """Run scenarios, and print each and a summary; return 1 if a property was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.random_faults", description="Run random faults.")
    parser.add_argument("number", nargs="?", type=int, default=50, help="number of runs (default: 50)")
    parser.add_argument("seed", nargs="?", type=int, default=0, help="seed of the first run (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="jobs at once, each on hosts of its own (default: 1)")
    help_ = "what starts the ranks (default: openmpi)"
    parser.add_argument("--process-manager", choices=(OPEN_MPI, OWN), default=OPEN_MPI, help=help_)
    arguments = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    draw_one = draw_own if arguments.process_manager == OWN else draw
    scenarios = [draw_one(arguments.seed + number) for number in range(arguments.number)]
    shares = [scenarios[place :: arguments.jobs] for place in range(arguments.jobs)]
    workers = multiprocessing.get_context("spawn")
    with own_cpu_group(), ProcessPoolExecutor(arguments.jobs, mp_context=workers) as pool:
        reports = [report for share in pool.map(run_scenarios, shares) for report in share]
    print(summary(reports))
    return int(any(report.violations for report in reports))


if __name__ == "__main__":
    sys.exit(main())
