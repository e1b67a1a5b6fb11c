"""What several commands read: hosts, hostfiles and machine descriptions."""

import os
import shlex
from collections.abc import Sequence

from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList, parse_hostfile, parse_hosts
from ddlrun.machine import Machine
from ddlrun.probe import probe
from ddlrun.shell import begin, run_on_hosts

DEFAULT_PROBE_SECONDS = 30.0


def read_text(path: str, what: str) -> str:
    """Read a small file. Raises InputError with its name and the reason."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path}: byte {error.start} is not UTF-8; it is no text file") from error


def read_hosts(expression: str | None, hostfile: str | None, where: str = "hosts") -> HostList:
    """Return the hosts of an expression (`@FILE` is a hostfile), of a hostfile, or this machine."""
    if expression is not None and hostfile is not None:
        raise InputError(f"hosts are given twice: {expression!r} and --hostfile {hostfile}; leave one of them out")
    if expression is not None and not expression.startswith("@"):
        return parse_hosts(expression, where)
    path = hostfile if expression is None else expression[1:]
    if path is None:
        return HostList((Host("localhost"),), "this machine")
    return parse_hostfile(read_text(path, "hostfile"), f"hostfile {path}")


def read_preset(name: str) -> Machine | None:
    """Return the machine of a preset or a YAML file; None for `local`, which has to be probed.

    Raises InputError with the names that are possible.
    """
    from ddlrun.machine.preset import parse_machine  # noqa: PLC0415 - msgspec and YAML, 30 ms

    if name == "local":
        return None
    folder = _presets_folder()
    presets = {file.removesuffix(".yaml") for file in os.listdir(folder) if file.endswith(".yaml")}
    if name in presets:
        return parse_machine(read_text(f"{folder}/{name}.yaml", "preset"), f"preset {name}")
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        import difflib  # noqa: PLC0415 - for a slip of the finger

        close = difflib.get_close_matches(name, presets, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        known = ", ".join(sorted({*presets, "local"}))
        raise InputError(f"--machine {name!r}: no such preset; {hint}there are {known}, or name a YAML file")
    return parse_machine(read_text(name, "machine"), name)


def _presets_folder() -> str:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = f"{package}/configs/machines"
    return installed if os.path.isdir(installed) else f"{os.path.dirname(package)}/configs/machines"


def probe_hosts(hosts: HostList, ssh: Sequence[str], seconds: float = DEFAULT_PROBE_SECONDS) -> dict[str, Machine]:
    """Ask every host what it is made of: this one directly, the others by ssh."""
    return probe(
        hosts,
        os.uname().nodename,
        lambda script: begin(["sh", "-s"], script, seconds)(),
        lambda names, script: run_on_hosts(names, script, ssh, seconds),
        shlex.join(["ssh", *ssh]),
    )


def machines_of(hosts: HostList, machine: Machine) -> dict[str, Machine]:
    """Return the same machine for every host."""
    return dict.fromkeys(hosts.names, machine)
