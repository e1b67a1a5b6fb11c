"""The Settings of a launch, read from its options: no other folder sees the dictionary of options."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ddlrun.application.inputs import find_job, read_rankfile, split_words
from ddlrun.application.options.container import read_container
from ddlrun.application.options.hosts import Options, arrange_hosts, assign_job_hosts
from ddlrun.application.options.policy import read_policy
from ddlrun.application.options.ship import read_ship, use_locked_environment
from ddlrun.application.options.supervision import read_input, read_supervision, read_wrappers, requeued
from ddlrun.application.profile_store import read_profiles
from ddlrun.application.reporter import Reporter
from ddlrun.environment.exports import check_name, parse_assignment, parse_exports
from ddlrun.environment.frameworks import parse_frameworks
from ddlrun.environment.library_settings import render_shown_variables
from ddlrun.errors import InputError
from ddlrun.mapping.rack_layout import RackLayout
from ddlrun.network.addresses import split_network
from ddlrun.plan.precedence import EXCLUSIVE_GROUPS, OPTION_SOURCES, USER_VARIABLES
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.settings import (
    CheckOptions,
    EnvironmentOptions,
    JobRequest,
    MpiOptions,
    PlacementOptions,
    RunOptions,
    Settings,
    UserRankfile,
    parse_duties,
    parse_retention,
)
from ddlrun.plan.tuning_profile import Profiles
from ddlrun.runs.store import choose_run_name, default_run_dir
from ddlrun.schedulers import Allocation
from ddlrun.topology import RankOrder

# Arguments of the process manager that would contradict the plan.
PLANNED = frozenset(
    "-n --n -np --np -c -H --host -host --hostfile -hostfile --machinefile -machinefile --rankfile -rankfile -rf --rf "
    "--map-by -map-by --rank-by -rank-by --bind-to -bind-to --npernode -npernode --oversubscribe -oversubscribe "
    "--use-hwthread-cpus -use-hwthread-cpus".split()
)


class LaunchOptions(NamedTuple):
    """The options of a launch."""

    values: Options
    """Parameter -> value."""
    sources: Mapping[str, str]
    """Parameter of EXCLUSIVE_GROUPS -> the entry of OPTION_SOURCES that gave it."""
    assignments: tuple[str, ...]
    """Variables of the ranks from config files: NAME=VALUE."""


def read_settings(given: LaunchOptions, program: tuple[str, ...], reporter: Reporter) -> Settings:
    """Turn options into Settings. Raises InputError for each wrong value."""
    options, program = use_locked_environment(given.values, program, reporter)
    options = {**_without_hidden(given.sources, options), "config_env": given.assignments}
    environment = _read_environment(options)
    if options["rankfile"] == "-":
        raise InputError("`--rankfile` -: standard input belongs to rank 0; write the rank file to a file")
    allocation = find_job(options["scheduler"], named=bool(options["hosts"] or options["hostfile"]))
    layout = arrange_hosts(options, allocation)
    return Settings(
        job=_read_job(options, layout, program),
        hosts=assign_job_hosts(options, layout, allocation),
        machine=options["machine"],
        placement=_read_placement(options),
        environment=environment,
        mpi=MpiOptions(
            mpirun=options["mpirun"],
            args=_read_mpi_args(options["mpi_args"]),
            tcp=options.get("tcp", False),
            allow_root=options["allow_run_as_root"],
            spawn_slots=options["spawn_slots"],
            process_manager=options["process_manager"],
        ),
        check=_read_check(options),
        supervision=read_supervision(options, allocation, read_input(options, program)),
        run=_read_run(options, allocation),
        ship=read_ship(options, program),
        container=read_container(options),
    )


def _without_hidden(sources: Mapping[str, str], options: Options) -> dict[str, Any]:
    """Return options; in each of EXCLUSIVE_GROUPS, those of the highest source hide the others."""
    hidden: set[str] = set()
    for group in EXCLUSIVE_GROUPS:
        ranks = {name: OPTION_SOURCES.index(sources[name]) for name in group.parameters}
        hidden |= {name for name, rank in ranks.items() if rank < max(ranks.values())}
    return {name: None if name in hidden else value for name, value in options.items()}


def _read_environment(options: Options) -> EnvironmentOptions:
    """Return the variables that the user sets, in the order of USER_VARIABLES, and the names that are passed on."""
    passed = tuple(word for word in options["variables"] if "=" not in word)
    for name in passed:
        check_name(name, "`--env`")
    sources = {
        "Horovod's options in the help of launch": render_shown_variables(options),
        "env in the config files, and DDLRUN_ENV": _parse_assignments(options["config_env"]),
        "--env NAME=VALUE": _parse_assignments(word for word in options["variables"] if "=" in word),
    }
    variables: dict[str, str] = {}
    for source in USER_VARIABLES:
        variables |= sources[source]
    export, duties = parse_exports(options["export"]), parse_duties(options["hook"])
    return EnvironmentOptions(variables=variables, passed=passed, export=export, duties=duties)


def _parse_assignments(words: Iterable[str]) -> dict[str, str]:
    return dict(map(parse_assignment, words))


def _read_job(options: Options, layout: RackLayout, program: tuple[str, ...]) -> JobRequest:
    order = options["rank_order"]
    return JobRequest(
        program=program,
        topology=layout.request,
        shape_options=" ".join(f"`--{name}` {options[name]}" for name in ("nodes", "racks", "aisles") if options[name]),
        rank_order=None if order == "auto" else RankOrder(order),
        mode=options["mode"],
        frameworks=parse_frameworks(options["frameworks"]),
        profiles=_read_profiles(options, layout.hosts.names),
        wrappers=read_wrappers(options, program),
    )


def _read_profiles(options: Options, hosts: tuple[str, ...]) -> Profiles:
    """Return the profiles that were asked for; they may change Y and Z where no option gives a shape."""
    words = (*options["config_env"], *options["variables"])
    stated = "DDL_OPTIONS" in os.environ or any(word.startswith("DDL_OPTIONS=") for word in words)
    shaped = any(options[name] for name in ("topology", "nodes", "racks", "aisles", "rankfile"))
    return read_profiles(options["profile"], hosts)._replace(may_reshape=not (stated or shaped))


def _read_placement(options: Options) -> PlacementOptions:
    rankfile = options["rankfile"]
    return PlacementOptions(
        policy=read_policy(options)._replace(
            strict=options["strict_binding"] is True, share_gpus=options["share_gpus"], membind=options["membind"]
        ),
        rankfile=UserRankfile(rankfile, read_rankfile(rankfile)) if rankfile else None,
        visible_gpus=options["visible_gpus"],
        bind_threads=options["bind_threads"],
        strict_binding=options["strict_binding"],
    )


def _read_check(options: Options) -> CheckOptions:
    """Return the checks. A dry run needs the facts of its hosts, but no checks of them.

    Raises InputError on an unknown check, even where none is made.
    """
    names = options.get("checks")
    checks = None
    if names is not None:
        from ddlrun.application.check import parse_checks  # noqa: PLC0415 - 4 ms, for --checks alone

        checks = parse_checks(names)
    network, interfaces = split_network(options.get("network"))
    return CheckOptions(
        checks=frozenset() if options.get("dry_run") else checks,
        network=network,
        interfaces=interfaces,
        seconds=options.get("start_timeout") or 0.0,
    )


def _read_run(options: Options, allocation: Allocation | None) -> RunOptions:
    folder = requeued(os.path.abspath(options["run_dir"]), allocation) if options.get("run_dir") else None
    name = choose_run_name(folder, os.environ)
    return RunOptions(
        run_dir=RunDir(folder) if folder else default_run_dir(name, os.environ),
        run_id=name,
        keep_dry_run=folder is not None,
        dry_run=options.get("dry_run", False),
        as_json=options.get("as_json", False),
        verbose=options.get("verbose") is True,
        quiet=options.get("verbose") is False,
        restarts=options.get("restarts", 0),
        arguments=options.get("arguments", ()),
        retention=parse_retention(options.get("keep_runs"), "`--keep-runs`"),
        on_event=split_words(options.get("on_event"), "`--on-event`"),
        web=options.get("web"),
    )


def _read_mpi_args(text: str | None) -> tuple[str, ...]:
    args = split_words(text, "`--mpi-args`")
    if args and not args[0].startswith("-"):
        raise InputError(f"`--mpi-args`: {args[0]!r} is not an option; mpirun would start it instead of the script")
    planned = [word for word in args if word in PLANNED]
    if planned:
        raise InputError(f"`--mpi-args`: {planned[0]} is what ddlrun plans; use ddlrun's own options instead")
    return args
