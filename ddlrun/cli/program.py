"""The program of a launch: a script, a module or any other program."""

import os
import re
import shutil
import sys

from ddlrun.errors import InputError


def read_program(script: str, args: tuple[str, ...], *, is_module: bool) -> tuple[str, ...]:
    """Return the command line of each rank. Raises InputError where a .py file does not exist."""
    if is_module:
        return (sys.executable, "-m", script, *args)
    if not script.endswith(".py"):
        if os.path.isdir(script) and "/" in script:
            raise InputError(f"{script!r} is a folder; name the script or program in it")
        if re.search(r",|\[\d", script) and shutil.which(script) is None:
            raise InputError(f"there is no program {script!r}; name hosts with -H: -H {script} SCRIPT")
        return (script, *args)
    if not os.path.isfile(script):
        raise InputError(f"script {script!r} is not there (looked in {os.getcwd()})")
    return (sys.executable, script, *args)
