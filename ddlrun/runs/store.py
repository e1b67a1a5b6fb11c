"""The folder of a run: its plan is written before the start, its outcome at the end."""

import errno
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddlrun.errors import InputError
from ddlrun.hosts import Host, render_hostfile
from ddlrun.mapping import rankfile
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.plan import Plan, shown_command
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.runs.names import NAME, new_name
from ddlrun.runs.state_folders import write_state

# The space that is reserved for the outcome, in case the disk becomes full.
RESERVED_BYTES = 1 << 16
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def state_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of ddlrun's state: $XDG_STATE_HOME/ddlrun, by default in ~/.local/state.

    As the XDG specification demands, a relative path is ignored.
    """
    above = environ.get("XDG_STATE_HOME", "")
    return (above if os.path.isabs(above) else f"{environ['HOME']}/.local/state") + "/ddlrun"


def choose_run_name(folder: str | None, environ: Mapping[str, str]) -> str:
    """Return the name of a new run. A folder that the user named among ddlrun's own names its run."""
    above = f"{state_folder(environ)}/runs"
    if folder is not None and os.path.dirname(folder) == above and re.fullmatch(NAME, os.path.basename(folder)):
        return os.path.basename(folder)
    name = new_name()
    while os.path.lexists(f"{above}/{name}"):
        name = new_name()
    return name


def default_run_dir(name: str, environ: Mapping[str, str]) -> RunDir:
    """Return the folder of a run in the state folder."""
    return RunDir(f"{state_folder(environ)}/runs/{name}")


def write_run_dir(plan: Plan, check: str | None = None) -> None:
    """Write the run folder: rank file, hostfile, plan, command, names of variables, and the check's result.

    Raises InputError where it holds an earlier run, or files that a run would overwrite, or cannot be written.
    """
    files = plan.run_dir
    if os.path.exists(files.plan):
        raise InputError(f"run folder {files.path} holds an earlier run; name another with `--run-dir`")
    written = (files.rankfile, files.hostfile, files.command, files.environment, files.check)
    others = [os.path.basename(path) for path in written if os.path.lexists(path)]
    if others:
        problem = f"it has {', '.join(others)}, which a run would overwrite"
        raise InputError(f"run folder {files.path}: {problem}; name another with `--run-dir`")
    if _has_files_here(files.path):
        raise InputError(
            f"run folder {files.path}: it holds the current folder, and the run would add its files to yours; name a "
            "new one, such as `--run-dir` ./run"
        )
    topology = plan.placement.topology
    hosts = (
        Host(host.name, topology.local_size(index) + plan.spawn_slots)
        for index, host in enumerate(plan.placement.hosts)
    )
    try:
        os.makedirs(files.path, mode=0o700, exist_ok=True)  # a job's output is private
        write_private(files.rankfile, _rank_file(plan))
        write_private(files.hostfile, [render_hostfile(hosts)])
        write_private(files.command, [shown_command(plan), "\n"])
        write_private(files.environment, (f"{name}\n" for name in plan.exports))
        if check is not None:
            write_private(files.check, [check])
        write_private(files.plan, [json.dumps({**plan.as_dict(), "written": time.time()}), "\n"])
    except OSError as error:
        remedy = "remove the folders of old runs: ddlrun clean --keep-runs 10, or " if error.errno in DISK_FULL else ""
        raise InputError(f"run folder {files.path}: {error.strerror}; {remedy}name another with `--run-dir`") from error


def _has_files_here(folder: str) -> bool:
    """Return True for a folder with files that is the current one, or above it."""
    with suppress(OSError):  # the current folder was removed
        return f"{os.getcwd()}/".startswith(f"{os.path.realpath(folder).rstrip('/')}/") and bool(os.listdir(folder))
    return False


def check_rank_file(plan: Plan) -> None:
    """Raise PlacementError if the rank file of a plan cannot be written for its process manager."""
    _rank_file(plan)


def _rank_file(plan: Plan) -> Iterable[str]:
    """Return the blocks of the rank file for the process manager, or the user's own; spawned processes follow."""
    placement, dialect = plan.placement, plan.manager.rankfile_dialect
    blocks = rankfile.render(placement, f"by ddlrun: {placement.topology}", () if dialect is None else (dialect,))
    if not (plan.spawn_slots and plan.manager.places_spawned):
        return blocks if plan.rankfile is None else [plan.rankfile]
    own = "".join(blocks)
    repeated = rankfile.repeat(rankfile.parse(own), plan.spawn_slots * len(placement.hosts))
    return [own if plan.rankfile is None else f"{plan.rankfile}\n", "# spawned processes\n", *repeated]


def make_output_folder(options: SupervisionOptions) -> None:
    """Make the folder for the ranks' output. Raises InputError."""
    folder = options.style.folder
    try:
        if folder is not None:
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(f"`--output` dir={folder}: {error.strerror}; name another folder") from error


def write_report(plan: Plan, report: str) -> None:
    """Write the report of a failed run to its folder; a full disk is ignored."""
    with suppress(OSError):
        write_private(plan.run_dir.report, [report])


def open_private(path: str, flags: int) -> int:
    """Open a file that only its user can read, as the opener of `open`. Raises OSError."""
    return os.open(path, flags, 0o600)


def write_private(path: str, blocks: Iterable[str]) -> None:
    """Write a file that only its user can read; readers find all of it or no file. Raises OSError.

    Bytes of arguments that are not UTF-8 stay.
    """
    new = f"{path}.new"
    try:
        with open(new, "w", encoding="utf-8", errors="surrogateescape", opener=open_private) as file:
            file.writelines(blocks)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise


def reserve_outcome(files: RunDir) -> None:
    """Reserve disk space for the outcome in the file that `write_private` replaces; ignore errors."""
    with suppress(OSError), open(f"{files.outcome}.new", "xb", opener=open_private) as file:
        os.posix_fallocate(file.fileno(), 0, RESERVED_BYTES)


def append_private(path: str, line: str) -> None:
    """Append a line to a file that only its user can read; a full disk is ignored."""
    with suppress(OSError), open(path, "ab", buffering=0, opener=open_private) as file:
        file.write(line.encode())


def write_end(plan: Plan, bound: Sequence[str], outcome: Outcome) -> None:
    """Write the ranks' bindings and the outcome to the run folder; on a full disk the outcome alone, to /tmp."""
    text = json.dumps(outcome.as_dict())
    write_state(plan.run_dir.path, lambda folder: write_private(RunDir(folder).outcome, [text, "\n"]))
    with suppress(OSError):
        write_private(plan.run_dir.binding, [json.dumps(bindings(bound, plan.placement.topology.size)), "\n"])


BOUND_FIELDS = ("rank", "host", "cpus", "planned", "gpus", "problem")


def bindings(reports: Iterable[str], ranks: int) -> dict[str, Any]:
    """Return the ranks' reports of their bindings for JSON, with the ranks that differ from the plan."""
    records = [dict(zip(BOUND_FIELDS, report.split("\t"), strict=True)) for report in reports]
    records.sort(key=lambda record: int(record["rank"]))
    different = [int(record["rank"]) for record in records if record["problem"]]
    return {
        "ranks": ranks,
        "reported": len(records),
        "different": different,
        "bindings": [{**record, "rank": int(record["rank"])} for record in records],
    }
