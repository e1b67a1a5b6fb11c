"""From what was asked for to a Plan: nothing is written or started here but `mpirun --version`."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping

from ddlrun.errors import InputError, PlacementError, PreflightError
from ddlrun.hosts import HostList, fold
from ddlrun.machine import Machine, MachineNoteCode
from ddlrun.mapping.placement import OrderedCores, Placement, place, place_cores
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.rankfile import check_names
from ddlrun.mapping.topology_request import TopologyReason, TopologyRequest, check_request, choose_topology
from ddlrun.network.subnet_selection import Network
from ddlrun.network.variables import tcp_variables
from ddlrun.plan import START, Plan, pack_word
from ddlrun.plan.rank_environment import surroundings
from ddlrun.plan.settings import Settings
from ddlrun.process_managers.installation import find_mpirun, mca_files
from ddlrun.process_managers.openmpi import (
    Mpirun,
    MpirunJob,
    Transport,
    choose_transport,
    command,
    site_excludes,
    transport_chosen,
)
from ddlrun.remote.probe import check_distinct
from ddlrun.topology import RankOrder, Topology

# With these at 1 root has told any Open MPI that it may start.
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def check(settings: Settings, environ: Mapping[str, str]) -> Callable[[], Mpirun]:
    """Find whatever is wrong before any host is asked; return what waits for mpirun's version.

    Raises InputError, PlacementError or PreflightError, and so does what it returns.
    """
    mpirun = find_mpirun(settings.mpirun, environ)
    check_names(settings.hosts.names)
    check_distinct(settings.hosts, os.uname().nodename)
    check_request(settings.wish, settings.hosts)
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
) -> tuple[Placement, TopologyReason, str]:
    """Return where every rank goes, why this topology, and why this order of ranks.

    Raises InputError or PlacementError; of a user's own rank file all that Open MPI `major` (None: either)
    would not do as it says.
    """
    if settings.rankfile is not None:
        return _place_as_told(settings, settings.rankfile, machines, major)
    topology, reason = choose_topology(settings.wish, settings.hosts, machines)
    profile = settings.profiles.fitting(topology, major)
    if profile is not None and settings.profiles.free and profile.topology != topology:
        topology, reason = profile.topology, reason._replace(hosts=f"{profile}, instead of {topology}")
    order, order_reason = choose_order(settings)
    placement = place(topology, settings.hosts, machines, order, settings.policy)
    _check_gpus(settings, placement)
    return placement, reason, order_reason


def _place_as_told(
    settings: Settings, rankfile: tuple[str, str], machines: Mapping[str, Machine], major: int | None
) -> tuple[Placement, TopologyReason, str]:
    from ddlrun.mapping.lint_findings import LintCode  # noqa: PLC0415 - for the user's own rank file alone
    from ddlrun.mapping.rankfile_entries import parse_places  # noqa: PLC0415
    from ddlrun.mapping.rankfile_lint import lint  # noqa: PLC0415

    name, text = rankfile
    findings = lint(text, machines.get, None, settings.hosts.names)
    errors = [finding for finding in findings if finding.error and finding.concerns(major)]
    if settings.policy.overload:
        errors = [finding for finding in errors if finding.code is not LintCode.SHARED_CORE]
    if errors:
        raise PlacementError(
            *(
                f"{name}{finding.location}: {finding.message}; {finding.effect(major)}; {finding.remedy}"
                for finding in errors
            )
        )
    told = parse_places(text, lambda host: machines[host])
    share, left = divmod(len(told), len(settings.hosts))
    if left:
        raise PlacementError(f"{name}: {len(told)} ranks on {len(settings.hosts)} hosts are no topology XxYxZ")
    wish = settings.wish
    if (wish.topology, wish.accelerators, wish.nodes, wish.racks, wish.aisles, wish.processes) == (None,) * 6:
        wish = TopologyRequest(topology=Topology((share, len(settings.hosts))))
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
    placement = place_cores(topology, settings.hosts, machines, OrderedCores(order, cores), settings.policy)
    _check_gpus(settings, placement)
    return placement, TopologyReason(f"--rankfile {name}"), f"the order of {name}"


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
    found = surroundings(settings, mpirun, placement, transport, environ, files, network, is_free)
    job = _job(settings, placement, found.exports)
    return Plan(
        placement, reason, order_reason, mpirun, transport, command(mpirun, job),
        tuple(sorted(found.variables.items())), found.removed, found.exports, settings.run_dir,
        (
            *settings.notes, *placement_notes(placement), *_warnings(settings, machines, mpirun.major), *found.notes,
        ),
        settings.rankfile[1] if settings.rankfile else None, settings.run_id,
        found.network, found.warnings, found.ports, settings.way.reason,
    )  # fmt: skip


def _check_job(settings: Settings, mpirun: Mpirun, machines: Mapping[str, Machine], placement: Placement) -> None:
    shown = settings.watch.style.ranks
    if shown is not None and max(shown) >= placement.topology.size:
        raise InputError(f"--ranks: there is no rank {max(shown)}; the job has 0 to {placement.topology.size - 1}")
    bare = [name for name, machine in machines.items() if machine.cores_are_threads]
    if bare and mpirun.major == 5:
        note = MachineNoteCode.CORES_ARE_THREADS.value
        raise PreflightError(f"host {bare[0]}: {note}; take Open MPI 4.1 (--mpirun)")


def _transport(
    settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str], files: Mapping[str, str]
) -> Transport:
    chosen = transport_chosen(settings.mpi_args, {**environ, **settings.variables}, files)
    if settings.tcp:
        variables = tuple(tcp_variables(mpirun.major).items())
        return Transport(variables, "--tcp: TCP, and shared memory inside of hosts")
    return choose_transport(settings.hosts, placement.machines, chosen, site_excludes(files))


def _job(settings: Settings, placement: Placement, exports: tuple[str, ...]) -> MpirunJob:
    return MpirunJob(
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
        from ddlrun.mapping.lint_findings import LintCode  # noqa: PLC0415 - for the user's own rank file alone
        from ddlrun.mapping.rankfile_lint import lint  # noqa: PLC0415

        name, text = settings.rankfile
        for finding in lint(text, machines.get):
            # The command itself passes the parameter that keeps dotted names.
            if not finding.error and finding.concerns(major) and finding.code is not LintCode.DOTTED_HOST:
                yield f"{name}{finding.location}: {finding.message}; {finding.effect(major)}"


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
