"""The stages of a launch up to its Plan: each takes one value and returns the next."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.application.chosen_gpus import check_named_gpus
from ddlrun.application.inputs import open_links, reach, read_machines
from ddlrun.application.options.container import check_container
from ddlrun.application.reporter import Reporter
from ddlrun.environment.frameworks import MOST_WORKERS, count_ports
from ddlrun.environment.horovod_hierarchical import active_hierarchical
from ddlrun.environment.rendezvous_ports import choose_ports, is_free_here
from ddlrun.machine import Machine
from ddlrun.machine.hwloc_2_0 import count_cores
from ddlrun.managers import ProcessManager
from ddlrun.managers.choice import ManagerRequest, PendingManager
from ddlrun.managers.installation import Installation, allows_root, probe_horovod
from ddlrun.managers.openmpi.installation import read_mca_files
from ddlrun.managers.program_mpi import mpi4py_variables
from ddlrun.mapping.rankfile import check_names, name_problem
from ddlrun.mapping.spare_hosts import replace_hosts
from ddlrun.mapping.topology_request import check_request
from ddlrun.plan.job_placement import JobPlacement
from ddlrun.plan.plan import Plan
from ddlrun.plan.planner import make_plan, place_surveyed
from ddlrun.plan.settings import Settings, reassign_hosts
from ddlrun.plan.survey import Survey
from ddlrun.remote.links import HostLinks
from ddlrun.remote.probe import PendingProbe, await_names, check_distinct, is_local
from ddlrun.runs.registry import find_in_use
from ddlrun.runs.store import state_folder

if TYPE_CHECKING:
    from ddlrun.preflight.run import PreflightReport


class Attempt(NamedTuple):
    """One attempt at the job: checked settings, and the process manager that is being chosen."""

    settings: Settings
    manager: PendingManager
    links: HostLinks
    """The links to the hosts of all attempts."""
    reporter: Reporter
    restarts: int
    """Number of restarts that are allowed in all."""
    probe: PendingProbe | None = None
    """The probe of this machine, if it has begun."""

    def without_hosts(self, reasons: Mapping[str, str]) -> "Attempt":
        """Return the attempt with other hosts in place of some (name -> reason), or with fewer; show which."""
        hosts = self.settings.hosts
        assignment = replace_hosts(hosts.assignment, reasons, hosts.min_topology)
        for line in assignment.notes:
            self.reporter.line(line)
        return self._replace(settings=reassign_hosts(self.settings, assignment), probe=None)


class Surveyed(NamedTuple):
    """An attempt whose hosts and software are known."""

    attempt: Attempt
    survey: Survey
    report: "PreflightReport | None"
    """The check of the hosts; None where none was made."""


class Placed(NamedTuple):
    """A surveyed attempt whose ranks have their places."""

    surveyed: Surveyed
    placement: JobPlacement


class Planned(NamedTuple):
    """An attempt with its complete plan."""

    attempt: Attempt
    plan: Plan
    report: "PreflightReport | None"


def check_settings(settings: Settings, reporter: Reporter) -> Attempt:
    """Check everything that can be checked before any host is queried, while a manager is asked for its version.

    Raises InputError, PlacementError or PreflightError.
    """
    manager = PendingManager(_manager_request(settings), os.environ)
    hosts = settings.hosts.hosts
    if any(map(name_problem, hosts.names)):
        dialect = manager.result().rankfile_dialect
        check_names(hosts.names, () if dialect is None else (dialect,))
    check_distinct(hosts)
    check_request(settings.job.topology, hosts)
    checks = settings.check.checks
    if settings.container is not None and settings.hosts.all_local and (checks is None or "container" in checks):
        check_container(settings.container)
    links = open_links(settings.hosts.launcher, settings.run.run_id, settings.supervision.heartbeat)
    return Attempt(settings, manager, links, reporter, settings.run.restarts)


def _manager_request(settings: Settings) -> ManagerRequest:
    """Return the facts on which the choice of the process manager depends."""
    mpi, hosts = settings.mpi, settings.hosts
    options = {"`--mpi-args`": mpi.args, "`--spawn-slots`": mpi.spawn_slots}
    return ManagerRequest(
        manager=mpi.process_manager,
        mpirun=mpi.mpirun,
        program=settings.job.program,
        openmpi_options=tuple(name for name, value in options.items() if value),
        foreign_launcher=not hosts.all_local and not hosts.launcher.passes_stdin,
        variables=settings.environment.variables,
        in_container=settings.container is not None,
        dry_run=settings.run.dry_run,
        unallowed_root=os.geteuid() == 0 and not (mpi.allow_root or allows_root(os.environ)),
    )


def survey_hosts(attempt: Attempt) -> Surveyed:
    """Query the hosts and the software of this machine; other hosts take the place of those that fail.

    Raises InputError, UnreachableError or PreflightError.
    """
    settings = attempt.settings
    if settings.hosts.all_local or (settings.machine and settings.run.dry_run):
        return Surveyed(attempt, survey_machines(settings, attempt.manager, attempt.probe), None)
    report = _check_hosts(attempt)
    if report.bad_hosts:
        if not settings.hosts.replaceable:
            report.raise_failures()
        return survey_hosts(attempt.without_hosts(report.bad_hosts))
    machines = read_machine_source(settings) if settings.machine else report.machines()
    check_named_gpus(machines, settings.hosts.launcher)
    survey = Survey(
        machines=count_as(attempt.manager.result(), machines),
        installation=inspect_installation(settings, attempt.manager.result()),
        environ=dict(os.environ),
        network=report.network,
        own_address=report.here[1],
        busy_ports=_busy_ports(report),
        announced_cpus={host: facts.announced_cpus for host, facts in report.facts.items()},
    )
    return Surveyed(attempt, survey, report)


def start_probe(attempt: Attempt) -> Attempt:
    """Start the probe of a job on this machine alone, else the agents on its hosts, while modules are imported."""
    settings, hosts = attempt.settings, attempt.settings.hosts
    if hosts.all_local and not settings.machine:
        target = reach(attempt.links, variables=settings.environment.variables)
        return attempt._replace(probe=PendingProbe(hosts.hosts, target))
    if not (hosts.all_local or (settings.machine and settings.run.dry_run) or _has_new_pods(settings)):
        attempt.links.open([name for name in hosts.hosts.names if not is_local(name)], settings.check.seconds)
    return attempt


def survey_machines(settings: Settings, manager: PendingManager, probe: PendingProbe | None = None) -> Survey:
    """Return the survey of hosts that need no check: each is this machine, or described."""
    machines = (
        probe.result() if probe is not None else read_machine_source(settings)
    )  # while the process manager prints its version
    installation = inspect_installation(settings, manager.result())
    return Survey(
        machines=count_as(installation.manager, machines),
        installation=installation,
        environ=dict(os.environ),
        announced_cpus={} if probe is None else probe.announced_cpus,
    )


def count_as(manager: ProcessManager, machines: Mapping[str, Machine]) -> Mapping[str, Machine]:
    """Return the machines of hosts with cores numbered as the process manager's hwloc numbers them."""
    if not any(machine.hwloc_2_0_cores for machine in machines.values()):
        return machines
    return count_cores(machines, hwloc_2_0=manager.counts_by_hwloc_2_0())


def read_machine_source(settings: Settings) -> dict[str, Machine]:
    """Return the machine of each host, as it is described or else probed."""
    hosts = settings.hosts
    return read_machines(hosts.hosts, settings.machine, hosts.launcher, variables=settings.environment.variables)


def inspect_installation(settings: Settings, manager: ProcessManager) -> Installation:
    """Return the software that starts the job; Horovod is imported only where a setting depends on its build."""
    library = manager.find_library()
    environ = {**os.environ, **settings.environment.variables}
    horovod = {}
    if active_hierarchical(settings.environment.variables):
        horovod = probe_horovod(settings.job.python, mpi4py_variables(library, environ))
    return Installation(
        manager=manager,
        mca_files=read_mca_files(manager.path, os.environ),
        mpi_library=library,
        horovod=horovod,
        root=os.geteuid() == 0,
    )


def _check_hosts(attempt: Attempt) -> "PreflightReport":
    """Query and check the hosts of a job; the names of new pods may take a while to resolve."""
    from ddlrun.application.check import check_first  # noqa: PLC0415 - 4 ms, for jobs over several hosts alone

    settings = attempt.settings
    if _has_new_pods(settings):
        await_names(settings.hosts.hosts.names, settings.check.seconds)
    return check_first(settings, attempt.manager.result(), attempt.links, attempt.reporter)


def _has_new_pods(settings: Settings) -> bool:
    """Return True if the names of hosts may not resolve yet."""
    allocation, launcher = settings.hosts.allocation, settings.hosts.launcher
    return allocation is not None and allocation.scheduler == "kubernetes" and launcher.launcher == "ssh"


def _busy_ports(report: "PreflightReport") -> frozenset[int]:
    """Return the ports in use where ranks meet: on rank 0's host, and for TensorFlow on all hosts."""
    facts = list(report.facts.values())
    meeting = facts if len(facts) <= MOST_WORKERS else facts[:1]
    return frozenset[int]().union(*(host.ports for host in meeting))


def place_ranks(surveyed: Surveyed) -> Placed:
    """Place every rank, if possible apart from other runs. Raises InputError, PlacementError or PreflightError."""
    survey = surveyed.survey
    surveyed = surveyed._replace(survey=survey._replace(machines=_mark_in_use(survey)))
    return Placed(surveyed, place_surveyed(surveyed.attempt.settings, surveyed.survey))


def _mark_in_use(survey: Survey) -> Mapping[str, Machine]:
    """Return the machines with the CPUs and GPUs that other runs use; equal machines are one object."""
    machines, in_use = survey.machines, find_in_use(state_folder(os.environ), survey.machines)
    in_use = {host: used | survey.announced_cpus.get(host, frozenset()) for host, used in in_use.items()}
    kinds: dict[tuple[int, frozenset[int | str]], Machine] = {}
    return {
        name: kinds.setdefault((id(machine), in_use[name]), machine._replace(in_use=in_use[name]))
        if machine.measured and in_use[name]
        else machine
        for name, machine in machines.items()
    }


def plan_job(placed: Placed) -> Planned:
    """Find free ports for the ranks to meet on, and plan the job. Raises InputError or PreflightError."""
    attempt, survey, report = placed.surveyed.attempt, placed.surveyed.survey, placed.surveyed.report
    count = count_ports(placed.placement.placement.topology.largest)
    busy = survey.busy_ports
    is_free = is_free_here if busy is None else lambda port: port not in busy
    ports = choose_ports(attempt.settings.run.run_id, count, is_free)
    return Planned(attempt, make_plan(attempt.settings, survey, placed.placement, ports), report)
