"""The measuring job of racks, bench and tune: a run of `ddlrun launch` whose rank 0 prints lines of JSON."""

import codecs
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddlrun.application.inputs import read_job_hosts
from ddlrun.application.reporter import Reporter
from ddlrun.errors import DdlrunError, InputError
from ddlrun.hosts import HostList, render_hostfile
from ddlrun.mapping.placement import check_hosts
from ddlrun.mapping.rack_layout import arrange
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.remote.probe import check_distinct
from ddlrun.remote.streamed_process import stream_command
from ddlrun.report.progress import progress
from ddlrun.runs.state_folders import choose_path
from ddlrun.runs.store import choose_run_name, default_run_dir
from ddlrun.topology import parse_topology
from ddlrun.units import parse_seconds

# Program -> --framework of launch: the one that reserves no ports, and limits ranks by GPUs only where they count.
FRAMEWORKS = {"racks": "mpi", "bench": "mpi", "tune": "ddl", "horovod": "horovod"}
# Fewer cannot load an uplink.
LEAST_HOSTS = 4
NO_RACKS = (
    "the racks of these hosts are unknown, so they count as one rack; ddlrun network racks HOSTS -o FILE finds them"
)
# Options that are passed on to launch unchanged.
PASSED = (
    "ssh_port", "ssh_identity_file", "scheduler", "launcher", "start_timeout", "network", "tcp",
    "checks", "mpirun", "allow_run_as_root",
)  # fmt: skip


def shape_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options of launch for the shape, with ranks that are contiguous on hosts."""
    words = [word for name in ("topology", "ranks_per_host", "racks") if options[name]
             for word in (f"--{name.replace('_', '-')}", str(options[name]))]  # fmt: skip
    return [*words, "--rank-order", "host"]


def read_budget(text: str, least: float) -> float:
    """Parse --budget; return seconds. Raises InputError on less than the links alone may take."""
    budget = float(text) if text.isdigit() else parse_seconds(text, "--budget")
    if budget < least:
        raise InputError(f"--budget {text}: too short to measure anything; give {least:g}s or more")
    return budget


def measured_hosts(expression: str | None, options: Mapping[str, Any], reporter: Reporter) -> HostList:
    """Return the hosts of the job in the order of launch: rack by rack, where racks are known."""
    shape = parse_topology(options["topology"], "--topology") if options["topology"] else None
    hosts = arrange(TopologyRequest(shape, racks=options["racks"]), read_job_hosts(expression, options)[0]).hosts
    check_distinct(hosts)
    if shape is not None and len(hosts) < shape.hosts:
        check_hosts(shape, hosts)
    if shape is None and not options["racks"] and len(hosts) >= LEAST_HOSTS and not rack_numbers(hosts):
        reporter.line(f"note: {NO_RACKS}")
    return hosts


def rack_numbers(hosts: HostList) -> list[int]:
    """Return the number of each host's rack; an empty list where a rack is unknown."""
    racks = [host.rack for host in hosts]
    return [] if None in racks else [racks.index(rack) for rack in racks]


class MeasurementError(DdlrunError):
    """The measuring job failed, and has printed the reason."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.exit_code = code


def measure(
    hosts: HostList, options: dict[str, Any], words: Sequence[str], program: Sequence[str], reporter: Reporter
) -> Any:  # noqa: ANN401 - the result of a program
    """Run `python -m ddlrun.measure PROGRAM` on the hosts; return its result.

    `words` are further options of launch. Slots that may be cores are not passed on: launch would use them as ranks.
    Raises MeasurementError where the job fails, whose run folder then stays; InputError on a problem that it reports.
    """
    run_dir = choose_path(default_run_dir(choose_run_name(None, os.environ), os.environ).path)
    with tempfile.TemporaryDirectory(prefix="ddlrun-measure-") as folder:
        hostfile = f"{folder}/hosts"
        with open(hostfile, "w", encoding="utf-8") as file:
            file.write(
                render_hostfile(
                    [host._replace(slots=None) for host in hosts] if hosts.slots_are_capacity else list(hosts)
                )
            )
        argv = [sys.executable, "-m", "ddlrun", "launch", "--quiet", "--output", "no-tag", "--ranks", "0"]
        argv += ["--process-manager", "openmpi"]  # all of them use MPI
        argv += ["--profile", "none", "--framework", FRAMEWORKS[program[0]], "--run-dir", run_dir]
        argv += ["--hostfile", hostfile, *_passed(options), *words, "-m", "ddlrun.measure", *program]
        try:
            with progress(shown=os.isatty(2) and os.environ.get("TERM") != "dumb") as show:
                output = _JobOutput(show, reporter)
                code = stream_command(argv, os.environ, (output.read, output.read_errors), mute=True)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, a TERM
                shutil.rmtree(run_dir, ignore_errors=True)
                with suppress(OSError):
                    reporter.line("interrupted; no results are saved")
            raise
    result = output.result
    if code or not isinstance(result, dict):
        raise MeasurementError(code or 1)
    shutil.rmtree(run_dir, ignore_errors=True)
    if "problem" in result:
        raise InputError(f"{hosts.source}: {result['problem']}")
    return result


def _passed(options: dict[str, Any]) -> Iterator[str]:
    for name in PASSED:
        value = options[name]
        if value is True:
            yield f"--{name.replace('_', '-')}"
        elif value not in (None, False):
            yield from (f"--{name.replace('_', '-')}", str(value))


class _JobOutput:
    """The output of a measuring job: its progress and its result. Lines that are not messages are shown."""

    def __init__(self, show: Callable[[str, float | None], None], reporter: Reporter) -> None:
        self._show, self._reporter = show, reporter
        self._part = b""
        self._decode_error = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.result: object = None

    def read(self, data: bytes) -> None:
        """Take a block of standard output."""
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines if data or not self._part else [self._part]:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self._reporter.text(f"{line.decode(errors='replace')}\n")
            elif "progress" in message:
                self._show(*message["progress"])
            else:
                self.result = message.get("result")

    def read_errors(self, data: bytes) -> None:
        """Show a block of standard error, unless nobody reads it any more."""
        with suppress(OSError, ValueError):
            self._reporter.text(self._decode_error(data, final=not data))
