"""What racks and bench share: a measuring job by `ddlrun launch`, one line of JSON after the other."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from ddlrun.cli.options import all_of, job_from, network_options, option, ssh_options, start_timeout
from ddlrun.errors import DdlrunError
from ddlrun.hosts import Host, render_hostfile
from ddlrun.report.progress import progress
from ddlrun.shell import read_lines

measuring_options = all_of(
    option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line."),
    ssh_options,
    job_from,
    start_timeout,
    network_options,
    option("Hosts", "--tcp", is_flag=True, help="TCP between hosts, whatever else there is: no RDMA."),
    option("Checks", "--skip-checks", is_flag=True, help="Do not check the hosts first (see ddlrun check)."),
    option("MPI", "--mpirun", metavar="PATH", help="Use this mpirun; default: as launch finds it."),
    option("MPI", "--allow-run-as-root", is_flag=True, help="Start as root, too; in a container that is usual."),
)
# Options that launch gets as they are.
PASSED = (
    "ssh_port", "ssh_identity_file", "scheduler", "launcher", "start_timeout", "network", "network_interface", "tcp",
    "skip_checks", "mpirun", "allow_run_as_root",
)  # fmt: skip


class MeasuringError(DdlrunError):
    """The measuring job failed; it has said why."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.exit_code = code


def measure(hosts: Sequence[Host], options: dict[str, Any], words: Sequence[str], program: Sequence[str]) -> Any:  # noqa: ANN401
    """Run `python -m ddlrun.measure PROGRAM` on the hosts; return its result. Raises MeasuringError.

    `words` are more options of launch.
    """
    with tempfile.TemporaryDirectory(prefix="ddlrun-measure-") as folder:
        hostfile = f"{folder}/hosts"
        with open(hostfile, "w", encoding="utf-8") as file:
            file.write(render_hostfile(hosts))
        argv = [sys.executable, "-m", "ddlrun", "launch", "--quiet", "--no-tag-output", "--ranks", "0"]
        argv += ["--hostfile", hostfile, *_passed(options), *words, "-m", "ddlrun.measure", *program]
        with progress(shown=os.isatty(2) and os.environ.get("TERM") != "dumb") as show:
            code, result = read_lines(argv, lambda lines: _heard(lines, show))
    if code or result is None:
        raise MeasuringError(code or 1)
    return result


def _passed(options: dict[str, Any]) -> Iterator[str]:
    for name in PASSED:
        value = options[name]
        if value is True:
            yield f"--{name.replace('_', '-')}"
        elif value not in (None, False):
            yield from (f"--{name.replace('_', '-')}", str(value))


def _heard(lines: Iterator[str], show: Callable[[str, float | None], None]) -> object:
    """Show progress; return the result. What else is said goes to standard error."""
    result = None
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            click.echo(line, nl=False, err=True)
        elif "progress" in said:
            show(*said["progress"])
        else:
            result = said.get("result")
    return result
