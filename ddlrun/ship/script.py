"""The sh scripts that run tasks on hosts, with the modules of ship/host as a zip archive in them."""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ddlrun.agent.archive import build_archive
from ddlrun.remote.probe import ProbeTarget, describe_failure, run_scripts
from ddlrun.remote.processes import FinishedProcess
from ddlrun.ship.host.main import MARK

PARTS = ("__init__.py", "wire", "ship/__init__.py", "ship/host")
MAIN = "ddlrun.ship.host.main"
BOOTSTRAP = """
import base64, os, sys
task, archive = sys.stdin.read().split("\\n")[:2]
file = os.memfd_create("ddlrun")
os.write(file, base64.b64decode(archive))
sys.path.insert(0, "/proc/self/fd/%d" % file)
__import__(sys.argv[1], fromlist=["main"]).main(task)
"""


def run_tasks(
    tasks: Mapping[str, Mapping[str, Any]], python: str, reach: ProbeTarget, *, compiled: bool = False
) -> dict[str, dict[str, Any]]:
    """Run each host's task, all at once, under a Python if the host has it, else under python3.

    With `compiled` hosts start in less time, but a script is too long for an argument of a program (128 KiB). Returns
    host -> its report; that of a host that failed has the reason as `error`.
    """
    modules = encode_modules(PARTS, compiled=compiled)
    scripts = {host: task_script(task, python, modules, MAIN) for host, task in tasks.items()}
    replies = run_scripts(scripts, reach)
    return {host: parse_report(replies[host]) for host in tasks}


def encode_modules(parts: Sequence[str], *, compiled: bool = False) -> str:
    """Return an archive of modules and folders for the script of a task."""
    return base64.b64encode(build_archive(parts, compiled=compiled)).decode()


def task_script(task: Mapping[str, Any], python: str, modules: str, main: str) -> str:
    """Return the script of a task; it runs under a Python if that is there, else under python3.

    `main` is one of the modules, whose function `main` gets the task as JSON.
    """
    run = f'exec "$python" -I -S -X utf8 -c {shlex.quote(BOOTSTRAP)} {main}'
    return (
        f"python={shlex.quote(python)}\n"
        '[ -x "$python" ] || python=python3\n'
        f"{run} <<'@ddlrun'\n{json.dumps(task)}\n{modules}\n@ddlrun\n"
    )


def parse_report(reply: FinishedProcess) -> dict[str, Any]:
    """Return the report that a host's task has printed, or one with the reason why there is none."""
    line = next((line for line in reply.out.splitlines() if line.startswith(MARK)), "")
    try:
        report = json.loads(line.removeprefix(MARK))
    except ValueError:
        report = None
    return report if isinstance(report, dict) else {"error": describe_failure(reply)}
