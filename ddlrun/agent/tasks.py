"""Tasks: functions of ddlrun's modules that run on hosts, and return values of JSON."""

from __future__ import annotations

import sys

from ddlrun.agent.bare_json import parse_json, render_json

TASKS = {
    "ddlrun.preflight.host_facts": (
        "keeper/__init__.py",
        "keeper/tcp_connections.py",
        "preflight/__init__.py",
        "preflight/host_addresses.py",
        "preflight/host_facts.py",
        "preflight/host_files.py",
        "preflight/host_python.py",
    ),
    "ddlrun.preflight.peer": ("preflight/__init__.py", "preflight/peer.py"),
    "ddlrun.ship.host.main": ("ship/__init__.py", "ship/host"),
}
"""The module of each task -> its files, beside those of errors, ranges and wire/."""
MARK = "@task "
"""The beginning of the line with the result."""


def run_task(module: str, text: str) -> str:
    """Return the result of a module's function `main`, given its argument; both are JSON.

    Raises ValueError for a module that has no task, or a text that is not JSON, and what the task raises.
    """
    if module not in TASKS:
        raise ValueError(f"{module!r} is not a module of a task")
    __import__(module)
    return render_json(sys.modules[module].main(parse_json(text)))


def print_result(module: str, text: str) -> None:
    """Run a task, and print its result."""
    sys.stdout.write(f"{MARK}{run_task(module, text)}\n")
    sys.stdout.flush()
