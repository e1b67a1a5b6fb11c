"""The program of a launch: a script, a module or any other program."""

import os
import re
import sys

from ddlrun.errors import InputError
from ddlrun.plan.container import PYTHON as PYTHON_OF_IMAGE
from ddlrun.wording import did_you_mean

# Pattern of a word that is no program -> remedy.
MISTAKES = {
    r"\s": "a command line is several words: leave the quotes out, as in ddlrun launch {0}",
    r"^\d+(x\d+){1,3}$": "a topology is an option: --topology {0} SCRIPT",
    r",|\[\d|^@": "hosts are an option: -H {0} SCRIPT",
}
# The name of a Python interpreter, whose first argument is a script.
PYTHON = r"python[0-9.]*"


def read_program(script: str, args: tuple[str, ...], *, is_module: bool, in_image: bool = False) -> tuple[str, ...]:
    """Return the command line of each rank. Raises InputError where a .py file does not exist.

    With `in_image`, the Python is that of a container's image, and the script may be in there.
    """
    python = PYTHON_OF_IMAGE if in_image else sys.executable
    if not script:
        raise InputError("the script is an empty word; is a variable of the command line unset?")
    if is_module:
        _check_module(script)
        return (python, "-m", script, *args)
    if os.path.isfile(script):
        if "/" not in script and not script.endswith(".py"):
            _check_exists(script, "the file in this folder is ./{0}")
        return (python, script, *args) if script.endswith(".py") else (script, *args)
    if not in_image:
        _check_missing(script, args)
    return (python, script, *args) if script.endswith(".py") else (script, *args)


def _check_missing(script: str, args: tuple[str, ...]) -> None:
    """Raise InputError for a word that names no file, unless it is a program on PATH."""
    remedy = next((remedy for pattern, remedy in MISTAKES.items() if re.search(pattern, script)), None)
    if remedy is not None:
        _check_exists(script, remedy)
    if script.endswith(".py"):
        _check_script(script)
    if os.path.isdir(script) and ("/" in script or script in (".", "..")):
        raise InputError(f"{script!r} is a folder; name the script or program in it")
    if os.path.isfile(f"{script}.py"):
        _check_exists(script, "did you mean {0}.py?")
    if re.fullmatch(PYTHON, os.path.basename(script)) and args and args[0].endswith(".py"):
        _check_script(args[0])


def _check_script(script: str) -> None:
    """Raise InputError where there is no such script, with the nearest one beside it."""
    if not os.path.isfile(script):
        hint = did_you_mean(os.path.basename(script), _scripts_beside(script))
        folder = "" if os.path.isabs(script) else f" in {os.getcwd()}"
        raise InputError(f"script {script!r} does not exist{folder}{hint}")


def _check_module(name: str) -> None:
    """Raise InputError where the name of a module is the path of a file."""
    if "/" in name or (name.endswith(".py") and os.path.isfile(name)):
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(f"-m {name}: -m takes the name of a module, such as {module}; leave -m out for a file")


def _check_exists(program: str, remedy: str) -> None:
    """Raise InputError with a remedy where a word that looks like something else is no program."""
    import shutil  # noqa: PLC0415 - 2 ms, for such words alone

    if shutil.which(program) is None:
        raise InputError(f"there is no program {program!r}; {remedy.format(program)}")


def _scripts_beside(script: str) -> list[str]:
    """Return the names of the Python scripts in a script's folder."""
    try:
        return [name for name in os.listdir(os.path.dirname(script) or ".") if name.endswith(".py")]
    except OSError:
        return []
