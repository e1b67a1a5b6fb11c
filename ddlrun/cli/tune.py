"""ddlrun tune: find the settings that average gradients fastest, and save them as a profile for launch."""

import importlib.util
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ddlrun.application import measurement_job
from ddlrun.application.inputs import read_text
from ddlrun.application.output_files import check_writable, write_atomically
from ddlrun.application.profile_store import profile_folder, profile_names
from ddlrun.cli import measuring_options
from ddlrun.cli.console import ConsoleReporter
from ddlrun.cli.options import Sections, hosts_argument, option
from ddlrun.cli.plan import gradient_options, read_gradient
from ddlrun.errors import InputError
from ddlrun.network.fabric import parse_fabric
from ddlrun.network.fusion_search import FusionSetting, search_fusion
from ddlrun.plan.tuning_profile import Profile, file_name, parse_profiles, render_profiles, replace_profile
from ddlrun.report.tune import render_tune
from ddlrun.topology import parse_topology
from ddlrun.units import parse_seconds

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.hosts import HostList
    from ddlrun.network.measurements import HorovodResult, TuneRecord, TuneResult

# Seconds.
LEAST_BUDGET = 6.0
# Share of the budget, where Horovod is tuned too.
HOROVOD_SHARE = 1 / 3


@click.command("tune", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@hosts_argument
@measuring_options.measuring_options
@measuring_options.shape_options
@gradient_options
@measuring_options.budget_option("3m")
@option("Measurement", "--links", metavar="FILE", show_default="measure the links",
        help="Read links that bench --save-links wrote.")  # fmt: skip
@option("Measurement", "--horovod/--no-horovod", "horovod", default=None, show_default="if it is installed",
        help="Also tune Horovod's fusion threshold and cycle time.")  # fmt: skip
@option("Measurement", "--exhaustive", is_flag=True, help="Measure every combination, without a time limit.")
@option(
    "Output",
    "--save",
    metavar="FILE",
    help="Write the profile to FILE, for --profile of ddlrun launch; -: do not save the profile.",
)
@option("Output", "--json", "as_json", is_flag=True, help="Print all measurements as JSON, in bytes and seconds.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Find the fastest settings for HOSTS.

    Finds the settings that average gradients fastest, and saves them as a profile. ddlrun launch then uses the profile
    on the same hosts and prints a note; --profile none turns it off.

    First measures the links. Then measures the topologies XxYxZ and the modes of ddlrun.ddl that ddlrun plan predicts
    to be fastest, with several sizes of chunks and buckets, and then Horovod's settings. --compute needs --overlap:
    together they describe the backward pass, during which gradients are sent.

    HOSTS is a list such as n[01-16], or @HOSTFILE; default: the hosts of the current scheduler job, or this host.
    """
    budget = measurement_job.read_budget(options["budget"], LEAST_BUDGET)
    gradient, _ = read_gradient(options)
    lead = _lead(options)
    links = _links(options["links"])
    listed = measurement_job.measured_hosts(hosts, options, ConsoleReporter())
    names = profile_names(listed.names)
    path = _profile_path(options["save"], names)
    horovod_budget = HOROVOD_SHARE * budget if _with_horovod(requested=options["horovod"]) else 0.0
    plan = {
        "budget": budget - horovod_budget,
        "gradient": gradient,
        "lead": lead,
        "links": links,
        "racks": measurement_job.rack_numbers(listed),
        "exhaustive": options["exhaustive"],
    }
    result: TuneResult = measurement_job.measure(
        listed, options, measurement_job.shape_words(options), ["tune", json.dumps(plan)], ConsoleReporter()
    )
    record: TuneRecord = {
        "schema": "urn:ddlrun:tune:1",
        **result,  # type: ignore[typeddict-item]  # mypy: it might have a key horovod
        "gradient": gradient,
        "profile": path,
        "hosts": list(names),
    }
    code = 0
    if horovod_budget:
        try:
            record["horovod"] = _search_fusion(listed, options, gradient, horovod_budget)
        except measurement_job.MeasurementError as error:
            code = _report_horovod_failure(error, requested=options["horovod"])
    click.echo(json.dumps(record, indent=2) + "\n" if options["as_json"] else render_tune(record), nl=False)
    if path is not None:
        _save(_profile(record, names, gradient), path, replace=options["save"] is not None)
    return code


def _search_fusion(listed: "HostList", options: dict[str, Any], gradient: int, seconds: float) -> "HorovodResult":
    """Measure Horovod's settings, each in a job of its own, up to a time limit. Raises MeasurementError."""
    end = time.monotonic() + seconds
    shape, program = measurement_job.shape_words(options), ["horovod", json.dumps({"gradient": gradient})]

    def step_seconds(setting: FusionSetting) -> float:
        settings = [word for name, value in setting.variables.items() for word in ("--env", f"{name}={value}")]
        return float(
            measurement_job.measure(listed, options, [*shape, *settings], program, ConsoleReporter())["seconds"]
        )

    return search_fusion(step_seconds, gradient, lambda: time.monotonic() < end)


def _report_horovod_failure(error: measurement_job.MeasurementError, *, requested: bool | None) -> int:
    """Print that Horovod was not tuned; return the exit code, which is 0 unless Horovod was requested."""
    click.echo("ddlrun: note: Horovod was not tuned, for the reason above; the other results stand", err=True)
    return error.exit_code if requested else 0


def _links(path: str | None) -> str:
    """Return the YAML of the links, "" where they must be measured. Raises InputError on a malformed file."""
    if path is None:
        return ""
    text = read_text(path, "links")
    parse_fabric(text, f"links {path}")
    return text


def _lead(options: Mapping[str, Any]) -> float:
    """Return the seconds of the backward pass during which gradients are sent."""
    if bool(options["overlap"]) != bool(options["compute"]):
        raise InputError("--compute and --overlap go together: the backward pass during which gradients are sent")
    return options["overlap"] * parse_seconds(options["compute"], "--compute") if options["compute"] else 0.0


def _with_horovod(*, requested: bool | None) -> bool:
    """Return True if Horovod must be tuned: on request, or by default where it is installed."""
    missing = [name for name in ("horovod", "torch") if importlib.util.find_spec(name) is None]
    if requested and missing:
        raise InputError(f"--horovod: not installed for this Python: {' and '.join(missing)}; see ddlrun check --build")
    return requested if requested is not None else not missing


def _profile(result: "TuneRecord", hosts: Sequence[str], gradient: int) -> Profile:
    best = result["best"]
    return Profile(
        hosts=tuple(hosts),
        topology=parse_topology(best["topology"]),
        major=result["major"],
        mode=best["mode"],
        tuning=best["tuning"],
        horovod=result["horovod"]["best"]["variables"] if "horovod" in result else {},
        gradient=gradient,
        seconds=best["seconds"],
        default_seconds=result["default_seconds"],
        date=time.strftime("%Y-%m-%d"),
    )


def _profile_path(path: str | None, hosts: Sequence[str]) -> str | None:
    """Return the file for the profile, None where it must not be saved. Raises InputError where none can be written."""
    if path == "-":
        return None
    if path is None:
        folder = profile_folder()
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: {error.strerror}; name a file for the profile: --save FILE") from error
        path = f"{folder}/{file_name(hosts)}"
    check_writable(path, "--save")
    return path


def _save(profile: Profile, path: str, *, replace: bool) -> None:
    """Write the profile; without `replace`, profiles of other jobs in the file stay."""
    profiles: tuple[Profile, ...] = ()
    if os.path.exists(path) and not replace:
        with suppress(InputError):  # a damaged file is replaced
            profiles = parse_profiles(read_text(path, "profile"), path)
    write_atomically(path, [render_profiles(replace_profile(profiles, profile))], "--save")
