"""The hosts of a job, read from options and the scheduler's job."""

from collections.abc import Callable, Mapping
from typing import Any

from ddlrun.application.inputs import load_hosts, read_hosts, read_launcher, read_rankfile
from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.mapping.rack_layout import RackLayout, RackNoteCode, arrange
from ddlrun.mapping.rankfile_entries import parse_host_names
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.plan.precedence import HOST_SOURCES
from ddlrun.plan.settings import JobHosts, assign_hosts
from ddlrun.remote.agent import apply_job_names
from ddlrun.remote.probe import is_local
from ddlrun.schedulers import Allocation
from ddlrun.topology import parse_topology
from ddlrun.wording import counted

Options = Mapping[str, Any]


def arrange_hosts(options: Options, allocation: Allocation | None) -> RackLayout:
    """Return the hosts in the order of their racks, and the topology request with the shape of the racks."""
    request = TopologyRequest(
        topology=parse_topology(options["topology"], "`--topology`") if options["topology"] else None,
        processes=options["processes"],
        ranks_per_host=options["ranks_per_host"],
        nodes=options["nodes"],
        racks=options["racks"],
        aisles=options["aisles"],
        gpus=allocation.gpus if allocation is not None else None,
    )
    hosts = apply_job_names(find_hosts(options, allocation), allocation)
    if options["nnodes"] not in (None, len(hosts)):
        present = f"{counted(len(hosts), 'host')} ({hosts.source})"
        raise InputError(f"`--nnodes` {options['nnodes']}, but the job has {present}; name the hosts: `-H` HOST,HOST")
    extra = options.get("spare_hosts") == "extra"
    if extra and request.topology is None:
        raise InputError("`--spare-hosts` extra: give the `--topology`, which says how many hosts it needs")
    layout = arrange(request, hosts, choose=extra or (allocation is not None and hosts is allocation.hosts))
    if extra:  # the hosts that are left out are the spare hosts
        notes = tuple(note for note in layout.notes if note.code is not RackNoteCode.LEFT_OUT)
        return layout._replace(notes=notes)
    return layout


def find_hosts(options: Options, allocation: Allocation | None) -> HostList:
    """Return the hosts of the first source of HOST_SOURCES that gives any."""
    lists = (HOST_READERS[source](options, allocation) for source in HOST_SOURCES)
    return next(hosts for hosts in lists if hosts is not None)


def _named_hosts(options: Options, _allocation: Allocation | None) -> HostList | None:
    if options["hosts"] is None and options["hostfile"] is None:
        return None
    return read_hosts(options["hosts"], options["hostfile"], "`-H`")


def _rankfile_hosts(options: Options, _allocation: Allocation | None) -> HostList | None:
    if not options["rankfile"]:
        return None
    names = parse_host_names(read_rankfile(options["rankfile"]))
    if not names:
        raise InputError(f"rank file {options['rankfile']}: no line places a rank; ddlrun lint explains each line")
    return HostList(tuple(map(Host, names)), f"rank file {options['rankfile']}")


HOST_READERS: dict[str, Callable[[Options, Allocation | None], HostList | None]] = {
    "--hosts or --hostfile": _named_hosts,
    "the hosts of --rankfile": _rankfile_hosts,
    "the scheduler's job": lambda _options, allocation: allocation.hosts if allocation is not None else None,
    "the hosts of --machine DIR": lambda options, _allocation: load_hosts(options["machine"]),
    "this machine": lambda _options, _allocation: read_hosts(None, None),
}


def assign_job_hosts(options: Options, layout: RackLayout, allocation: Allocation | None) -> JobHosts:
    """Return the hosts of the job, its spare hosts, and what starts programs there. Raises InputError."""
    spares = _read_spares(options.get("spare_hosts"), layout)
    names = (*layout.hosts.names, *(host.name for host in spares))
    least = options.get("min_topology")
    return JobHosts(
        assignment=assign_hosts(layout.hosts, spares, layout.request),
        min_topology=parse_topology(least, "`--min-topology`") if least else None,
        local=frozenset(name for name in names if is_local(name)),
        launcher=read_launcher(options, allocation, layout.hosts),
        allocation=allocation,
        notes=(*(allocation.notes if allocation is not None else ()), *map(str, layout.notes)),
    )


def _read_spares(text: str | None, layout: RackLayout) -> tuple[Host, ...]:
    """Return the hosts that stand by. Raises InputError where one of them is a host of the job."""
    if text == "extra":
        return layout.left_out
    spares = tuple(read_hosts(text, None, "`--spare-hosts`")) if text else ()
    both = {host.name for host in layout.hosts} & {host.name for host in spares}
    if both:
        raise InputError(f"`--spare-hosts`: {min(both)} is one of the job's own hosts")
    return spares
