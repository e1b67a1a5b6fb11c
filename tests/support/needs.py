"""Requirements of tests: each function skips the test, with the reason and the command that remedies it.

A reason has the form `REASON: COMMAND`. The table at the end of a run has one row per reason.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from typing import NoReturn

import pytest

SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def skip(reason: str, command: str = "", *, module: bool = False) -> NoReturn:
    """Skip the test, or with `module` its whole file."""
    pytest.skip(f"{reason}: {command}" if command else reason, allow_module_level=module)


def program(name: str, apt: str, *, module: bool = False) -> str:
    """Return the path of a program; skip if no folder of PATH, /usr/sbin or /sbin has it. Debian's package is `apt`."""
    path = shutil.which(name, path=SYSTEM_PATH)
    return path or skip(f"no {name}", f"sudo apt-get install {apt}", module=module)


def package(name: str, pip: str = "", *, module: bool = False) -> None:
    """Skip if a Python package is not installed; `pip` is what to install (default: the name)."""
    if importlib.util.find_spec(name) is None:
        skip(f"no Python package {name}", f".venv/bin/pip install {pip or name}", module=module)


def root(*, module: bool = False) -> None:
    """Skip if this process is not root's."""
    if os.geteuid() != 0:
        skip("not root", "sudo make test", module=module)


def memory_policy() -> None:
    """Skip the test where a process may not choose the NUMA nodes of its memory."""
    code = "import sys; from ddlrun.keeper.binding import set_memory_policy; sys.exit(set_memory_policy('bind=0'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        skip(f"memory cannot be bound to NUMA node 0: {done.stderr.strip()}", "a container with --cap-add SYS_NICE")
