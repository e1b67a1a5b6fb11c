"""What ranks find in their environment: all variables of a plan, and what is said of them."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ddlrun.environment.exports import exported, rank_variables
from ddlrun.environment.frameworks import Rendezvous, framework_variables, ports_needed, resolve
from ddlrun.environment.horovod_hierarchical import HorovodContext, asked_hierarchical, collectives_chosen, hierarchical
from ddlrun.environment.rendezvous_ports import choose_ports
from ddlrun.errors import InputError
from ddlrun.mapping.placement import Placement
from ddlrun.network.subnet_selection import Network
from ddlrun.network.variables import choose_variables
from ddlrun.plan.settings import Settings
from ddlrun.process_managers.installation import ask_builds, mpi4py_library
from ddlrun.process_managers.openmpi import OVERRULING, Mpirun, Transport
from ddlrun.rank import protocol
from ddlrun.remote.daemon_variables import CHOSEN_BY_SLURM, PARTS, DaemonRequest, daemon_variables
from ddlrun.remote.probe import is_local
from ddlrun.topology import Topology, parse_topology


class RankEnvironment(NamedTuple):
    """Variables that ddlrun sets, those of ours that ranks get by name, those that they do not; what is said of them.

    `ports`: those for the frameworks. `network`: which one is used, in words. Warnings are among the notes.
    """

    variables: dict[str, str]
    exports: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    ports: range
    network: str


def surroundings(
    settings: Settings,
    mpirun: Mpirun,
    placement: Placement,
    transport: Transport,
    environ: Mapping[str, str],
    files: Mapping[str, str],
    network: Network | None,
    is_free: Callable[[int], bool],
) -> RankEnvironment:
    """Return what ranks find; `files` are texts of mpirun's own, `network` and `is_free` as for `make_plan`.

    Raises InputError.
    """
    tuned, words = _tuned(settings, mpirun, placement, environ)
    own, notes = _variables(settings, mpirun, placement, tuned, environ)
    found, ranks, said, ports = _frameworks(settings, placement, network, is_free, environ)
    taken = {**environ, **settings.variables}
    han, idle = _hierarchical(settings, mpirun, placement, taken, files)
    rdma = any(machine.rdma_devices for machine in placement.machines) and not settings.tcp
    over, more = choose_variables(network, mpirun.major, taken, (*settings.mpi_args, *files.values()), rdma=rdma)
    variables = over | ranks | han | tuned.variables | own
    variables |= mpi4py_library(mpirun.path, {**environ, **variables}) | dict(transport.variables)
    variables |= _daemons(settings, mpirun, placement, environ)
    exports, removed, unset = _exports(settings, {**environ, **variables})
    used = "left to MPI" if network is None else network.summary + ("" if over else "; left to MPI")
    warnings = (*words, *said, *idle)
    return RankEnvironment(
        variables, exports, removed, (*notes, found, *warnings, *more, *unset), warnings, ports, used
    )


class TunedSettings(NamedTuple):
    """What a profile gives: the mode of DDL, and variables."""

    mode: str
    variables: dict[str, str]


def _tuned(
    settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str]
) -> tuple[TunedSettings, list[str]]:
    """Return what the profile of these hosts gives where the user has not said otherwise, and what is said of it."""
    topology, profiles = placement.topology, settings.profiles
    profile = profiles.fitting(topology, mpirun.major)
    if profile is None:
        return TunedSettings("p", {}), [profiles.said] * bool(profiles.said)
    if profile.topology != topology:
        return TunedSettings("p", {}), [
            f"the {profile} is left out: it is for {profile.topology}, the job is {topology}"
        ]
    taken = {**environ, **settings.variables}
    autotuned = taken.get("HOROVOD_AUTOTUNE", "0") != "0"
    variables = {} if autotuned else {name: value for name, value in profile.horovod.items() if name not in taken}
    words = [f"{name}={value}" for name, value in variables.items()]
    mode = settings.mode or "p"
    if "DDL_OPTIONS" not in taken and settings.mode in (None, profile.mode):
        mode, words = profile.mode, [f"mode {profile.mode}", *words]
        if "DDLRUN_DDL_TUNING" not in taken:
            variables["DDLRUN_DDL_TUNING"] = profile.tuning
            words.append(profile.tuning)
    given = ", ".join([str(topology), *words])
    said = [profiles.said] * bool(profiles.said)
    return TunedSettings(mode, variables), [f"the {profile} gives {given}; --profile none to do without", *said]


def _daemons(settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make mpirun start its daemons as we start our scripts; what the user set stays."""
    alone = all(is_local(name, os.uname().nodename) for name in settings.hosts.names)
    request = DaemonRequest(
        launcher=settings.way.launcher,
        words=settings.way.words,
        major=mpirun.major,
        slots=placement.topology.accelerators,
        job=settings.job,
        alone=alone,
    )
    variables = daemon_variables(request, environ)
    return {name: value for name, value in variables.items() if name not in settings.variables}


def _exports(settings: Settings, environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Return what of the ranks' environment is passed on by name, what is left out of it, and notes on both."""
    own = (*settings.named, *settings.variables)
    by_slurm = settings.way.launcher == "srun"
    exports = [name for name in exported(environ, own) if name in own or not (by_slurm and name in CHOSEN_BY_SLURM)]
    removed = tuple(name for name in OVERRULING if name in environ)
    notes = [f"-x {name}: it is not set" for name in settings.named if name not in environ]
    notes += [f"{name}: left out, as it contradicts the rank file" for name in removed]
    parts = tuple(name for name in PARTS if by_slurm and name in environ)
    return tuple(name for name in exports if name in environ), (*removed, *parts), notes


def _frameworks(
    settings: Settings,
    placement: Placement,
    network: Network | None,
    is_free: Callable[[int], bool],
    environ: Mapping[str, str],
) -> tuple[str, dict[str, str], list[str], range]:
    """Return which frameworks there are, what makes the ranks of each find each other, warnings, and the ports."""
    horovod = any(value is not None for value in settings.knobs.values())
    chosen, why = resolve(settings.frameworks, horovod=horovod, ddl=settings.mode is not None)
    told = {**environ, **settings.variables}.get("MASTER_PORT", "1")
    if "torch" in chosen and not (told.isdecimal() and 0 < int(told) < 1 << 16):
        raise InputError(f"MASTER_PORT={told}: it is no port; unset it, and a free one is taken")
    names = settings.hosts.names
    known = network.addresses if network is not None else {}
    own = os.uname().nodename
    alone = all(is_local(name, own) for name in names)
    addresses = tuple("127.0.0.1" if alone else known.get(name, name) for name in names)
    needed = ports_needed(placement.topology.accelerators)
    port = choose_ports(settings.run_id, needed, is_free)
    variables, said = framework_variables(
        chosen, placement, Rendezvous(addresses, port), (*settings.variables, *settings.named), environ
    )
    return f"frameworks: {', '.join(chosen)} ({why})", variables, said, range(port, port + needed)


def _hierarchical(
    settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str], files: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return what makes Horovod's hierarchical settings work, and which do nothing: only then is Horovod asked."""
    if not asked_hierarchical(settings.knobs):
        return {}, []
    program = settings.program[0]
    python = program if os.path.basename(program).startswith("python") else sys.executable
    library = mpi4py_library(mpirun.path, environ)
    builds = ask_builds(python, ["horovod.torch"], library)
    if not builds["horovod.torch"].works:
        builds |= ask_builds(python, ["horovod.tensorflow"], library)
    chosen = collectives_chosen(settings.mpi_args, environ, files)
    gpus = any(machine.gpus for machine in placement.machines)
    return hierarchical(settings.knobs, builds, HorovodContext(len(settings.hosts), gpus, mpirun.major, chosen))


# The user's own ways to bind threads, which the plan knows nothing of.
BINDING_THREADS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND")
# --bind-threads, --no-bind-threads, and neither.
BOUND: dict[bool | None, dict[str, str]] = {
    True: {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}, False: {"OMP_PROC_BIND": "false"}, None: {},
}  # fmt: skip


def _variables(
    settings: Settings, mpirun: Mpirun, placement: Placement, tuned: TunedSettings, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return what ddlrun sets for the ranks, and notes on what the user had set already."""
    own = {*settings.variables, *settings.named}
    chosen = own & {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
    # A worker of TensorFlow's takes all GPUs that it sees: well for one on a host alone.
    greedy = "tensorflow" in settings.frameworks and placement.topology.accelerators > 1
    visible = settings.visible_gpus or ("own" if greedy else "all")
    variables = rank_variables(placement, settings.mode or tuned.mode, "unchanged" if chosen else visible)
    notes = [f"{name}: left as you set it" for name in sorted(chosen)]
    notes += [f"{name} is set: OpenMP binds threads as it says" for name in BINDING_THREADS if name in environ]
    variables |= BOUND[settings.bind_threads]
    # `run` fills these in: without them, as for those who paste the command, ranks have no keeper.
    variables |= dict.fromkeys((protocol.ADDRESSES, "DDLRUN_GRACE", "DDLRUN_HEARTBEAT", "DDLRUN_RUN"), "")
    variables["DDLRUN_RUN_DIR"] = settings.run_dir.path
    variables["DDLRUN_RESTART"] = str(settings.job.restarts if settings.job is not None else 0)
    if mpirun.major == 5:  # its own TERM leads to a KILL after 1 s; 4.1 would sleep that long in any case
        variables["PRTE_MCA_odls_base_sigkill_timeout"] = str(min(int(settings.watch.grace + 5), 1 << 30))
    if settings.strict_binding:
        variables["DDLRUN_STRICT_BINDING"] = "1"
    if settings.mode is None and "DDL_OPTIONS" in environ:
        _check_ddl_options(environ["DDL_OPTIONS"], placement.topology)
        notes.append("DDL_OPTIONS: left as you set it")
        del variables["DDL_OPTIONS"]
    if mpirun.major != 4 or is_local(settings.hosts.names[0], os.uname().nodename):
        variables["DDLRUN_STDIN"] = os.devnull  # `run` puts our own there; see rank.py
    if "PYTHONUNBUFFERED" not in environ:
        variables["PYTHONUNBUFFERED"] = "1"
    variables |= settings.variables
    path = variables.get("PATH", environ.get("PATH"))
    if path is not None and mpirun.major == 4:  # it puts its own folder before the user's
        variables["DDLRUN_PATH"] = path
    set_by_user = variables.get("OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS"))
    notes.append(
        "OMP_NUM_THREADS: one a core" if set_by_user is None else f"OMP_NUM_THREADS: {set_by_user}, as you set it"
    )
    return variables, notes


def _check_ddl_options(options: str, topology: Topology) -> None:
    words = options.split()
    if "-mode" not in words[:-1]:
        return
    said = words[words.index("-mode") + 1].partition(":")[2]
    if said and parse_topology(said, "DDL_OPTIONS").dims != topology.dims:
        raise InputError(f"DDL_OPTIONS says {said}, but the topology is {topology}; unset one of them")
