"""ddlrun network bench: measure links, and collectives on them."""

import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ddlrun.application import measurement_job
from ddlrun.application.output_files import check_writable, write_atomically
from ddlrun.cli.console import ConsoleReporter, print_note
from ddlrun.cli.options import Sections, option
from ddlrun.cli.options.launching import budget_option, measuring_options, shape_options
from ddlrun.cli.options.shared import hosts_argument
from ddlrun.cli.result import print_result
from ddlrun.errors import InputError
from ddlrun.report.bench import render_bench
from ddlrun.report.plots import draw_bench
from ddlrun.units import parse_bytes

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.measurements import BenchResult

# Seconds.
LEAST_BUDGET = 5.0
SIZES = "8B,256B,8KiB,64KiB,256KiB,1MiB,8MiB,64MiB,256MiB"
MODES = "rbnmcp"


@click.command("bench", cls=Sections)
@hosts_argument
@measuring_options
@shape_options
@budget_option("60s")
@option("Measurement", "--sizes", default=SIZES, show_default=True, metavar="SIZE,...", help="Sizes of the arrays.")
@option("Measurement", "--modes", default=MODES, show_default=True, metavar="LETTERS",
        help="Modes of ddlrun.ddl to measure, in addition to MPI's collectives.")  # fmt: skip
@option(
    "Output", "--json", "as_json", is_flag=True,
    help="Print all measurements as JSON, in bytes, seconds and bytes per second.",
)  # fmt: skip
@option("Output", "--save-links", metavar="FILE",
        help="Write the links to FILE, for --links of ddlrun network plan and ddlrun network tune.")  # fmt: skip
@option("Output", "--plot", metavar="FILE", help="Draw bus bandwidth over size in FILE (SVG or PNG); needs matplotlib.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Measure links and collectives on HOSTS.

    First measures latency and bandwidth inside a host, inside a rack and between racks. Then measures allreduce,
    reduce-scatter, allgather and broadcast of MPI and ddlrun.ddl. Prints the algorithm and bus bandwidth as nccl-tests
    defines them, and their share of the limit that the links set. Sizes that exceed the budget are left out and listed.

    HOSTS is a list such as n[01-16], or @HOSTFILE; default: the hosts of the current scheduler job, or this host.
    """
    budget = measurement_job.read_budget(options["budget"], LEAST_BUDGET)
    sizes = sorted({parse_bytes(word, "--sizes") for word in options["sizes"].split(",")})
    modes = _read_modes(options["modes"])
    _check_plot(options["plot"])
    if options["save_links"]:
        check_writable(options["save_links"], "--save-links")
    listed = measurement_job.measured_hosts(hosts, options, ConsoleReporter())
    if options["save_links"] and len(listed) == 1:
        raise InputError(f"--save-links: {listed.source} has one host, and no link between hosts; name two or more")
    plan = json.dumps({"budget": budget, "sizes": sizes, "modes": modes, "racks": measurement_job.rack_numbers(listed)})
    words = measurement_job.shape_words(options)
    result: BenchResult = measurement_job.measure(listed, options, words, ["bench", plan], ConsoleReporter())
    if result["note"]:
        print_note(result["note"])
    print_result(result, render_bench(result), as_json=options["as_json"])
    if options["save_links"]:
        write_atomically(options["save_links"], [result["network"]], "--save-links")
    if options["plot"]:
        _draw(result, options["plot"])
    return 0


def _read_modes(text: str) -> str:
    modes = "".join(dict.fromkeys(text))
    if not modes or set(modes) - set(MODES):
        raise InputError(f"--modes {text!r}: write some of {MODES}")
    return modes


def _check_plot(path: str | None) -> None:
    if path is None:
        return
    if not path.endswith((".svg", ".png")):
        raise InputError(f"--plot {path}: name a file that ends in .svg or .png")
    check_writable(path, "--plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"--plot {path}: matplotlib is missing; {sys.executable} -m pip install matplotlib")


def _draw(result: "BenchResult", path: str) -> None:
    try:
        draw_bench(result, path)
    except OSError as error:
        raise InputError(f"--plot {path}: {error.strerror}") from error
