"""Input of several commands: hosts, hostfiles, machine descriptions and saved probe replies."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any

from ddlrun.application.chosen_gpus import UUID, check_named_gpus, choice_of, chooses_gpus
from ddlrun.errors import HostError, InputError
from ddlrun.hosts import Host, HostList, fold, parse_hostfile, parse_hosts
from ddlrun.machine import Machine, MachineNoteCode, machine_note
from ddlrun.machine.manifest import MANIFEST, check_manifest
from ddlrun.remote.agent import AgentLauncher, apply_job_names, choose_launcher
from ddlrun.remote.links import FAN_OUT, HostLinks
from ddlrun.remote.probe import ProbeTarget, is_local, probe
from ddlrun.remote.processes import start_command
from ddlrun.remote.tasks import TaskReply, start_task
from ddlrun.schedulers import Allocation, SchedulerContext, read_allocation
from ddlrun.wording import did_you_mean

DEFAULT_PROBE_SECONDS = 30.0
# Time limit of a scheduler's own command.
SCHEDULER_SECONDS = 10.0
SSH = AgentLauncher()
FAN_OUT_VARIABLE = "DDLRUN_FAN_OUT"


def read_text(path: str, what: str) -> str:
    """Read a small file, without a byte-order mark. Raises InputError with its name and the reason."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path}: byte {error.start} is not UTF-8; it is not a text file") from error


def split_words(text: str | None, option: str) -> tuple[str, ...]:
    """Return the words of an option's value, as a shell splits them. Raises InputError."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise InputError(f"{option} {text!r}: {error}; quote it as for a shell") from error


def read_rankfile(path: str) -> str:
    """Read a rank file unchanged: CR stays, and bytes that are not UTF-8 become escapes. Raises InputError."""
    try:
        if path == "-":
            return sys.stdin.buffer.read().decode(errors="backslashreplace")
        with open(path, "rb") as file:
            return file.read().decode(errors="backslashreplace")
    except OSError as error:
        raise InputError(f"rank file {path}: {error.strerror}") from error


def find_job(scheduler: str, *, named: bool = False) -> Allocation | None:
    """Return the scheduler's job that ddlrun runs in, if any.

    Where the user has `named` hosts, a job that cannot be read is ignored. Raises InputError otherwise.
    """
    try:
        return read_allocation(scheduler_context(), scheduler)
    except InputError:
        if named and scheduler == "auto":
            return None
        raise


def scheduler_context() -> SchedulerContext:
    """Return the environment, files and commands that the readers of schedulers use."""
    return SchedulerContext(os.environ, lambda path: read_text(path, "file"), _run)


def _run(argv: Sequence[str]) -> str | None:
    """Return the output of a scheduler's command; None where it fails."""
    done = start_command(argv, "", SCHEDULER_SECONDS)()
    return done.out if done.code == 0 else None


def read_hosts(
    expression: str | None, hostfile: str | None, where: str = "hosts", job: Allocation | None = None
) -> HostList:
    """Return the hosts of an expression (`@FILE` is a hostfile), else of a hostfile, of the job, or this machine."""
    if expression is not None and hostfile is not None:
        raise InputError(f"hosts are given twice: {expression!r} and `--hostfile` {hostfile}; leave one of them out")
    if expression is not None and not expression.startswith("@"):
        return parse_hosts(expression, where)
    path = hostfile if expression is None else expression[1:]
    if path is None:
        return job.hosts if job is not None else HostList((Host("localhost"),), "this machine")
    return parse_hostfile(read_text(path, "hostfile"), f"hostfile {path}")


def read_preset(name: str) -> Machine | None:
    """Return the machine of a preset, a YAML file, a file of `lstopo --of xml`, or a saved host's folder.

    None for `local`, which has to be probed. Raises InputError with the names of all presets.
    """
    if name == "local":
        return None
    if os.path.isdir(name):
        return load_machine(name)
    if name.endswith(".xml"):
        from ddlrun.machine.hwloc import parse_hwloc  # noqa: PLC0415 - 6 ms, for XML alone

        return _as_input(lambda: parse_hwloc(read_text(name, "machine"), name))
    from ddlrun.machine.preset import parse_machine  # noqa: PLC0415 - 8 ms, and 16 of YAML: for --machine alone

    folder = f"{configs_folder()}/machines"
    presets = {file.removesuffix(".yaml") for file in os.listdir(folder) if file.endswith(".yaml")}
    if name in presets:
        return parse_machine(read_text(f"{folder}/{name}.yaml", "preset"), f"preset {name}")
    if "/" not in name and not name.endswith((".yaml", ".yml")) and not os.path.isfile(name):
        names = ", ".join(sorted({*presets, "local"}))
        raise InputError(
            f"`--machine` {name!r}: no such preset{did_you_mean(name, presets)}; there are {names}, or name a file of "
            "YAML or lstopo XML"
        )
    text = read_text(name, "machine")
    described = parse_machine(text, name)
    if text.endswith("\n"):
        return described
    return described._replace(notes=(machine_note(MachineNoteCode.TEXT_UNCHECKED, file=name),))


def configs_folder() -> str:
    """Return the folder of presets and templates: in the installed package, else beside it in the project."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = f"{package}/configs"
    return installed if os.path.isdir(installed) else f"{os.path.dirname(package)}/configs"


def load_machine(folder: str) -> Machine:
    """Return the machine of a folder that `ddlrun probe --save` wrote for one host."""
    from ddlrun.machine.probe_reply import SECTIONS, machine_of  # noqa: PLC0415 - 7 ms, for saved machines alone

    sections, complete = _read_saved(folder, SECTIONS)
    return _as_input(lambda: machine_of(sections, folder, complete=complete))


def _read_saved(folder: str, names: Iterable[str]) -> tuple[dict[str, str], bool]:
    """Return the files of these names, and True if they were checked against the folder's manifest."""
    present = [name for name in (*names, MANIFEST) if os.path.isfile(f"{folder}/{name}")]
    texts = {name: read_text(f"{folder}/{name}", "saved answer") for name in present}
    manifest = texts.pop(MANIFEST, None)
    if manifest is not None:
        check_manifest(manifest, texts, folder)
    return texts, manifest is not None


def load_hosts(folder: str | None) -> HostList | None:
    """Return the hosts of a folder that `ddlrun probe --save` wrote, as they were probed; None where it is another."""
    entries = os.scandir(folder) if folder and os.path.isdir(folder) else ()
    present = sorted(entry.name for entry in entries if entry.is_dir())
    if not folder or not present:
        return None
    saved, _ = _read_saved(folder, ["hosts"])
    names = parse_hostfile(saved["hosts"], f"{folder}/hosts").names if "hosts" in saved else present
    return HostList(tuple(map(Host, names)), f"--machine {folder}")


def _load_machines(folder: str, saved: HostList, hosts: HostList) -> dict[str, Machine]:
    """Return the machine of each host from a folder of saved replies; equal machines are one object."""
    known = frozenset(saved.names)
    missing = [name for name in hosts.names if name not in known]
    if missing:
        raise InputError(f"{folder}: nothing saved of {fold(missing)}; saved: {fold(saved.names)}")
    kinds: dict[Machine, Machine] = {}
    return {
        name: kinds.setdefault(machine, machine)
        for name in hosts.names
        for machine in [load_machine(f"{folder}/{name}")]
    }


def _as_input(read: Callable[[], Machine]) -> Machine:
    """Read a machine from a file, and report a problem as the file's instead of a host's."""
    try:
        return read()
    except HostError as error:
        raise InputError(f"{error.host}: {error.problem}") from error


def open_links(launcher: AgentLauncher, run: str = "", heartbeat: float | None = None) -> HostLinks:
    """Return the links to hosts, each of which is opened when it is needed. Raises InputError.

    Args:
        launcher: The launcher for the hosts.
        run: The name of the run; empty where there is none.
        heartbeat: The seconds after which a silent host counts as lost; 0: it does not; None: a default.
    """
    fan_out = os.environ.get(FAN_OUT_VARIABLE) or str(FAN_OUT)
    if not re.fullmatch("[1-9][0-9]{0,5}", fan_out):
        raise InputError(f"{FAN_OUT_VARIABLE}={fan_out!r} is not a number of agents; write an integer of at least 1")
    return HostLinks(launcher, run=run, heartbeat=heartbeat, fan_out=int(fan_out))


def reach(
    links: HostLinks, seconds: float = DEFAULT_PROBE_SECONDS, *, variables: Mapping[str, str] = MappingProxyType({})
) -> ProbeTarget:
    """Return the target of probes: this host directly, others over links, within a time limit in seconds.

    `variables` are the user's for the ranks. GPUs that are chosen by number here are chosen on the hosts too, as the
    variable is passed on, except where Slurm chooses them for each host.
    """
    launcher = links.launcher
    given = choice_of(variables)
    by_number = {name: value for name, value in os.environ.items() if not re.search(UUID, value)}
    chosen = given if chooses_gpus(launcher) else {**choice_of(by_number), **given}
    own = next((numbers for name, numbers in launcher.gpus.items() if is_local(name)), None)

    def variables_of(host: str) -> dict[str, str]:
        local = is_local(host)
        numbers = own if local else launcher.gpus.get(host)
        return {**(given if local else chosen), **({} if numbers is None else {"DDLRUN_GPUS": numbers})}

    def with_variables(host: str, script: str) -> str:
        assignments = (f"{name}={shlex.quote(value)}\n" for name, value in variables_of(host).items())
        return "".join(assignments) + script

    def tasks_there(module: str, tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, TaskReply]:
        texts = {name: json.dumps(task) for name, task in tasks.items()}
        return {name: TaskReply.read(reply) for name, reply in links.run(texts, seconds, module).items()}

    return ProbeTarget(
        here=lambda script: start_command(["sh", "-c", with_variables("localhost", script)], "", seconds),
        there=lambda scripts: links.run({name: with_variables(name, text) for name, text in scripts.items()}, seconds),
        task_here=lambda module, task: start_task(module, task, seconds),
        tasks_there=tasks_there,
        variables=variables_of,
        ssh=shlex.join(launcher.shown),
    )


def read_machines(
    hosts: HostList,
    machine: str | None,
    launcher: AgentLauncher = SSH,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Machine]:
    """Return the machine of each host: described or saved (--machine), or probed."""
    saved = load_hosts(machine)
    if machine is not None and saved is not None:
        return _load_machines(machine, saved, hosts)
    described = read_preset(machine) if machine else None
    if machine and described is None and not all(is_local(name) for name in hosts.names):
        described = probe(read_hosts(None, None), reach(open_links(SSH)))["localhost"]
    if described is not None:
        return dict.fromkeys(hosts.names, described)
    with closing(open_links(launcher)) as links:
        machines = probe(hosts, reach(links, variables=variables))
    check_named_gpus(machines, launcher)
    return machines


def ssh_arguments(port: int | None, identity: str | None) -> tuple[str, ...]:
    """Return the arguments of ssh. Raises InputError where the key file does not exist."""
    if identity and not os.path.isfile(identity):
        raise InputError(f"`--ssh-identity-file` {identity}: no such file")
    return (*(("-p", str(port)) if port else ()), *(("-i", identity) if identity else ()))


def ssh_launcher(options: Mapping[str, Any]) -> AgentLauncher:
    """Return ssh with the port and the key of the options. Raises InputError where the key file does not exist."""
    return SSH._replace(words=ssh_arguments(options["ssh_port"], options["ssh_identity_file"]))


def read_job_hosts(expression: str | None, options: Mapping[str, Any]) -> tuple[HostList, AgentLauncher]:
    """Return the named hosts, else the scheduler's job's or this machine, and their launcher."""
    job = find_job(options["scheduler"], named=bool(expression or options["hostfile"]))
    hosts = apply_job_names(read_hosts(expression, options["hostfile"], job=job), job)
    return hosts, read_launcher(options, job, hosts)


def read_launcher(options: Mapping[str, Any], job: Allocation | None, hosts: HostList) -> AgentLauncher:
    """Return the launcher of programs on the hosts. Raises InputError where --launcher cannot reach them."""
    ssh = ssh_arguments(options["ssh_port"], options["ssh_identity_file"])
    return choose_launcher(options["launcher"], job, hosts, ssh, os.environ)
