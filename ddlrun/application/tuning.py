"""The search of ddlrun network tune: the settings that average gradients fastest, and the profile that launch reads."""

import importlib.util
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlrun.application import measurement_job
from ddlrun.application.forecasting import read_gradient
from ddlrun.application.inputs import read_text
from ddlrun.application.output_files import check_writable, write_atomically
from ddlrun.application.profile_store import profile_folder, profile_names
from ddlrun.application.reporter import Reporter
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.network.fabric import parse_fabric
from ddlrun.network.fusion_search import FusionSetting, search_fusion
from ddlrun.plan.tuning_profile import Profile, file_name, parse_profiles, render_profiles, replace_profile
from ddlrun.topology import parse_topology
from ddlrun.units import parse_seconds

if TYPE_CHECKING:
    from ddlrun.network.measurements import HorovodResult, TuneRecord, TuneResult

# Seconds.
LEAST_BUDGET = 6.0
# Share of the budget, where Horovod is tuned too.
HOROVOD_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """All measurements, and the exit code: that of Horovod's job where it was requested and failed."""

    record: "TuneRecord"
    exit_code: int


def tune(expression: str | None, options: dict[str, Any], reporter: Reporter) -> TuningOutcome:
    """Measure the settings on the hosts, by the command's options. Raises InputError and MeasurementError."""
    budget = measurement_job.read_budget(options["budget"], LEAST_BUDGET)
    gradient, _ = read_gradient(options)
    lead = _lead(options)
    links = _links(options["links"])
    hosts = measurement_job.measured_hosts(expression, options, reporter)
    names = profile_names(hosts.names)
    path = _profile_path(options["save"], names)
    horovod_budget = HOROVOD_SHARE * budget if _with_horovod(requested=options["horovod"]) else 0.0
    plan = {
        "budget": budget - horovod_budget,
        "gradient": gradient,
        "lead": lead,
        "links": links,
        "racks": measurement_job.rack_numbers(hosts),
        "exhaustive": options["exhaustive"],
    }
    result: TuneResult = measurement_job.measure(
        hosts, options, measurement_job.shape_words(options), ["tune", json.dumps(plan)], reporter
    )
    record: TuneRecord = {
        **result,  # type: ignore[typeddict-item]  # mypy: it might have a key horovod
        "gradient": gradient,
        "profile": path,
        "hosts": list(names),
    }
    if horovod_budget:
        try:
            record["horovod"] = _search_fusion(hosts, options, gradient, horovod_budget, reporter)
        except measurement_job.MeasurementError as error:
            reporter.line("note: Horovod was not tuned, for the reason above; the other results stand")
            return TuningOutcome(record, error.exit_code if options["horovod"] else 0)
    return TuningOutcome(record, 0)


def _search_fusion(
    hosts: HostList, options: dict[str, Any], gradient: int, seconds: float, reporter: Reporter
) -> "HorovodResult":
    """Measure Horovod's settings, each in a job of its own, up to a time limit. Raises MeasurementError."""
    end = time.monotonic() + seconds
    shape, program = measurement_job.shape_words(options), ["horovod", json.dumps({"gradient": gradient})]

    def step_seconds(setting: FusionSetting) -> float:
        settings = [word for name, value in setting.variables.items() for word in ("--env", f"{name}={value}")]
        return float(measurement_job.measure(hosts, options, [*shape, *settings], program, reporter)["seconds"])

    return search_fusion(step_seconds, gradient, lambda: time.monotonic() < end)


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


def save_profile(record: "TuneRecord", *, replace: bool) -> None:
    """Write the profile of a record to its file; without `replace`, profiles of other jobs in the file stay."""
    path, best = record["profile"], record["best"]
    if path is None:
        return
    profile = Profile(
        hosts=tuple(record["hosts"]),
        topology=parse_topology(best["topology"]),
        major=record["major"],
        mode=best["mode"],
        tuning=best["tuning"],
        horovod=record["horovod"]["best"]["variables"] if "horovod" in record else {},
        gradient=record["gradient"],
        seconds=best["seconds"],
        default_seconds=record["default_seconds"],
        date=time.strftime("%Y-%m-%d"),
    )
    profiles: tuple[Profile, ...] = ()
    if os.path.exists(path) and not replace:
        with suppress(InputError):  # a damaged file is replaced
            profiles = parse_profiles(read_text(path, "profile"), path)
    write_atomically(path, [render_profiles(replace_profile(profiles, profile))], "--save")
