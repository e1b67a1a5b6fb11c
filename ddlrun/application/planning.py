"""The stages of a launch up to its Plan: each takes one value and returns the next."""

import os
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.application.attempt import Attempt, has_new_pods, start_probe
from ddlrun.application.chosen_gpus import check_named_gpus
from ddlrun.application.inputs import read_machines
from ddlrun.environment.frameworks import MOST_WORKERS, count_ports
from ddlrun.environment.horovod_hierarchical import active_hierarchical
from ddlrun.environment.rendezvous_ports import choose_ports, is_free_here
from ddlrun.machine import Machine
from ddlrun.machine.hwloc_2_0 import count_cores
from ddlrun.managers import ProcessManager
from ddlrun.managers.choice import PendingManager
from ddlrun.managers.installation import Installation, probe_horovod
from ddlrun.managers.openmpi.installation import read_mca_files
from ddlrun.managers.program_mpi import mpi4py_variables
from ddlrun.plan.job_placement import JobPlacement
from ddlrun.plan.plan import Plan
from ddlrun.plan.planner import make_plan, place_surveyed
from ddlrun.plan.settings import Settings
from ddlrun.plan.survey import Survey
from ddlrun.remote.probe import PendingProbe, await_names
from ddlrun.runs.registry import find_in_use
from ddlrun.runs.store import state_folder

if TYPE_CHECKING:
    from ddlrun.preflight.run import PreflightReport


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


def survey_again(attempt: Attempt, surveyed: Surveyed, lost_hosts: Collection[str], taken_port: int | None) -> Surveyed:
    """Survey the hosts of an attempt, unless the attempt before ran on the same ones and none was lost.

    `taken_port` is one that another process had taken from that, if any.
    """
    if lost_hosts or attempt.settings.hosts.hosts.names != surveyed.attempt.settings.hosts.hosts.names:
        return survey_hosts(attempt)
    survey = surveyed.survey
    if survey.busy_ports is not None and taken_port is not None:
        survey = survey._replace(busy_ports=survey.busy_ports | {taken_port})
    return surveyed._replace(attempt=attempt, survey=survey)


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
    if has_new_pods(settings):
        await_names(settings.hosts.hosts.names, settings.check.seconds)
    return check_first(settings, attempt.manager.result(), attempt.links, attempt.reporter)


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


def plan_attempt(attempt: Attempt) -> Planned:
    """Take an attempt through the stages up to its plan. Raises DdlrunError."""
    with closing(attempt.links):
        return plan_job(place_ranks(survey_hosts(start_probe(attempt))))
