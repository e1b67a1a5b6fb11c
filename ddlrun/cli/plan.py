"""ddlrun plan: every decomposition of a job on a network, before it runs and wherever that is."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from ddlrun.allreduce_algorithms import MODES
from ddlrun.cli.inputs import find_job, read_hosts, read_machines, read_text, read_way
from ddlrun.cli.options import COUNT, Sections, option, scheduler_options, ssh_options
from ddlrun.cli.profile_store import read_profiles
from ddlrun.errors import InputError
from ddlrun.mapping.rack_layout import arrange, by_rack, shape_reason
from ddlrun.mapping.topology_request import TopologyRequest, choose_topology
from ddlrun.network.fabric import Fabric, parse_fabric
from ddlrun.network.forecast import TrainingStep, forecasts, indivisible, mistakes, wiring_of
from ddlrun.network.presets import BETWEEN, INSIDE, MODELS, gradient_of, parse_links
from ddlrun.remote.agent import apply_job_names
from ddlrun.report.forecast import ForecastReport, prospect_dict, render_prospect
from ddlrun.topology import Topology, parse_topology
from ddlrun.units import parse_bytes, parse_seconds

MODEL = "resnet50"


@click.command("plan", cls=Sections)
@click.argument("hosts", required=False)
@option(
    "Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line; rack= words say their racks."
)
@option("Hosts", "--topology", metavar="XxYxZ", help="The cluster: X accelerators per host, Y hosts per rack, Z racks.")
@option("Hosts", "--hosts", "count", type=COUNT, metavar="N", help="So many hosts; nobody has to be there.")
@option(
    "Hosts",
    "--gpus-per-host",
    "--accelerators",
    "accelerators",
    type=COUNT,
    metavar="N",
    help="X: learners per host; default: as launch.",
)
@option("Hosts", "--racks", type=COUNT, metavar="N", help="Z: racks of the hosts; default: as hosts or network say.")
@option("Hosts", "--machine", metavar="PRESET|FILE", help="What each host is made of, as for launch.")
@option("Hosts", "--load", metavar="DIR", help="Take the machines that ddlrun probe --save wrote.")
@ssh_options
@scheduler_options
@option(
    "Network",
    "--network",
    metavar="FILE|PRESETS",
    help="Its links: a YAML file, or inside a host, NICs, uplinks as in nvlink3,8x200gbe,2:1 or 100gbe; there are "
    f"{', '.join((*INSIDE, *BETWEEN))}.",
)
@option("Work", "--gradient", metavar="SIZE", help="Bytes that a step averages, as in 100MB.")
@option("Work", "--model", type=click.Choice(list(MODELS)), help=f"Those of a model in float32; default: {MODEL}.")
@option("Work", "--compute", metavar="TIME", help="What a step computes, as in 120ms: for step time and efficiency.")
@option(
    "Work",
    "--overlap",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    metavar="SHARE",
    help="Share of it during which gradients travel already: 0 after it, 0.6 with a backward pass of 60 %.",
)
@option("Work", "--mode", type=click.Choice(MODES), default="p", show_default=True, help="The mode of DDL.")
@option("Work", "--images", type=COUNT, metavar="N", help="Images of an epoch: what they lose if they do not divide.")
@option("Work", "--batch", type=COUNT, metavar="N", help="Images of a learner and step; default: 1.")
@option("Show", "--json", "as_json", is_flag=True, help="Print JSON: all decompositions.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own
    """Predict every XxYxZ of a job: allreduce, step, bytes over each level, and what a wrong order costs.

    HOSTS as for launch: a list such as n[01-06], @HOSTFILE, or those of the scheduler's job; or say what a
    cluster is like that is not there: --topology 4x8x2, or --hosts 16 --gpus-per-host 4.
    """
    if options["overlap"] and not options["compute"]:
        raise InputError(f"--overlap {options['overlap']:g}: a share of what? give --compute TIME")
    if options["batch"] and not options["images"]:
        raise InputError(f"--batch {options['batch']}: of how many images? give --images N")
    described = _described(options["network"])
    found = _cluster(options, described.hosts_per_rack if described else None)
    topology = found.topology
    fabric = described or parse_links(
        options["network"], topology.dims[1] if topology.hosts > topology.dims[1] else None
    )
    fabric = fabric._replace(hosts_per_rack=fabric.hosts_per_rack or found.per_rack)
    gradient, source = read_gradient(options)
    compute = parse_seconds(options["compute"], "--compute") if options["compute"] else None
    work = TrainingStep(gradient, options["mode"], compute, options["overlap"])
    wiring = wiring_of(topology, fabric)
    prospect = ForecastReport(
        topology, found.reason, wiring, fabric, work, source, forecasts(topology, wiring, fabric, work),
        mistakes(topology, wiring),
    )  # fmt: skip
    if options["images"]:
        batch = options["batch"] or 1
        data = indivisible(options["images"], topology.size, batch)
        prospect = prospect._replace(data=data, images=options["images"], batch=batch)
    if options["as_json"]:
        click.echo(json.dumps(prospect_dict(prospect), indent=2))
    else:
        click.echo(render_prospect(prospect), nl=False)


class ClusterTopology(NamedTuple):
    """The topology that launch would take, why, and how many hosts its largest rack has (None: nobody says)."""

    topology: Topology
    reason: str
    per_rack: int | None = None


def _described(text: str | None) -> Fabric | None:
    """Return the network of a file, None where presets are named. Raises InputError."""
    if text is None:
        raise InputError(
            "--network: say what links there are: a YAML file, or presets such as 100gbe, or nvlink3,8x200gbe,2:1"
        )
    is_file = "/" in text or text.endswith((".yaml", ".yml")) or os.path.isfile(text)
    return parse_fabric(read_text(text, "network"), f"network {text}") if is_file else None


def _cluster(options: dict[str, Any], per_rack: int | None) -> ClusterTopology:
    """Return the cluster: hosts that are named, the job's, or what is described; `per_rack` as the network says."""
    named = options["hosts"] or options["hostfile"]
    shape = parse_topology(options["topology"], "--topology") if options["topology"] else None
    if options["count"] and named:
        raise InputError(f"--hosts {options['count']}, but hosts are named too; leave one of them out")
    if options["count"] or (shape is not None and not named):
        return _on_paper(shape, options, per_rack)
    wish = TopologyRequest(topology=shape, accelerators=options["accelerators"], racks=options["racks"])
    job = find_job(options["scheduler"], named=bool(named))
    hosts = apply_job_names(read_hosts(options["hosts"], options["hostfile"], job=job), job)
    arranged = arrange(wish._replace(gpus=job.gpus if job is not None else None), hosts, choose=job is not None)
    for note in arranged.notes:
        click.echo(f"ddlrun: note: {note}", err=True)
    stated = wish.accelerators or shape or (not hosts.slots_are_capacity and any(host.slots for host in hosts))
    way = read_way(options, job, arranged.hosts)
    machines = {} if stated else read_machines(arranged.hosts, options["machine"], options["load"], way)
    largest = max(map(len, by_rack(arranged.hosts).values()), default=None)
    topology, topology_reason = choose_topology(arranged.request, arranged.hosts, machines)
    reason = str(topology_reason)
    if shape is None:
        asked = f"--racks {wish.racks}" if wish.racks else shape_reason(arranged.hosts)
        reason = f"X: {reason}; Y, Z: {asked}"
        profile = None if wish.racks else read_profiles("auto", arranged.hosts.names).fitting(topology, None)
        if profile is not None and profile.topology != topology:
            reason += f", but for the {profile}, {profile.topology}"
    return ClusterTopology(topology, reason, largest)


def _on_paper(shape: Topology | None, options: dict[str, Any], per_rack: int | None) -> ClusterTopology:
    """Return the cluster that is described by numbers. Raises InputError where they contradict each other."""
    x, count, racks = options["accelerators"], options["count"], options["racks"]
    if shape is not None:
        _, y, *others = shape.dims
        said = {"gpus-per-host": (x, shape.dims[0]), "hosts": (count, shape.hosts), "racks": (racks, math.prod(others))}
        wrong = {name: pair for name, pair in said.items() if pair[0] not in (None, pair[1])}
        if wrong:
            raise InputError(
                *(
                    f"--topology {shape} has {there} {name.replace('-', ' ')}, but --{name} says {value}; leave one out"
                    for name, (value, there) in wrong.items()
                )
            )
        return ClusterTopology(shape, f"--topology {shape}")
    if x is None:
        raise InputError(f"--hosts {count}: how many learners has each? give --gpus-per-host N")
    reason = f"--racks {racks}" if racks else f"racks of {per_rack} hosts, as the network says"
    if racks is None and per_rack is None:
        return ClusterTopology(Topology((x, count)), "one rack, as the racks are unknown")
    y, left = divmod(count, racks) if racks else (per_rack or 1, count % (per_rack or 1))
    if left or not y:
        raise InputError(f"--hosts {count} are no equal {reason}; take a multiple, or say the shape: --topology XxYxZ")
    return ClusterTopology(Topology((x, y, count // y)), reason)


def read_gradient(options: Mapping[str, Any]) -> tuple[int, str]:
    """Return the bytes that a step averages, and where they are from."""
    if options["gradient"] and options["model"]:
        raise InputError(f"--gradient {options['gradient']} and --model {options['model']}: leave one of them out")
    if options["gradient"]:
        return parse_bytes(options["gradient"], "--gradient"), "--gradient"
    model = options["model"] or MODEL
    return gradient_of(model), f"{model}, {MODELS[model] / 1e6:.1f} M parameters of float32"
