"""The rank file of ddlrun gen-rankfile: hosts and machines as they are named, and the notes on what is assumed."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from ddlrun import __version__
from ddlrun.application.inputs import find_job, open_links, reach, read_hosts, read_machines, ssh_launcher
from ddlrun.application.options.policy import read_policy
from ddlrun.application.reporter import Reporter
from ddlrun.errors import InputError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.mapping.placement import Placement, place
from ddlrun.mapping.placement_notes import placement_notes
from ddlrun.mapping.rack_layout import arrange
from ddlrun.mapping.rankfile import render
from ddlrun.mapping.slot_notation import BOTH_MAJORS
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.remote.probe import check_distinct, is_local, probe
from ddlrun.topology import RankOrder, Topology

ASSUMED_PRESET = "s822lc"
# Options that state the machine.
SOURCES = ("machine", "packages", "probe")


def generate_rankfile(
    topology: Topology, hosts: str | None, options: dict[str, Any], reporter: Reporter
) -> Iterator[str]:
    """Return the blocks of the rank file that the options of ddlrun gen-rankfile describe; report what is assumed."""
    host_list = _read_hosts(topology, hosts, options["hostfile"], reporter)
    check_distinct(host_list)
    policy = read_policy(options)._replace(strict=True)
    stated = any(options[name] for name in SOURCES)
    if not stated and all(is_local(name) for name in host_list.names):
        options["machine"] = "local"
    machines = _read_machines(host_list, options)
    placement = place(topology, host_list, machines, RankOrder(options["rank_order"]), policy)
    majors = (int(options["open_mpi"]),) if options["open_mpi"] else BOTH_MAJORS
    assumed = [] if stated else [_assumption(placement, local=options["machine"] is not None)]
    title = f"by ddlrun {__version__}: ddlrun gen-rankfile {topology}, ranks in {options['rank_order']} order"
    blocks = render(placement, "\n#assumed: ".join([title, *assumed]), majors)
    known = placement_notes(placement) if stated or options["machine"] else []
    for note in (*known, *assumed, *_notes(placement)):
        reporter.line(f"note: {note}")
    return blocks


def _read_hosts(topology: Topology, hosts: str | None, hostfile: str | None, reporter: Reporter) -> HostList:
    """Return the hosts in the order of their racks, and report notes."""
    job = None if hosts or hostfile else find_job("auto")
    host_list = read_hosts(hosts, hostfile, job=job)
    layout = arrange(TopologyRequest(topology=topology), host_list, choose=job is not None)
    for note in layout.notes:
        reporter.line(f"note: {note}")
    return layout.hosts


def _assumption(placement: Placement, *, local: bool) -> str:
    """Return the assumption where no option states the machine: it is the `local` one, else that of the preset."""
    machine = placement.machines[0]
    if local:
        return f"the host is this machine: {machine} ({machine.source}); name another one with --machine PRESET|FILE"
    host, other = f"each host is an IBM S822LC: {machine} (preset {ASSUMED_PRESET})", "--machine PRESET|FILE or --probe"
    if placement.order is RankOrder.HOST or len(placement.hosts) == 1:
        return f"{host}; name another one with {other}"
    return f"{host}, and ranks go round robin over hosts; name others with {other}, and --rank-order host"


def _notes(placement: Placement) -> Iterator[str]:
    """Yield the limits of the rank file."""
    if placement.shares_cores:
        yield "ranks share cores: Open MPI 5 needs --bind-to core:overload-allowed"
    if placement.policy.threads_per_core:
        yield "--threads-per-core: a rank file names whole cores; ddlrun launch binds ranks to some of their threads"
    if any("." in name for name in placement.hosts.names):
        yield (
            "mpirun cuts host names at the first dot, unless it gets --mca orte_keep_fqdn_hostnames 1 (Open MPI 4) "
            "or --prtemca prte_keep_fqdn_hostnames 1 (Open MPI 5); ddlrun launch sets these itself"
        )


def _read_machines(hosts: HostList, options: Mapping[str, Any]) -> dict[str, Machine]:
    """Return the machine of each host. Raises InputError where the options contradict each other."""
    packages, cores = options["packages"], options["cores_per_package"]
    sources = [options["machine"], packages is not None or cores is not None, options["probe"]]
    if len([source for source in sources if source]) > 1:
        raise InputError(
            "`--machine`, --packages with --cores-per-package, and --probe exclude each other; give one of them"
        )
    if (packages is None) != (cores is None):
        raise InputError("--packages and --cores-per-package go together; give both, or use `--machine`")
    if packages is not None:
        from ddlrun.machine.preset import simple_machine  # noqa: PLC0415 - 8 ms, and 16 of YAML: for these options alone

        return dict.fromkeys(hosts.names, simple_machine(packages, cores))
    if options["probe"]:
        with closing(open_links(ssh_launcher(options))) as links:
            return probe(hosts, reach(links))
    return read_machines(hosts, options["machine"] or ASSUMED_PRESET)
