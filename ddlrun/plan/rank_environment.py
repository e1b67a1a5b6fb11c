"""The environment of the ranks: the variables of every layer, what is passed on, and notes on both."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.environment.exports import select_exports
from ddlrun.environment.frameworks import FrameworkVariables, Rendezvous, plan_framework_variables, resolve
from ddlrun.environment.horovod_hierarchical import (
    HorovodContext,
    active_hierarchical,
    find_collectives_choice,
    plan_hierarchical_variables,
)
from ddlrun.errors import InputError
from ddlrun.keeper import program_streams, protocol
from ddlrun.managers import DaemonRequest, TransportChoice
from ddlrun.managers.openmpi import OVERRULING
from ddlrun.managers.program_mpi import mpi4py_variables
from ddlrun.network.variables import choose_variables
from ddlrun.plan.job_variables import plan_default_variables, plan_job_variables, thread_note
from ddlrun.plan.placed_job import Contribution, PlacedJob
from ddlrun.plan.plan import STDIN
from ddlrun.plan.precedence import merge_layers
from ddlrun.remote.agent import CHOSEN_BY_SLURM, PARTS
from ddlrun.topology import UnequalTopology


class RankEnvironment(NamedTuple):
    """The variables that ddlrun sets for the ranks, the names that are passed on or removed, and notes."""

    variables: dict[str, str]
    unsupervised: dict[str, str]
    """Variables that are set while ddlrun supervises the job, with their values when it does not."""
    exports: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    """Notes that are shown even without --verbose."""
    network: str


def plan_environment(job: PlacedJob, transport: TransportChoice, ports: range) -> RankEnvironment:
    """Return the environment of the ranks; they meet on `ports`. Raises InputError."""
    mode, profile = _profile(job)
    own, defaults = plan_job_variables(job, mode), plan_default_variables(job, mode)
    chosen, frameworks = _frameworks(job, ports)
    collectives, network = _collectives(job), _network(job)
    layers = {
        "network": network.variables,
        "rendezvous": frameworks.rendezvous,
        "frameworks": frameworks.ranks,
        "collectives": collectives.variables,
        "profile": profile.variables,
        "mpi4py": mpi4py_variables(job.survey.installation.mpi_library, job.environ),
        "daemons": _daemons(job),
        "defaults": defaults.variables,
        "job": own.variables,
        "user": job.settings.environment.variables,
        "transport": dict(transport.variables),
    }
    variables = merge_layers(layers, job.inherited)
    unsupervised = _unsupervised(job)
    exports = _exports(job, {**variables, **unsupervised})
    warnings = (*own.warnings, *profile.warnings, *frameworks.notes, *collectives.warnings, *exports.warnings)
    return RankEnvironment(
        variables=variables,
        unsupervised=unsupervised,
        exports=exports.exports,
        removed=exports.removed,
        notes=(
            *own.notes, *defaults.notes, thread_note(job), chosen, *warnings, *network.notes, *exports.notes,
        ),
        warnings=warnings,
        network=_describe_network(job, network),
    )  # fmt: skip


def _unsupervised(job: PlacedJob) -> dict[str, str]:
    """Return the variables that the supervising ddlrun sets: without it, ranks have no keeper and no input."""
    variables = dict.fromkeys((protocol.ADDRESSES, "DDLRUN_GRACE", "DDLRUN_HEARTBEAT", "DDLRUN_RUN"), "")
    hosts = job.settings.hosts
    first_is_local = hosts.hosts.names[0] in hosts.local
    if first_is_local or not job.manager.gives_no_input:
        variables[STDIN] = os.devnull
    if job.settings.supervision.input is not None or not first_is_local:
        variables[program_streams.VARIABLE] = ""
    return variables


def _profile(job: PlacedJob) -> tuple[str, Contribution]:
    """Return the mode of DDL, and the variables of the profile of these hosts that the user has not set."""
    topology, settings, environ = job.placement.topology, job.settings.job, job.environ
    profile = settings.profiles.fitting(topology, job.manager.mpi_generation)
    default = settings.mode or "p"
    notes = tuple(filter(None, [settings.profiles.note]))
    if profile is None:
        return default, Contribution({}, warnings=notes)
    if profile.topology != topology:
        note = f"the {profile} is left out: it is for {profile.topology}, the job is {topology}"
        return default, Contribution({}, warnings=(note,))
    autotuned = environ.get("HOROVOD_AUTOTUNE", "0") != "0"
    variables = {} if autotuned else {name: value for name, value in profile.horovod.items() if name not in environ}
    words = [f"{name}={value}" for name, value in variables.items()]
    mode = default
    if "DDL_OPTIONS" not in environ and settings.mode in (None, profile.mode):
        mode, words = profile.mode, [f"mode {profile.mode}", *words]
        if "DDLRUN_DDL_TUNING" not in environ:
            variables["DDLRUN_DDL_TUNING"] = profile.tuning
            words.append(profile.tuning)
    note = f"the {profile} gives {', '.join([str(topology), *words])}; disable it with --profile none"
    return mode, Contribution(variables, warnings=(note, *notes))


def _frameworks(job: PlacedJob, ports: range) -> tuple[str, FrameworkVariables]:
    """Return the note on the frameworks that ranks are set up for, and their variables. Raises InputError."""
    settings, hosts = job.settings, job.settings.hosts
    horovod = any(name.startswith("HOROVOD_") for name in settings.environment.variables)
    chosen, why = resolve(settings.job.frameworks, horovod=horovod, ddl=settings.job.mode is not None)
    network = job.survey.network.addresses if job.survey.network is not None else {}
    addresses = tuple("127.0.0.1" if hosts.all_local else network.get(name, name) for name in hosts.hosts.names)
    if "torch" in chosen:
        _check_meeting_place(job, addresses)
    run = settings.run
    rendezvous = Rendezvous(addresses, ports.start, run.run_id, restart=run.attempt, restarts=run.restarts)
    variables = plan_framework_variables(chosen, job.placement, rendezvous, settings.environment.names, job.inherited)
    return f"frameworks: {', '.join(chosen)} ({why})", variables


def _check_meeting_place(job: PlacedJob, addresses: Sequence[str]) -> None:
    """Raise InputError where the user has set a port that is none, or an address that is not of rank 0's host."""
    port, address = job.environ.get("MASTER_PORT", "1"), job.environ.get("MASTER_ADDR")
    if not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise InputError(f"MASTER_PORT={port}: it is not a port; unset it, and a free one is taken")
    if address is None or job.settings.hosts.all_local:
        return
    first = job.placement.rank_hosts()[0]
    names = zip(job.settings.hosts.hosts.names, addresses, strict=True)
    if any(address in own for own in names if first not in own):
        raise InputError(f"MASTER_ADDR={address}: rank 0 is on {first}; unset it, and ddlrun sets it")


def _collectives(job: PlacedJob) -> Contribution:
    """Return the variables that make Horovod's hierarchical settings work; warn of those that have no effect."""
    settings, installation = job.settings, job.survey.installation
    hierarchical = job.manager.hierarchical
    if not active_hierarchical(settings.environment.variables) or hierarchical is None:
        return Contribution({})
    chosen = find_collectives_choice(settings.mpi.args, job.environ, installation.mca_files)
    gpus = any(machine.gpus for machine in job.placement.machines)
    context = HorovodContext(
        hosts=len(settings.hosts.hosts),
        gpus=gpus,
        hierarchical=hierarchical,
        chosen=chosen,
        unequal=isinstance(job.placement.topology, UnequalTopology),
    )
    variables, notes = plan_hierarchical_variables(settings.environment.variables, installation.horovod, context)
    return Contribution(variables, warnings=tuple(notes))


def _network(job: PlacedJob) -> Contribution:
    """Return the variables that keep MPI, NCCL and Gloo to the network of the hosts."""
    rdma = any(machine.rdma_devices for machine in job.placement.machines) and not job.settings.mpi.tcp
    chosen = (*job.settings.mpi.args, *job.survey.installation.mca_files.values())
    daemons = job.manager.network_variables
    variables, notes = choose_variables(job.survey.network, daemons, job.environ, chosen, rdma=rdma)
    return Contribution(variables, tuple(notes))


def _describe_network(job: PlacedJob, contribution: Contribution) -> str:
    network = job.survey.network
    if network is None:
        return "left to MPI"
    return network.summary if contribution.variables else f"{network.summary}; left to MPI"


def _daemons(job: PlacedJob) -> dict[str, str]:
    """Return the variables with which the process manager starts its daemons as ddlrun starts its own scripts."""
    hosts = job.settings.hosts
    request = DaemonRequest(
        launcher=hosts.launcher.launcher,
        words=hosts.launcher.words,
        slots=job.placement.topology.largest,
        job=hosts.allocation,
        alone=hosts.all_local,
    )
    return job.manager.daemon_variables(request, job.inherited)


class _Exports(NamedTuple):
    exports: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def _exports(job: PlacedJob, variables: Mapping[str, str]) -> _Exports:
    """Return the names in the environment that are passed on to ranks, and those that are removed from it.

    `variables` are those that ddlrun sets.
    """
    user, environ = job.settings.environment, {**job.inherited, **variables}
    by_slurm = job.settings.hosts.launcher.launcher == "srun"
    hidden = frozenset(CHOSEN_BY_SLURM if by_slurm else ()) - user.names
    names = select_exports(environ, user.export, user.names)
    exports = tuple(name for name in names if name in environ and name not in hidden)
    left_out = [name for name in job.survey.environ if name not in environ]
    overruling = [name for name in OVERRULING if name in environ]
    parts = [name for name in PARTS if by_slurm and name in environ]
    notes = [f"{name}: left out, as it contradicts the rank file" for name in overruling]
    if "TMPDIR" in job.inherited and "TMPDIR" not in user.names and not job.settings.hosts.all_local:
        notes.append("TMPDIR: ranks on other hosts get their own; -x TMPDIR passes yours on")
    sharing = [f"{name}={environ[name]}" for name in overruling if "oversubscribe" in environ[name].lower()]
    unset = [f"-x {name}" for name in user.passed if name not in environ]
    unset += [f"--export {name}" for name in user.export.names if name not in environ]
    return _Exports(
        exports=exports,
        removed=(*overruling, *parts, *sorted(left_out)),
        notes=tuple(notes),
        warnings=(
            *(f"{option}: the variable is not set" for option in unset),
            *(f"{text}: left out; ranks may share cores, and --spawn-slots is for MPI_Comm_spawn" for text in sharing),
        ),
    )
