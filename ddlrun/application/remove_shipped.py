"""The removal of files of `launch --ship` from hosts, as `ddlrun clean` does it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddlrun.application.read_ship import read_folder
from ddlrun.application.reporter import Reporter
from ddlrun.errors import UnreachableError
from ddlrun.remote.probe import ProbeTarget, describe_failure, render_failures, run_scripts
from ddlrun.ship.script import build_modules, parse_report, task_script
from ddlrun.units import parse_bytes, render_memory
from ddlrun.wording import counted

NEVER_DAYS = 1e6


def remove_shipped(
    hosts: Sequence[str], options: Mapping[str, Any], target: ProbeTarget, reporter: Reporter
) -> Iterator[str]:
    """Remove files that no run has used, by the options of `ddlrun clean`; yield a line for each host with how many.

    Raises InputError, and UnreachableError with the hosts that failed.
    """
    days, size = options["shipped_days"], options["shipped_size"]
    most_bytes = None if size is None else parse_bytes(size, "--shipped-size")
    task = {
        "action": "clean",
        "folder": read_folder(options["ship_dir"]),
        "days": NEVER_DAYS if days is None else days,
        "most_bytes": most_bytes,
    }
    replies = run_scripts(dict.fromkeys(hosts, task_script(task, sys.executable, build_modules())), target)
    reports = {host: parse_report(replies[host].out) or {"error": describe_failure(replies[host])} for host in hosts}
    failures = {host: str(report["error"]) for host, report in reports.items() if "error" in report}
    for host, report in reports.items():
        if host not in failures:
            left = f", {render_memory(report['left'])} left" if most_bytes is not None else ""
            yield f"{host}: removed {counted(report['removed'], 'shipped folder')}{left}"
            for path in report["stuck"]:
                reporter.text(f"{host}: {path} has files of another user, who can remove them\n")
    if failures:
        raise UnreachableError(*render_failures(failures, target.ssh))
