"""The first stages of a launch: what is checked before any host is queried, and what starts while modules load."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from ddlrun.application.inputs import open_links, reach
from ddlrun.application.options.container import check_container
from ddlrun.application.reporter import Reporter
from ddlrun.managers.choice import ManagerRequest, PendingManager
from ddlrun.managers.installation import allows_root
from ddlrun.mapping.rankfile import check_names, name_problem
from ddlrun.mapping.spare_hosts import replace_hosts
from ddlrun.mapping.topology_request import check_request
from ddlrun.plan.settings import Settings, reassign_hosts
from ddlrun.remote.links import HostLinks
from ddlrun.remote.probe import PendingProbe, check_distinct, is_local


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


def start_probe(attempt: Attempt) -> Attempt:
    """Start the probe of a job on this machine alone, else the agents on its hosts, while modules are imported."""
    settings, hosts = attempt.settings, attempt.settings.hosts
    if hosts.all_local and not settings.machine:
        target = reach(attempt.links, variables=settings.environment.variables)
        return attempt._replace(probe=PendingProbe(hosts.hosts, target))
    if not (hosts.all_local or (settings.machine and settings.run.dry_run) or has_new_pods(settings)):
        attempt.links.open([name for name in hosts.hosts.names if not is_local(name)], settings.check.seconds)
    return attempt


def has_new_pods(settings: Settings) -> bool:
    """Return True if the names of hosts may not resolve yet."""
    allocation, launcher = settings.hosts.allocation, settings.hosts.launcher
    return allocation is not None and allocation.scheduler == "kubernetes" and launcher.launcher == "ssh"
