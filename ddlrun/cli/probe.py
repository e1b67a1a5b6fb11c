"""ddlrun probe: ask hosts what they are made of."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

import click

from ddlrun.cli.gen_rankfile import write_atomically
from ddlrun.cli.inputs import DEFAULT_PROBE_SECONDS, load_hosts, load_machines, reach, read_hosts, read_job_hosts
from ddlrun.cli.options import Sections, job_from, option, ssh_options
from ddlrun.errors import InputError, UnreachableError
from ddlrun.hosts import Host, HostList, render_hostfile
from ddlrun.machine import Machine
from ddlrun.plan import machine_dict
from ddlrun.remote.probe import ProbedHost, check_distinct, failures, group, probe_fully
from ddlrun.report.machines import render_groups

CACHE_SECONDS = 3600


@click.command("probe", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", required=False)
@option("Hosts", "--hostfile", metavar="FILE", help="Read the hosts from FILE, one a line.")
@ssh_options
@job_from
@option(
    "Hosts",
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=DEFAULT_PROBE_SECONDS,
    show_default=True,
    help="Seconds until hosts that have not answered are given up.",
)
@option("Answers", "--refresh", is_flag=True, help="Ask all tools again, whatever was kept in the last hour.")
@option("Answers", "--save", metavar="DIR", help="Write what each tool said into DIR/HOST/.")
@option("Answers", "--load", metavar="DIR", help="Read such a folder; ask nobody.")
@option("Answers", "--json", "as_json", is_flag=True, help="Print JSON: every core, GPU and NIC.")
def command(hosts: str | None, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Ask HOSTS what they are made of, in one round trip; nothing is written there.

    Hosts that look the same are shown together, odd ones with what differs. HOSTS is a list such as
    n[01-64] or @HOSTFILE; without it, the hosts of the job
    that we run in, or this machine. Answers are kept for an hour; a host that was
    rebooted or changed since is noticed.
    """
    if options["load"]:
        listed, machines, problems = _loaded(hosts, options)
    else:
        listed, way = read_job_hosts(hosts, options)
        check_distinct(listed, os.uname().nodename)
        cache = ProbeFileCache(_cache_folder(), refresh=options["refresh"])
        found = probe_fully(listed, reach(way, options["timeout"]), cache)
        if options["save"]:
            _save(options["save"], listed, found)
        machines = {name: one.machine for name, one in found.items() if one.machine}
        why = {name: one.problem for name, one in found.items() if one.problem}
        problems = failures(why, reach(way).ssh)
    if machines:
        click.echo(_json(machines, problems) if options["as_json"] else render_groups(group(machines)), nl=False)
    if problems:
        raise UnreachableError(*problems)
    return 0


def _loaded(hosts: str | None, options: Mapping[str, Any]) -> tuple[HostList, dict[str, Machine], list[str]]:
    folder = options["load"]
    if hosts is None and options["hostfile"] is None:
        listed = HostList(tuple(map(Host, load_hosts(folder))), f"--load {folder}")
    else:
        listed = read_hosts(hosts, options["hostfile"])
    return listed, load_machines(folder, listed), []


def _json(machines: Mapping[str, Machine], problems: list[str]) -> str:
    groups = [{"hosts": list(names), **machine_dict(machine)} for machine, names in group(machines)]
    return json.dumps({"machines": groups, "problems": problems}, indent=2) + "\n"


def _save(folder: str, hosts: HostList, found: Mapping[str, ProbedHost]) -> None:
    there = {name: one for name, one in found.items() if one.sections}
    try:
        for name, one in there.items():
            os.makedirs(f"{folder}/{name}", exist_ok=True)
            for section, text in one.sections.items():
                write_atomically(f"{folder}/{name}/{section}", [text], "--save")
        if there:
            write_atomically(f"{folder}/hosts", [render_hostfile(h for h in hosts if h.name in there)], "--save")
    except OSError as error:
        raise InputError(f"--save {folder}: {error.strerror}") from error


def _cache_folder() -> str:
    return f"{os.environ.get('XDG_CACHE_HOME') or os.environ['HOME'] + '/.cache'}/ddlrun/hosts"


class ProbeFileCache:
    """Answers in a folder, a file a host. What cannot be read or written is as if it were not there."""

    def __init__(self, folder: str, *, refresh: bool) -> None:
        """Keep the folder; with `refresh` nothing in it counts."""
        self._folder, self._refresh = folder, refresh

    def get(self, host: str) -> str | None:
        """Return a host's answer of the last hour."""
        path = f"{self._folder}/{host}"
        try:
            if self._refresh or time.time() - os.path.getmtime(path) > CACHE_SECONDS:
                return None
            with open(path, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, host: str, text: str) -> None:
        """Keep a host's answer."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            write_atomically(f"{self._folder}/{host}", [text])
        except (OSError, InputError):
            return
