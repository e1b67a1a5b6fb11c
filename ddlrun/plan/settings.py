"""Settings: everything that a launch was asked for, read once at the edge."""

import os
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

from ddlrun.environment.exports import ExportPolicy
from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.keeper.settings import DUTIES
from ddlrun.managers import AUTO
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.mapping.slots import divides_equally
from ddlrun.mapping.spare_hosts import HostAssignment
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.plan.container import ContainerRequest
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.plan.tuning_profile import Profiles
from ddlrun.plan.wrappers import Wrapper
from ddlrun.remote.agent import AgentLauncher
from ddlrun.schedulers import Allocation
from ddlrun.ship.request import ShipRequest
from ddlrun.topology import RankOrder, Topology
from ddlrun.units import parse_bytes
from ddlrun.wording import did_you_mean


class JobRequest(NamedTuple):
    """The program, and the number and order of its ranks."""

    program: tuple[str, ...]
    topology: TopologyRequest
    shape_options: str
    """The options that gave Y, Z and A, as typed; empty without any."""
    rank_order: RankOrder | None
    """None: chosen by the planner."""
    mode: str | None
    """The mode of DDL's algorithm."""
    frameworks: tuple[str, ...]
    """Frameworks that were named; empty: auto."""
    profiles: Profiles
    wrappers: tuple[Wrapper, ...] = ()
    """Programs such as profilers, which stand before the program on some ranks."""

    @property
    def python(self) -> str:
        """The Python that runs the program, else ddlrun's own."""
        return self.program[0] if os.path.basename(self.program[0]).startswith("python") else sys.executable


class JobHosts(NamedTuple):
    """The hosts of the job, and how programs are started there."""

    assignment: HostAssignment
    min_topology: Topology | None
    """The smallest topology that the job may shrink to; None: it must not shrink."""
    local: frozenset[str]
    """Names that mean this machine, among all hosts and spare hosts."""
    launcher: AgentLauncher
    allocation: Allocation | None
    """The scheduler's job that ddlrun runs in."""
    notes: tuple[str, ...]

    @property
    def hosts(self) -> HostList:
        """The hosts on which ranks run."""
        return self.assignment.hosts

    @property
    def replaceable(self) -> bool:
        """Whether the job can go on without some of its hosts."""
        return bool(self.assignment.spares or self.min_topology)

    @property
    def all_local(self) -> bool:
        """Whether every host is this machine."""
        return self.local.issuperset(self.hosts.names)


class UserRankfile(NamedTuple):
    """The user's own rank file."""

    name: str
    text: str


class PlacementOptions(NamedTuple):
    """How ranks are placed on the cores and GPUs of a host."""

    policy: PlacementPolicy
    rankfile: UserRankfile | None
    visible_gpus: str | None
    """None: all, or a rank's own GPU where its framework would take more."""
    bind_threads: bool | None
    strict_binding: bool | None
    """None: with a process manager that was not tested."""


class EnvironmentOptions(NamedTuple):
    """What the user sets in the environment of the ranks."""

    variables: Mapping[str, str]
    passed: tuple[str, ...]
    """Names that are passed on from ddlrun's own environment (--env NAME)."""
    export: ExportPolicy = ExportPolicy()
    """Which other variables of ddlrun's own environment are passed on."""
    duties: tuple[str, ...] = DUTIES
    """What the start-up hook of Python ranks does (--hook)."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all variables that the user sets or passes on."""
        return frozenset((*self.variables, *self.passed))


class MpiOptions(NamedTuple):
    """The process manager that starts the job, and its arguments."""

    mpirun: str | None
    args: tuple[str, ...]
    tcp: bool
    allow_root: bool
    spawn_slots: int = 0
    """Processes per host that the job may start with MPI_Comm_spawn."""
    process_manager: str = AUTO
    """What starts the processes of the job: one of MANAGERS."""


class CheckOptions(NamedTuple):
    """Which checks the hosts must pass before the start, and the network that they use."""

    checks: frozenset[str] | None
    """Names of checks; None: all of them; empty: none."""
    network: str | None
    """The subnet, as CIDR; None: chosen."""
    interfaces: tuple[str, ...]
    seconds: float
    """Time within which hosts must answer."""


def parse_duties(text: str) -> tuple[str, ...]:
    """Parse a list of duties of the start-up hook, `all` or `none`. Raises InputError on an unknown name.

    >>> parse_duties("stacks, exit"), parse_duties("none"), parse_duties("all") == DUTIES
    (('exit', 'stacks'), (), True)
    """
    names = [word.strip().lower() for word in text.split(",")]
    if names in (["all"], ["none"]):
        return DUTIES if names == ["all"] else ()
    wrong = next((name for name in names if name not in DUTIES), None)
    if wrong is not None:
        hint = did_you_mean(wrong, (*DUTIES, "all", "none"))
        raise InputError(f"`--hook` {text!r}: {wrong!r} is none of {', '.join(DUTIES)}{hint}; or write all, or none")
    return tuple(name for name in DUTIES if name in names)


# The ended runs that are kept by default.
KEPT = "30d,5GB"


class Retention(NamedTuple):
    """Which folders of ended runs are kept; None: without a limit."""

    runs: int | None = None
    """The number of the latest runs."""
    days: float | None = None
    """The days since their end."""
    bytes: int | None = None
    """The size of the latest runs together."""


def parse_retention(text: str | None, where: str) -> Retention:
    """Parse a number of runs, days, a size, or several of them; None or `all`: without a limit. Raises InputError.

    >>> parse_retention("30d,5GB", "--keep-runs"), parse_retention("all", "--keep-runs") == Retention()
    (Retention(runs=None, days=30.0, bytes=5000000000), True)
    """
    retention = Retention()
    for word in text.lower().replace(" ", "").split(",") if text not in (None, "all") else ():
        if re.fullmatch(r"[0-9]{1,9}", word):
            retention = retention._replace(runs=int(word))
        elif re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?d", word):
            retention = retention._replace(days=float(word[:-1]))
        else:
            try:
                retention = retention._replace(bytes=parse_bytes(word, where))
            except InputError:
                raise InputError(
                    f"{where}: {word!r} is not a number of runs, age or size, such as 100, 30d or 5GB, nor all"
                ) from None
    return retention


class RunOptions(NamedTuple):
    """How the run is named, shown and repeated."""

    run_dir: RunDir
    run_id: str
    """The run's name, which every process of the run has in its environment."""
    keep_dry_run: bool
    """Whether a dry run writes its files too."""
    dry_run: bool
    as_json: bool
    verbose: bool
    quiet: bool
    restarts: int
    attempt: int = 0
    """Number of restarts so far."""
    arguments: tuple[str, ...] = ()
    """The words after `ddlrun launch`, without secrets."""
    retention: Retention = Retention()
    on_event: tuple[str, ...] = ()
    """The words of the command that is started for each event of the run."""
    web: int | None = None
    """The port of the web page of the run, 0: any that is free; None: there is no page."""


class Settings(NamedTuple):
    """What a launch was asked for, by subject."""

    job: JobRequest
    hosts: JobHosts
    machine: str | None
    """--machine: a preset, a file or a folder; None: hosts are probed."""
    placement: PlacementOptions
    environment: EnvironmentOptions
    mpi: MpiOptions
    check: CheckOptions
    supervision: SupervisionOptions
    run: RunOptions
    ship: ShipRequest | None = None
    """The files that travel to the hosts; None: none do."""
    container: ContainerRequest | None = None
    """The container in which the ranks run; None: they run on the hosts themselves."""


def restart_settings(settings: Settings, attempt: int, run_id: str) -> Settings:
    """Return the settings of a restart: the same job with a name and folders of its own."""
    folder = _restart_folder(settings.run.run_dir.path, attempt)
    run = settings.run._replace(run_dir=RunDir(folder), run_id=run_id, attempt=attempt)
    supervision = settings.supervision
    if supervision.style.folder is not None:
        style = supervision.style._replace(folder=_restart_folder(supervision.style.folder, attempt))
        supervision = supervision._replace(style=style)
    return settings._replace(run=run, supervision=supervision)


def _restart_folder(folder: str, attempt: int) -> str:
    """Return the folder of a restart, given the folder of the attempt before it."""
    base = folder if attempt == 1 else os.path.dirname(folder)
    return f"{base}/restart-{attempt}"


def reassign_hosts(settings: Settings, assignment: HostAssignment) -> Settings:
    """Return the settings for other hosts. With fewer hosts than before, Y and Z shrink."""
    before, job = settings.hosts.hosts, settings.job
    if job.profiles.candidates and assignment.hosts.names != before.names:
        job = job._replace(profiles=Profiles(note="the profile is left out: it was made with other hosts"))
    if len(assignment.hosts) != len(before):
        job = job._replace(topology=shrink_request(job.topology, assignment, before))
    return settings._replace(job=job, hosts=settings.hosts._replace(assignment=assignment))


def shrink_request(request: TopologyRequest, assignment: HostAssignment, hosts: HostList) -> TopologyRequest:
    """Return a request for the hosts of an assignment; the original one was for `hosts`.

    Where -np fills slots that differ, the slots of the hosts that are left count.
    """
    if request.topology is None:
        per_host = request.ranks_per_host
        if request.processes and per_host is None and divides_equally(request.processes, hosts):
            per_host = request.processes // len(hosts)
        return TopologyRequest(ranks_per_host=per_host, nodes=assignment.per_rack, racks=assignment.racks)
    dims = (request.topology.ranks_per_host, assignment.per_rack, assignment.racks)
    return TopologyRequest(topology=Topology(dims[: len(request.topology.dims)] if assignment.racks == 1 else dims))


def assign_hosts(hosts: HostList, spares: tuple[Host, ...], request: TopologyRequest) -> HostAssignment:
    """Return the assignment of a job that begins on `hosts`."""
    per_rack = request.topology.dims[1] if request.topology else request.nodes or len(hosts)
    return HostAssignment(hosts, spares, max(1, len(hosts) // per_rack))
