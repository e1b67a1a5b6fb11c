"""The forecast of ddlrun network plan: the cluster, its network, and the time of a step on each topology."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddlrun.application.inputs import find_job, read_hosts, read_launcher, read_machines, read_text
from ddlrun.application.profile_store import read_profiles
from ddlrun.application.reporter import Reporter
from ddlrun.block_sizing import JobLinks
from ddlrun.errors import InputError
from ddlrun.mapping.rack_layout import arrange, by_rack, shape_reason, unequal_racks
from ddlrun.mapping.topology_request import TopologyRequest, choose_topology, unequal_error
from ddlrun.network.fabric import Fabric, parse_fabric
from ddlrun.network.forecast import TrainingStep, forecasts, order_penalties, uneven_data, wiring_of
from ddlrun.network.presets import MODELS, gradient_of, parse_links
from ddlrun.network.unequal_nics import links_of, nic_rates, split_racks
from ddlrun.remote.agent import apply_job_names
from ddlrun.report.forecast import Epoch, ForecastReport
from ddlrun.topology import JobTopology, Topology, UnequalTopology, parse_topology
from ddlrun.units import parse_bytes, parse_seconds

# The model whose gradients a step has by default.
MODEL = "resnet50"


def forecast(options: Mapping[str, Any], reporter: Reporter) -> ForecastReport:
    """Return the forecast that the options of ddlrun network plan describe. Raises InputError where they contradict."""
    if options["overlap"] and not options["compute"]:
        raise InputError(f"--overlap {options['overlap']:g} is a share of the computing time; give --compute TIME")
    if options["batch"] and not options["images"]:
        raise InputError(f"--batch {options['batch']} divides the images of an epoch; give --images N")
    described = _read_network(options["links"])
    cluster = _cluster(options, described.hosts_per_rack if described else None, reporter)
    topology = cluster.topology
    if described is None:
        per_rack = topology.dims[1] if isinstance(topology, Topology) else topology.hosts
        racks_known = options["topology"] or options["racks"] or topology.hosts > per_rack
        fabric = parse_links(options["links"], per_rack if racks_known else None)
    else:
        fabric = described
    fabric = replace(fabric, hosts_per_rack=fabric.hosts_per_rack or cluster.per_rack)
    gradient, source = read_gradient(options)
    compute = parse_seconds(options["compute"], "--compute") if options["compute"] else None
    work = TrainingStep(gradient, options["mode"], compute, options["overlap"])
    wiring = wiring_of(topology, fabric)
    return ForecastReport(
        topology=topology,
        reason=cluster.reason,
        wiring=wiring,
        fabric=fabric,
        work=work,
        gradient_source=source,
        forecasts=forecasts(topology, wiring, fabric, work, links=_unequal_links(cluster, wiring, fabric)),
        penalties=order_penalties(topology, wiring),
        epoch=_epoch(options, topology),
    )


def _epoch(options: Mapping[str, Any], topology: JobTopology) -> Epoch | None:
    if not options["images"]:
        return None
    batch = options["batch"] or 1
    return Epoch(options["images"], batch, uneven_data(options["images"], topology.size, batch))


@dataclass(frozen=True, slots=True)
class ClusterTopology:
    """The topology that launch would use, the reason, the hosts of the largest rack (None: unknown), and their names.

    racks: the number of hosts of each rack where racks or hosts are unequal.
    """

    topology: JobTopology
    reason: str
    per_rack: int | None = None
    names: tuple[str, ...] = ()
    racks: tuple[int, ...] = ()


def _unequal_links(cluster: ClusterTopology, wiring: Topology, fabric: Fabric) -> JobLinks | None:
    """Return the links by which ddlrun.ddl sizes its blocks; None where hosts and links are equal."""
    hosts = cluster.topology.hosts
    nics = nic_rates(fabric, cluster.names, hosts)
    equal = isinstance(cluster.topology, Topology) and not cluster.racks and len(set(nics)) == 1
    return None if equal else links_of(nics, cluster.racks or split_racks(hosts, wiring.dims[1]), fabric)


def _read_network(text: str | None) -> Fabric | None:
    """Return the network of a file, None where presets are named. Raises InputError."""
    if text is None:
        raise InputError("--links is missing: name a YAML file, or presets such as 100gbe or nvlink3,8x200gbe,2:1")
    is_file = "/" in text or text.endswith((".yaml", ".yml")) or os.path.isfile(text)
    return parse_fabric(read_text(text, "network"), f"network {text}") if is_file else None


def _cluster(options: Mapping[str, Any], per_rack: int | None, reporter: Reporter) -> ClusterTopology:
    """Return the cluster of the named hosts, of the job, or of the numbers given; `per_rack`: the network's."""
    named = options["hosts"] or options["hostfile"]
    shape = parse_topology(options["topology"], "--topology") if options["topology"] else None
    if options["count"] and named:
        raise InputError(f"--host-count {options['count']}, but hosts are named too; leave one of them out")
    if options["count"] or (shape is not None and not named):
        return _on_paper(shape, options, per_rack)
    request = TopologyRequest(topology=shape, ranks_per_host=options["ranks_per_host"], racks=options["racks"])
    job = find_job(options["scheduler"], named=bool(named))
    hosts = apply_job_names(read_hosts(options["hosts"], options["hostfile"], job=job), job)
    arranged = arrange(request._replace(gpus=job.gpus if job is not None else None), hosts, choose=job is not None)
    for note in arranged.notes:
        reporter.line(f"note: {note}")
    stated = request.ranks_per_host or shape or (not hosts.slots_are_capacity and any(host.slots for host in hosts))
    launcher = read_launcher(options, job, arranged.hosts)
    machines = {} if stated else read_machines(arranged.hosts, options["machine"], launcher)
    largest = max(map(len, by_rack(arranged.hosts).values()), default=None)
    topology, topology_reason = choose_topology(arranged.request, arranged.hosts, machines)
    reason = str(topology_reason)
    if isinstance(topology, UnequalTopology) and request.racks:
        raise unequal_error(f"`--racks` {request.racks}", topology)
    if isinstance(topology, Topology) and shape is None:
        racks_reason = f"--racks {request.racks}" if request.racks else shape_reason(arranged.hosts)
        reason = f"X: {reason}; Y, Z: {racks_reason}"
        profile = None if request.racks else read_profiles("auto", arranged.hosts.names).fitting(topology, None)
        if profile is not None and profile.topology != topology:
            reason += f", but for the {profile}, {profile.topology}"
    racks = unequal_racks(topology, arranged.hosts)
    return ClusterTopology(topology, reason, largest, tuple(arranged.hosts.names), racks)


def _on_paper(shape: Topology | None, options: Mapping[str, Any], per_rack: int | None) -> ClusterTopology:
    """Return the cluster given by numbers. Raises InputError where they contradict each other."""
    x, count, racks = options["ranks_per_host"], options["count"], options["racks"]
    if shape is not None:
        _check_numbers(shape, options)
        return ClusterTopology(shape, f"--topology {shape}")
    if x is None:
        raise InputError(f"--host-count {count} does not give the ranks per host; give `--ranks-per-host` N")
    if racks is None and per_rack is None:
        return ClusterTopology(Topology((x, count)), "one rack, as the racks are unknown")
    reason = f"--racks {racks}" if racks else f"racks of {per_rack} hosts in the network's description"
    y, left = divmod(count, racks) if racks else (per_rack or 1, count % (per_rack or 1))
    if left or not y:
        raise InputError(
            f"--host-count {count} cannot be divided evenly: {reason}; "
            "give a multiple, or the shape: `--topology` XxYxZ"
        )
    return ClusterTopology(Topology((x, y, count // y)), reason)


def _check_numbers(shape: Topology, options: Mapping[str, Any]) -> None:
    """Raise InputError where --ranks-per-host, --host-count or --racks contradict the shape."""
    _, _, *others = shape.dims
    values = {
        "ranks-per-host": (options["ranks_per_host"], shape.dims[0]),
        "host-count": (options["count"], shape.hosts),
        "racks": (options["racks"], math.prod(others)),
    }
    nouns = {"ranks-per-host": "ranks per host", "host-count": "hosts"}
    problems = [
        f"--topology {shape} has {expected} {nouns.get(name, name)}, but --{name} is {value}; leave one out"
        for name, (value, expected) in values.items()
        if value not in (None, expected)
    ]
    if problems:
        raise InputError(*problems)


def read_gradient(options: Mapping[str, Any]) -> tuple[int, str]:
    """Return the bytes of a step's gradients, and the source of the figure."""
    if options["gradient"] and options["model"]:
        raise InputError(f"--gradient {options['gradient']} and --model {options['model']}: leave one of them out")
    if options["gradient"]:
        return parse_bytes(options["gradient"], "--gradient"), "--gradient"
    model = options["model"] or MODEL
    return gradient_of(model), f"{model}, {MODELS[model] / 1e6:.1f} M parameters of float32"
