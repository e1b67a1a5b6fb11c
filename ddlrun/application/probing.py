"""The probe of ddlrun probe: machines of hosts, from a cache or from the hosts, and saved into folders."""

import os
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ddlrun.application.inputs import load_hosts, open_links, reach, read_hosts, read_job_hosts, read_machines
from ddlrun.application.output_files import write_atomically
from ddlrun.errors import InputError, spell_options
from ddlrun.hosts import HostList, render_hostfile
from ddlrun.machine import Machine
from ddlrun.machine.manifest import MANIFEST, render_manifest
from ddlrun.remote.full_probe import ProbedHost, probe_fully
from ddlrun.remote.probe import check_distinct, render_failures

CACHE_SECONDS = 3600


def probe_hosts(hosts: str | None, options: Mapping[str, Any]) -> tuple[dict[str, Machine], list[str]]:
    """Probe the hosts, with --save into a folder; return their machines, and the problems of hosts without one."""
    host_list, launcher = read_job_hosts(hosts, options)
    check_distinct(host_list)
    folder = f"{os.environ.get('XDG_CACHE_HOME') or os.environ['HOME'] + '/.cache'}/ddlrun/hosts"
    cache = ProbeFileCache(folder, refresh=options["refresh"])
    with closing(open_links(launcher)) as links:
        target = reach(links, options["timeout"])
        probed = probe_fully(host_list, target, cache)
    if options["save"]:
        _save(options["save"], host_list, probed)
    machines = {name: reply.machine for name, reply in probed.items() if reply.machine}
    reasons = {name: spell_options(reply.problem) for name, reply in probed.items() if reply.problem}
    return machines, render_failures(reasons, target.ssh)


def described_machines(hosts: str | None, options: Mapping[str, Any]) -> dict[str, Machine]:
    """Return the machines of the hosts by --machine; without hosts, those of its folder."""
    machine, hostfile = options["machine"], options["hostfile"]
    if options["save"]:
        raise InputError("--save writes what a probe finds; leave `--machine` out")
    saved = load_hosts(machine) if hosts is None and hostfile is None else None
    return read_machines(saved or read_hosts(hosts, hostfile), machine)


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
