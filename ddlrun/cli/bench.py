"""ddlrun bench: what links carry, and what collectives make of them."""

import importlib.util
import json
from typing import Any

import click

from ddlrun.cli import measurement_job
from ddlrun.cli.options import Sections, option
from ddlrun.cli.output_files import check_writable, write_atomically
from ddlrun.errors import InputError
from ddlrun.report.bench import render_bench
from ddlrun.units import parse_bytes

# Seconds.
LEAST_BUDGET = 5.0
SIZES = "8B,256B,8KiB,64KiB,256KiB,1MiB,8MiB,64MiB,256MiB"
MODES = "rbnmcp"


@click.command("bench", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", required=False)
@measurement_job.measuring_options
@measurement_job.shape_options
@option("Work", "--budget", default="60s", show_default=True, metavar="TIME", help="Time for all, as in 90s or 5m.")
@option("Work", "--sizes", default=SIZES, show_default=True, metavar="SIZE,...", help="Sizes of the arrays.")
@option("Work", "--modes", default=MODES, show_default=True, metavar="LETTERS", help="Modes of DDL beside MPI's own.")
@option(
    "Answers",
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: everything that was measured; bytes, seconds, bytes/s.",
)
@option("Answers", "--save-network", metavar="FILE", help="Write the links for ddlrun plan --network FILE.")
@option("Answers", "--plot", metavar="FILE", help="Draw bus bandwidth over size as SVG or PNG; needs ddlrun[plots].")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Measure links of HOSTS, and MPI's and DDL's collectives on them.

    HOSTS as for launch. Latency and bandwidth inside a host, inside a rack and between racks; then allreduce,
    reduce-scatter, allgather and broadcast with algorithm and bus bandwidth as nccl-tests has them, and the share of
    what the measured links would allow. What the budget leaves out is said.
    """
    budget = measurement_job.read_budget(options["budget"], LEAST_BUDGET)
    sizes = sorted({parse_bytes(word, "--sizes") for word in options["sizes"].split(",")})
    modes = "".join(dict.fromkeys(options["modes"]))
    if not modes or set(modes) - set(MODES):
        raise InputError(f"--modes {options['modes']!r}: write some of {MODES}")
    _check_plot(options["plot"])
    if options["save_network"]:
        check_writable(options["save_network"], "--save-network")
    listed = measurement_job.measured_hosts(hosts, options)
    if options["save_network"] and len(listed) == 1:
        raise InputError(f"--save-network: {listed.source} has one host, and no link between hosts; name two or more")
    plan = json.dumps({"budget": budget, "sizes": sizes, "modes": modes, "racks": measurement_job.rack_numbers(listed)})
    found = measurement_job.measure(listed, options, measurement_job.shape_words(options), ["bench", plan])
    if found["odd"]:
        click.echo(f"ddlrun: note: {found['odd']}", err=True)
    click.echo(json.dumps(found, indent=2) + "\n" if options["as_json"] else render_bench(found), nl=False)
    if options["save_network"]:
        write_atomically(options["save_network"], [found["network"]], "--save-network")
    if options["plot"]:
        from ddlrun.report.plots import draw_bench  # noqa: PLC0415 - matplotlib

        try:
            draw_bench(found, options["plot"])
        except OSError as error:
            raise InputError(f"--plot {options['plot']}: {error.strerror}") from error
    return 0


def _check_plot(path: str | None) -> None:
    if path is None:
        return
    if not path.endswith((".svg", ".png")):
        raise InputError(f"--plot {path}: name a file that ends in .svg or .png")
    check_writable(path, "--plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"--plot {path}: matplotlib is missing; pip install 'ddlrun[plots]'")
