"""ddlrun tune: the best way to average a step's gradients on these hosts, found by trying, and kept for launch."""

import importlib.util
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from ddlrun.cli import measurement_job
from ddlrun.cli.inputs import read_text
from ddlrun.cli.options import Sections, option
from ddlrun.cli.output_files import check_writable, write_atomically
from ddlrun.cli.plan import MODEL, read_gradient
from ddlrun.cli.profile_store import profile_folder, profile_names
from ddlrun.errors import InputError
from ddlrun.network.fabric import parse_fabric
from ddlrun.network.presets import MODELS
from ddlrun.plan.tuning_profile import Profile, file_name, kept, parse_profiles, render_profiles
from ddlrun.report.tune import render_tune
from ddlrun.topology import parse_topology
from ddlrun.units import parse_seconds

# Seconds.
LEAST_BUDGET = 6.0
# Of the budget, where Horovod is tuned too.
HOROVODS_SHARE = 1 / 3


@click.command("tune", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", required=False)
@measurement_job.measuring_options
@measurement_job.shape_options
@option("Work", "--gradient", metavar="SIZE", help="Bytes of float32 that a step averages, as in 100MB.")
@option("Work", "--model", type=click.Choice(list(MODELS)), help=f"Those of a model; default: {MODEL}.")
@option("Work", "--compute", metavar="TIME", help="What a step computes, as in 120ms; goes with --overlap.")
@option("Work", "--overlap", type=click.FloatRange(0, 1), default=0.0, show_default=True, metavar="SHARE",
        help="Share of it during which gradients travel already, as for plan.")  # fmt: skip
@option("Work", "--budget", default="3m", show_default=True, metavar="TIME", help="Time for all, as in 90s or 5m.")
@option(
    "Work", "--links", metavar="FILE", help="The links, as bench --save-network writes them; default: measure them."
)
@option("Work", "--horovod/--no-horovod", "horovod", default=None,
        help="Tune Horovod's fusion and cycle too; default: where it is installed.")  # fmt: skip
@option("Work", "--exhaustive", is_flag=True, help="Measure every combination, however long that takes.")
@option("Answers", "--save", metavar="FILE", help="Keep the profile there, for launch --profile FILE; -: nowhere.")
@option("Answers", "--json", "as_json", is_flag=True, help="Print JSON: everything that was measured; bytes, seconds.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Find the best way to average gradients on HOSTS, and keep it for launch.

    HOSTS as for launch. The links are measured; the decompositions XxYxZ and modes of DDL that plan expects most
    of are tried with chunks and buckets of several sizes, then Horovod's settings. launch takes up what was found on
    the same hosts, and says so; --profile none does without.
    """
    budget = measurement_job.read_budget(options["budget"], LEAST_BUDGET)
    gradient, _ = read_gradient(options)
    lead = _lead(options)
    links = _links(options["links"])
    listed = measurement_job.measured_hosts(hosts, options)
    names = profile_names(listed.names)
    path = _place(options["save"], names)
    with_horovod = _with_horovod(wanted=options["horovod"])
    words, share, code = measurement_job.shape_words(options), budget * (1 - HOROVODS_SHARE * with_horovod), 0
    plan = {
        "budget": share,
        "gradient": gradient,
        "lead": lead,
        "links": links,
        "racks": measurement_job.rack_numbers(listed),
    }
    found = measurement_job.measure(
        listed, options, words, ["tune", json.dumps(plan | {"exhaustive": options["exhaustive"]})]
    )
    if with_horovod:
        plan = {"budget": budget - share, "gradient": gradient}
        try:
            found["horovod"] = measurement_job.measure(listed, options, words, ["horovod", json.dumps(plan)])
        except measurement_job.MeasurementError as error:
            code = error.exit_code if options["horovod"] else 0
            click.echo("ddlrun: note: Horovod was not tuned, as said above; the rest is kept", err=True)
    found |= {"gradient": gradient, "profile": path, "hosts": list(names)}
    click.echo(json.dumps(found, indent=2) + "\n" if options["as_json"] else render_tune(found), nl=False)
    if path is not None:
        _keep(_profile(found, names, gradient), path, alone=options["save"] is not None)
    return code


def _links(path: str | None) -> str:
    """Return the YAML of the links, "" where they are to be measured. Raises InputError on what describes none."""
    if path is None:
        return ""
    text = read_text(path, "links")
    parse_fabric(text, f"links {path}")
    return text


def _lead(options: Mapping[str, Any]) -> float:
    """Return the seconds of the backward pass that gradients can hide in."""
    if bool(options["overlap"]) != bool(options["compute"]):
        raise InputError("--compute and --overlap go together: the backward pass during which gradients travel")
    return options["overlap"] * parse_seconds(options["compute"], "--compute") if options["compute"] else 0.0


def _with_horovod(*, wanted: bool | None) -> bool:
    missing = [name for name in ("horovod", "torch") if importlib.util.find_spec(name) is None]
    if wanted and missing:
        raise InputError(
            f"--horovod: {' and '.join(missing)} is not installed for this Python; see ddlrun check --build"
        )
    return wanted if wanted is not None else not missing


def _profile(found: Mapping[str, Any], hosts: Sequence[str], gradient: int) -> Profile:
    best = found["best"]
    variables = found["horovod"]["best"]["variables"] if "horovod" in found else {}
    return Profile(
        tuple(hosts), parse_topology(best["topology"]), int(found["major"]), best["mode"],
        best["tuning"], variables, gradient, best["seconds"], found["usual"], time.strftime("%Y-%m-%d"),
    )  # fmt: skip


def _place(wanted: str | None, hosts: Sequence[str]) -> str | None:
    """Return the file for the profile, None where it is not to be kept. Raises InputError where none can be written."""
    if wanted == "-":
        return None
    if wanted is None:
        folder = profile_folder()
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: {error.strerror}; name a file for the profile: --save FILE") from error
        wanted = f"{folder}/{file_name(hosts)}"
    check_writable(wanted, "--save")
    return wanted


def _keep(profile: Profile, path: str, *, alone: bool) -> None:
    """Write the profile, beside those of other jobs on the same hosts unless it is to be alone."""
    known: tuple[Profile, ...] = ()
    if os.path.exists(path) and not alone:
        with suppress(InputError):  # what is damaged is written anew
            known = parse_profiles(read_text(path, "profile"), path)
    write_atomically(path, [render_profiles(kept(known, profile))], "--save")
