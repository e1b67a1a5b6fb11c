"""What a launch is asked for; the YAML config file -> values of its options: Horovod's file as it is, and ours."""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ddlrun.environment.exports import HOROVOD
from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.mapping.spare_hosts import HostAssignment
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.plan.tuning_profile import Profiles
from ddlrun.remote.agent import AgentLauncher
from ddlrun.schedulers import Allocation
from ddlrun.topology import Topology

# Place in the YAML file -> launch's option (click's parameter name).
OURS = {
    "hosts": "hosts",
    "hostfile": "hostfile",
    "machine": "machine",
    "topology": "topology",
    "accelerators": "accelerators",
    "nodes": "nodes",
    "racks": "racks",
    "aisles": "aisles",
    "rank_order": "rank_order",
    "framework": "frameworks",
    "load": "load",
    "scheduler": "scheduler",
    "launcher": "launcher",
    "rankfile": "rankfile",
    "placement.cores_per_rank": "cores_per_rank",
    "placement.reserve_cores": "reserve_cores",
    "placement.bind": "bind",
    "placement.packing": "packing",
    "placement.threads_per_core": "threads_per_core",
    "placement.gpu_order": "gpu_order",
    "placement.overload": "overload",
    "placement.share_gpus": "share_gpus",
    "placement.visible_gpus": "visible_gpus",
    "placement.bind_threads": "bind_threads",
    "placement.strict_binding": "strict_binding",
    "profile": "profile",
    "run_dir": "run_dir",
    "output.tag": "tag",
    "output.timestamp": "timestamp_output",
    "output.folder": "output_filename",
    "output.ranks": "shown_ranks",
    "ending.grace": "grace",
    "ending.timeout": "timeout",
    "ending.heartbeat": "heartbeat",
    "ending.stall_timeout": "stall_timeout",
    "ending.forward_signals": "forward_signals",
    "going_on.restarts": "restarts",
    "going_on.spare_hosts": "spare_hosts",
    "going_on.min_topology": "min_topology",
    "ddl.mode": "mode",
    "ddl.lms": "lms",
    "ddl.lms_frac": "lms_frac",
    "mpi.mpirun": "mpirun",
    "mpi.args": "mpi_args",
    "mpi.allow_run_as_root": "allow_run_as_root",
    "network.subnet": "network",
    "network.interfaces": "network_interface",
    "network.tcp": "tcp",
    "ssh.port": "ssh_port",
    "ssh.identity_file": "ssh_identity_file",
}
PLACES = OURS | {knob.yaml: knob.parameter for knob in HOROVOD}
SWITCHES = (
    "mpi.allow_run_as_root",
    "network.tcp",
    "output.tag",
    "output.timestamp",
    "placement.overload",
    "placement.share_gpus",
    "placement.bind_threads",
    "placement.strict_binding",
)
LISTS = (
    "hosts", "framework", "placement.gpu_order", "network.interfaces", "output.ranks", "ending.forward_signals",
    "going_on.spare_hosts",
)  # fmt: skip
# Horovod's other launcher; ours is MPI's, so these say nothing new.
CONTROLLERS = ("mpi", "auto", None)


def parse_config(text: str, where: str) -> dict[str, object]:
    """Parse a config file; return launch's parameters and their values.

    Raises InputError, naming each key that is not known and the nearest that is.
    """
    import yaml  # noqa: PLC0415 - 20 ms, for those who have a file

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict | None):
        raise InputError(f"{where}: a list of 'key: value' is wanted, not {type(found).__name__}")
    values: dict[str, object] = {}
    problems: list[str] = []
    for key, value in _leaves(found or {}):
        if key == "env" and isinstance(value, Mapping):
            bad = [name for name, item in value.items() if isinstance(item, list | Mapping)]
            problems += [f"{where}: env.{name}: one value is wanted, not a list or more keys" for name in bad]
            values["assignments"] = [f"{name}={_scalar(item)}" for name, item in value.items()]
        elif key == "controller":
            if value not in CONTROLLERS:
                problems.append(f"{where}: controller: {value!r}: ddlrun starts Horovod over MPI; leave it out")
        elif key not in PLACES:
            problems.append(_unknown(key, where))
        elif value is not None:
            values[PLACES[key]] = _value(key, value, where, problems)
    if problems:
        raise InputError(*problems)
    return values


def _leaves(found: Mapping[object, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in found.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and key != "env":
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _value(key: str, value: object, where: str, problems: list[str]) -> object:
    if isinstance(value, bool):
        knob = next((knob for knob in HOROVOD if knob.yaml == key), None)
        if key in SWITCHES or (knob is not None and knob.kind is bool):
            return value
    elif isinstance(value, list) and key in LISTS:
        return ",".join(map(str, value))
    elif isinstance(value, str | int | float) and key not in SWITCHES:
        return str(value)
    problems.append(f"{where}: {key}: {value!r} is not what it takes")
    return None


def _scalar(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(key: str, where: str) -> str:
    import difflib  # noqa: PLC0415 - for a slip of the finger

    close = difflib.get_close_matches(key, [*PLACES, "env", "controller"], 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{where}: key {key!r} is not known{hint}"


class Settings(NamedTuple):
    """What a launch was asked for, read once at the edge."""

    wish: TopologyRequest
    hosts: HostList
    rank_order: str
    mode: str | None
    program: tuple[str, ...]
    run_dir: RunDir
    run_id: str = ""
    mpirun: str | None = None
    mpi_args: tuple[str, ...] = ()
    way: AgentLauncher = AgentLauncher()
    """What starts programs on the hosts."""
    job: Allocation | None = None
    """The scheduler's job that we run in."""
    asked_shape: str = ""
    """The options that gave Y and Z."""
    left_out: tuple[Host, ...] = ()
    """Hosts beyond what the topology needs."""
    notes: tuple[str, ...] = ()
    """What is to be said of the hosts, beyond what the plan says."""
    variables: Mapping[str, str] = {}
    named: tuple[str, ...] = ()
    policy: PlacementPolicy = PlacementPolicy()
    visible_gpus: str | None = None
    """None: all, or a rank's own where the frameworks would take more."""
    frameworks: tuple[str, ...] = ()
    """Those that were named; empty: auto."""
    knobs: Mapping[str, object] = {}
    """Horovod's settings that were given, by parameter."""
    bind_threads: bool | None = None
    strict_binding: bool = False
    rankfile: tuple[str, str] | None = None
    """The user's own rank file: its name and text."""
    watch: SupervisionOptions = SupervisionOptions(0)
    """How the job is watched; the number of ranks is the plan's."""
    profiles: Profiles = Profiles()
    tcp: bool = False
    as_root: bool = False


def again(settings: Settings, attempt: int) -> Settings:
    """Return the settings of a restart: the same job with an id and a run folder of its own."""
    base = settings.run_dir.path.removesuffix(f"/restart-{attempt - 1}")
    run_id = f"{settings.run_id[:-8]}{os.urandom(4).hex()}"
    before = settings.job.restarts if settings.job is not None else 0
    variables = {**settings.variables, "DDLRUN_RESTART": str(before + attempt)}
    watch = settings.watch
    if watch.style.folder is not None:
        files = watch.style.folder.removesuffix(f"/restart-{attempt - 1}")
        watch = watch._replace(style=watch.style._replace(folder=f"{files}/restart-{attempt}"))
    run_dir = RunDir(f"{base}/restart-{attempt}")
    return settings._replace(run_dir=run_dir, run_id=run_id, variables=variables, watch=watch)


def adapt(settings: Settings, crew: HostAssignment) -> Settings:
    """Return the settings for a crew: where there are fewer hosts than before, Y and Z shrink."""
    wish, profiles = settings.wish, settings.profiles
    if profiles.known and crew.hosts.names != settings.hosts.names:
        profiles = Profiles(said="the profile is left out: it was made with other hosts")
    if len(crew.hosts) != len(settings.hosts):
        each = wish.processes // len(settings.hosts) if wish.processes else wish.accelerators
        if wish.topology is not None:
            dims = (wish.topology.accelerators, crew.per_rack, crew.racks)
            wish = TopologyRequest(topology=Topology(dims[: len(wish.topology.dims)] if crew.racks == 1 else dims))
        else:
            wish = TopologyRequest(accelerators=each, nodes=crew.per_rack, racks=crew.racks)
    return settings._replace(hosts=crew.hosts, wish=wish, profiles=profiles)
