"""From what was asked for to a Plan: nothing is written or started here but `mpirun --version`."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping

from ddlrun.environment import exported, rank_variables
from ddlrun.errors import InputError, PlacementError, PreflightError
from ddlrun.frameworks import Meeting, framework_variables, ports_needed, resolve
from ddlrun.hierarchical import Where, asked_hierarchical, collectives_chosen, hierarchical
from ddlrun.hosts import HostList, fold
from ddlrun.installed import ask_builds, find_mpirun, mca_files, mpi4py_library
from ddlrun.launchers import CHOSEN_BY_SLURM, PARTS, daemon_variables
from ddlrun.machine import THREADS_ALONE, Machine
from ddlrun.mpirun import (
    OVERRULING,
    Job,
    Mpirun,
    Transport,
    choose_transport,
    command,
    site_excludes,
    transport_chosen,
)
from ddlrun.network.nics import Network, decide, tcp_variables
from ddlrun.placement import Placement, place, place_cores, placement_notes
from ddlrun.plan import START, Plan, pack_word
from ddlrun.ports import choose_ports
from ddlrun.probe import check_distinct, is_local
from ddlrun.rank import wire
from ddlrun.rankfile import check_names
from ddlrun.settings import Settings
from ddlrun.shape import Wish, check_wish, choose_topology
from ddlrun.topology import RankOrder, Topology, parse_topology

# With these at 1 root has told any Open MPI that it may start.
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def check(settings: Settings, environ: Mapping[str, str]) -> Callable[[], Mpirun]:
    """Find whatever is wrong before any host is asked; return what waits for mpirun's version.

    Raises InputError, PlacementError or PreflightError, and so does what it returns.
    """
    mpirun = find_mpirun(settings.mpirun, environ)
    check_names(settings.hosts.names)
    check_distinct(settings.hosts, os.uname().nodename)
    check_wish(settings.wish, settings.hosts)
    return mpirun


def check_root(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise PreflightError where root starts a job without having said that it is meant."""
    if os.geteuid() == 0 and not (settings.as_root or all(environ.get(name) == "1" for name in ROOT)):
        raise PreflightError(
            "you are root, and what goes wrong in a job then can harm the whole machine; be another user, or say "
            "--allow-run-as-root (in a container, where root is usual, set OMPI_ALLOW_RUN_AS_ROOT=1 and "
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)"
        )


def place_job(
    settings: Settings, machines: Mapping[str, Machine], major: int | None = None
) -> tuple[Placement, str, str]:
    """Return where every rank goes, why this topology, and why this order of ranks.

    Raises InputError or PlacementError; of a user's own rank file all that Open MPI `major` (None: either)
    would not do as it says.
    """
    if settings.rankfile is not None:
        return _place_as_told(settings, settings.rankfile, machines, major)
    topology, reason = choose_topology(settings.wish, settings.hosts, machines)
    order, order_reason = choose_order(settings)
    placement = place(topology, settings.hosts, machines, order, settings.policy)
    _check_gpus(settings, placement)
    return placement, reason, order_reason


def _place_as_told(
    settings: Settings, rankfile: tuple[str, str], machines: Mapping[str, Machine], major: int | None
) -> tuple[Placement, str, str]:
    from ddlrun.lint import lint, places  # noqa: PLC0415 - for the user's own rank file alone

    name, text = rankfile
    findings = lint(text, machines.get, None, settings.hosts.names)
    wrong = [one for one in findings if one.error and one.matters(major)]
    if settings.policy.overload:
        wrong = [one for one in wrong if ", as rank " not in one.what]
    if wrong:
        raise PlacementError(*(f"{name}{one.place}: {one.what}; {one.really(major)}; {one.remedy}" for one in wrong))
    told = places(text, lambda host: machines[host])
    share, left = divmod(len(told), len(settings.hosts))
    if left:
        raise PlacementError(f"{name}: {len(told)} ranks on {len(settings.hosts)} hosts are no topology XxYxZ")
    wish = settings.wish
    if (wish.topology, wish.accelerators, wish.nodes, wish.racks, wish.aisles, wish.processes) == (None,) * 6:
        wish = Wish(topology=Topology((share, len(settings.hosts))))
    topology, _ = choose_topology(wish, settings.hosts, machines)
    if topology.size != len(told):
        raise PlacementError(
            f"{name} places {len(told)} ranks, topology {topology} has {topology.size}; make them agree"
        )
    order = _order_of(topology, settings.hosts, {rank: host for rank, (host, _) in told.items()})
    if order is None:
        raise PlacementError(
            f"{name}: its ranks are neither contiguous on each host nor round robin over {settings.hosts} as "
            f"{topology}; name the hosts in their order (-H) and the --topology"
        )
    cores = {rank: chosen for rank, (_, chosen) in told.items()}
    placement = place_cores(topology, settings.hosts, machines, order, cores, settings.policy)
    _check_gpus(settings, placement)
    return placement, f"--rankfile {name}", f"the order of {name}"


def _check_gpus(settings: Settings, placement: Placement) -> None:
    """Raise PlacementError where ranks would have to share GPUs, and nobody said that they may or use none."""
    by_cores = settings.wish.accelerators in ("package", "numa", "core")
    if settings.policy.share_gpus or settings.frameworks == ("mpi",) or by_cores:
        return
    crowded = [(at, machine) for at, machine, seats in placement.groups() if machine.gpus and not seats[0].gpu]
    ranks = placement.topology.accelerators
    if crowded:
        raise PlacementError(
            *(
                f"topology {placement.topology} puts {ranks} ranks on each host, but "
                f"{fold(placement.hosts.names[index] for index in indexes)} has {len(machine.gpus)} GPU"
                f"{'s' * (len(machine.gpus) > 1)} ({machine.source}); make X at most {len(machine.gpus)}, let ranks "
                "share them: --share-gpus, or say that they use none: --framework mpi"
                for indexes, machine in crowded
            )
        )


def _order_of(topology: Topology, hosts: HostList, host_of: Mapping[int, str]) -> RankOrder | None:
    """Return the order of ranks that puts each on the host that it has; None: neither does."""
    for order in RankOrder:
        if all(
            host_of[topology.rank(index, local_rank, order)] == name
            for index, name in enumerate(hosts.names)
            for local_rank in range(topology.accelerators)
        ):
            return order
    return None


def make_plan(
    settings: Settings,
    mpirun: Mpirun,
    machines: Mapping[str, Machine],
    environ: Mapping[str, str],
    network: Network | None = None,
    is_free: Callable[[int], bool] = lambda _: True,
) -> Plan:
    """Return the complete Plan; nothing is written or started.

    `network` is what the hosts share, None where they were not asked; `is_free` says of a port whether nobody has
    it where ranks would meet.

    Raises InputError, PlacementError or PreflightError.
    """
    placement, reason, order_reason = place_job(settings, machines, mpirun.major)
    _check_job(settings, mpirun, machines, placement)
    files = mca_files(mpirun.path, environ)
    transport = _transport(settings, mpirun, placement, environ, files)
    variables, notes = _variables(settings, mpirun, placement, environ)
    found, ranks, said, ports = _frameworks(settings, placement, network, is_free, environ)
    han, idle = _hierarchical(settings, mpirun, placement, {**environ, **settings.variables}, files)
    variables, notes = ranks | han | variables, [*notes, found, *said, *idle]
    rdma = any(machine.rdma_devices for machine in machines.values()) and not settings.tcp
    taken = {**environ, **settings.variables}
    over, more = decide(network, mpirun.major, taken, (*settings.mpi_args, *files.values()), rdma=rdma)
    variables = over | variables
    variables |= mpi4py_library(mpirun.path, {**environ, **variables}) | dict(transport.variables)
    variables |= _daemons(settings, mpirun, placement, environ)
    exports, removed, unset = _exports(settings, {**environ, **variables})
    job = _job(settings, placement, exports)
    return Plan(
        placement, reason, order_reason, mpirun, transport, command(mpirun, job),
        tuple(sorted(variables.items())), removed, exports, settings.run_dir,
        (
            *settings.notes, *placement_notes(placement), *_warnings(settings, machines, mpirun.major),
            *notes, *more, *unset,
        ),
        settings.rankfile[1] if settings.rankfile else None, settings.run_id,
        "left to MPI" if network is None else network.said + ("" if over else "; left to MPI"),
        (*said, *idle), ports, settings.way.reason,
    )  # fmt: skip


def _daemons(settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make mpirun start its daemons as we start our scripts; what the user set stays."""
    alone = all(is_local(name, os.uname().nodename) for name in settings.hosts.names)
    wanted = daemon_variables(
        settings.way, mpirun.major, settings.job, placement.topology.accelerators, environ, alone=alone
    )
    return {name: value for name, value in wanted.items() if name not in settings.variables}


def _check_job(settings: Settings, mpirun: Mpirun, machines: Mapping[str, Machine], placement: Placement) -> None:
    shown = settings.watch.style.ranks
    if shown is not None and max(shown) >= placement.topology.size:
        raise InputError(f"--ranks: there is no rank {max(shown)}; the job has 0 to {placement.topology.size - 1}")
    bare = [name for name, machine in machines.items() if THREADS_ALONE in machine.notes]
    if bare and mpirun.major == 5:
        raise PreflightError(f"host {bare[0]}: {THREADS_ALONE}; take Open MPI 4.1 (--mpirun)")


def _transport(
    settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str], files: Mapping[str, str]
) -> Transport:
    chosen = transport_chosen(settings.mpi_args, {**environ, **settings.variables}, files)
    if settings.tcp:
        variables = tuple(tcp_variables(mpirun.major).items())
        return Transport(variables, "--tcp: TCP, and shared memory inside of hosts")
    return choose_transport(settings.hosts, placement.machines, chosen, site_excludes(files))


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


def _job(settings: Settings, placement: Placement, exports: tuple[str, ...]) -> Job:
    return Job(
        ranks=placement.topology.size,
        hosts=settings.hosts,
        rankfile=settings.run_dir.rankfile,
        hostfile=settings.run_dir.hostfile,
        root=os.geteuid() == 0,  # `check_root` has seen that this is wanted
        ssh=settings.way.words if settings.way.launcher == "ssh" else (),
        exports=exports,
        extra=settings.mpi_args,
        program=(sys.executable, "-I", "-S", START, *map(pack_word, settings.program)),
        overload=placement.shares_cores,
    )


def _warnings(settings: Settings, machines: Mapping[str, Machine], major: int) -> Iterator[str]:
    if settings.rankfile is not None:
        from ddlrun.lint import lint  # noqa: PLC0415 - for the user's own rank file alone

        name, text = settings.rankfile
        for one in lint(text, machines.get):
            if not one.error and one.matters(major) and "has a dot" not in one.what:
                yield f"{name}{one.place}: {one.what}; {one.really(major)}"


def choose_order(settings: Settings) -> tuple[RankOrder, str]:
    """Return the rank order and why: `auto` is contiguous on a host, unless DDL or the job asks for the other."""
    wanted, job = settings.rank_order, settings.job
    if wanted != "auto":
        return RankOrder(wanted), f"--rank-order {wanted}"
    if settings.mode is not None or "ddl" in settings.frameworks:
        asked = f"--mode {settings.mode}" if settings.mode is not None else "--framework ddl"
        return RankOrder.DDL, f"{asked} asks for DDL, whose grid numbers X slowest"
    if job is not None and job.cyclic:
        return RankOrder.DDL, f"{job.title} asks for cyclic ranks: a host after the other"
    return RankOrder.HOST, "contiguous on a host: flat collectives and device meshes expect it"


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
        chosen, placement, Meeting(addresses, port), (*settings.variables, *settings.named), environ
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
    return hierarchical(settings.knobs, builds, Where(len(settings.hosts), gpus, mpirun.major, chosen))


# The user's own ways to bind threads, which the plan knows nothing of.
BINDING_THREADS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND")


def _variables(
    settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return what ddlrun sets for the ranks, and notes on what the user had set already."""
    own = {*settings.variables, *settings.named}
    chosen = own & {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
    # A worker of TensorFlow's takes all GPUs that it sees: well for one on a host alone.
    greedy = "tensorflow" in settings.frameworks and placement.topology.accelerators > 1
    visible = settings.visible_gpus or ("own" if greedy else "all")
    variables = rank_variables(placement, settings.mode or "p", "unchanged" if chosen else visible)
    notes = [f"{name}: left as you set it" for name in sorted(chosen)]
    notes += [f"{name} is set: OpenMP binds threads as it says" for name in BINDING_THREADS if name in environ]
    if settings.bind_threads is not None:
        variables |= (
            {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"} if settings.bind_threads else {"OMP_PROC_BIND": "false"}
        )
    # `run` fills these in: without them, as for those who paste the command, ranks have no keeper.
    variables |= dict.fromkeys((wire.ADDRESSES, "DDLRUN_GRACE", "DDLRUN_HEARTBEAT", "DDLRUN_RUN"), "")
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
