"""The program of a launch: a script, a module or any other program."""

import os
import re
import sys

from ddlrun.errors import InputError


def read_program(script: str, args: tuple[str, ...], *, is_module: bool) -> tuple[str, ...]:
    """Return the command line of each rank. Raises InputError where a .py file does not exist."""
    if is_module:
        return (sys.executable, "-m", script, *args)
    if not script.endswith(".py"):
        if os.path.isdir(script) and "/" in script:
            raise InputError(f"{script!r} is a folder; name the script or program in it")
        if re.search(r",|\[\d", script):
            _check_exists(script)
        return (script, *args)
    if not os.path.isfile(script):
        raise InputError(f"script {script!r} is not there (looked in {os.getcwd()})")
    return (sys.executable, script, *args)


def _check_exists(program: str) -> None:
    """Raise InputError where a word that looks like a host list is no program."""
    import shutil  # noqa: PLC0415 - 2 ms, for names that look like hosts alone

    if shutil.which(program) is None:
        raise InputError(f"there is no program {program!r}; name hosts with -H: -H {program} SCRIPT")
