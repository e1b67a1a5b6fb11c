"""ddlrun probe: show the machines of hosts."""

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ddlrun.application.inputs import load_hosts, load_machines, reach, read_hosts, read_job_hosts
from ddlrun.application.output_files import write_atomically
from ddlrun.cli.options import (
    Sections,
    hostfile_option,
    hosts_argument,
    option,
    probe_timeout_option,
    scheduler_options,
    ssh_options,
)
from ddlrun.errors import InputError, UnreachableError, spell_options
from ddlrun.hosts import Host, HostList, render_hostfile
from ddlrun.machine import Machine
from ddlrun.machine.manifest import MANIFEST, render_manifest
from ddlrun.plan import machine_group_dict
from ddlrun.remote.full_probe import ProbedHost, probe_fully
from ddlrun.remote.probe import check_distinct, group, render_failures
from ddlrun.report.machines import render_groups

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.plan.records import ProbeRecord

CACHE_SECONDS = 3600


@click.command("probe", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@hosts_argument
@hostfile_option
@ssh_options
@scheduler_options
@probe_timeout_option
@option("Hosts", "--refresh", is_flag=True, help="Ignore cached results.")
@option("Hosts", "--load", metavar="DIR", help="Read the results of --save from DIR, and contact no host.")
@option("Output", "--save", metavar="DIR", help="Write the output of each tool to DIR/HOST/.")
@option("Output", "--json", "as_json", is_flag=True, help="Print every core, GPU and NIC as JSON.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Show the hardware of HOSTS.

    Every host is contacted once, and nothing is written there. Hosts with equal hardware are shown together, and hosts
    that differ with the differences. Results are cached for an hour; a host that has rebooted or changed since is
    probed again.

    HOSTS is a list such as n[01-64], or @HOSTFILE; default: the hosts of the current scheduler job, or this host.
    """
    problems: list[str] = []
    if options["load"]:
        machines = _load(hosts, options["hostfile"], options["load"])
    else:
        machines, problems = _probe(hosts, options)
    if machines:
        click.echo(_json(machines, problems) if options["as_json"] else render_groups(group(machines)), nl=False)
    if problems:
        raise UnreachableError(*problems)
    return 0


def _probe(hosts: str | None, options: Mapping[str, Any]) -> tuple[dict[str, Machine], list[str]]:
    """Probe the hosts, with --save into a folder; return their machines, and the problems of hosts without one."""
    host_list, launcher = read_job_hosts(hosts, options)
    check_distinct(host_list, os.uname().nodename)
    target = reach(launcher, options["timeout"])
    cache = ProbeFileCache(_cache_folder(), refresh=options["refresh"])
    probed = probe_fully(host_list, target, cache)
    if options["save"]:
        _save(options["save"], host_list, probed)
    machines = {name: reply.machine for name, reply in probed.items() if reply.machine}
    reasons = {name: spell_options(reply.problem) for name, reply in probed.items() if reply.problem}
    return machines, render_failures(reasons, target.ssh)


def _load(hosts: str | None, hostfile: str | None, folder: str) -> dict[str, Machine]:
    """Load the machines of the hosts from a folder of --save; all of its hosts where none are named."""
    if hosts is None and hostfile is None:
        return load_machines(folder, HostList(tuple(map(Host, load_hosts(folder))), f"--load {folder}"))
    return load_machines(folder, read_hosts(hosts, hostfile))


def _json(machines: Mapping[str, Machine], problems: list[str]) -> str:
    record: ProbeRecord = {
        "schema": "urn:ddlrun:probe:1",
        "machines": [machine_group_dict(names, machine) for machine, names in group(machines)],
        "problems": problems,
    }
    return json.dumps(record, indent=2) + "\n"


def _save(folder: str, hosts: HostList, probed: Mapping[str, ProbedHost]) -> None:
    """Write one file per host and tool, and the hosts in their order, with their manifests. Raises InputError."""
    sections = {name: reply.sections for name, reply in probed.items() if reply.sections}
    try:
        for name, texts in sections.items():
            _write_folder(f"{folder}/{name}", texts)
        if sections:
            _write_folder(folder, {"hosts": render_hostfile(host for host in hosts if host.name in sections)})
    except OSError as error:
        raise InputError(f"--save {folder}: {error.strerror}") from error


def _write_folder(folder: str, texts: Mapping[str, str]) -> None:
    os.makedirs(folder, exist_ok=True)
    for name, text in {**texts, MANIFEST: render_manifest(texts)}.items():
        write_atomically(f"{folder}/{name}", [text], "--save")


def _cache_folder() -> str:
    return f"{os.environ.get('XDG_CACHE_HOME') or os.environ['HOME'] + '/.cache'}/ddlrun/hosts"


class ProbeFileCache:
    """Replies of hosts in a folder, one file per host; unreadable and unwritable files count as missing."""

    def __init__(self, folder: str, *, refresh: bool) -> None:
        """Set the folder; with `refresh` its files are ignored."""
        self._folder, self._refresh = folder, refresh

    def get(self, host: str) -> str | None:
        """Return a host's reply of the last hour."""
        path = f"{self._folder}/{host}"
        try:
            if self._refresh or time.time() - os.path.getmtime(path) > CACHE_SECONDS:
                return None
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, host: str, text: str) -> None:
        """Write a host's reply."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            write_atomically(f"{self._folder}/{host}", [text])
        except (OSError, InputError):
            return
