"""The program of a launch: a script, a module or any other program."""

import os
import re
import shutil
import sys
from collections.abc import Iterable

from ddlrun.errors import InputError
from ddlrun.plan.container import PYTHON as PYTHON_OF_IMAGE
from ddlrun.wording import did_you_mean

NOTEBOOK = r"\.ipynb$"
# Pattern of a word that is not a program -> remedy.
MISTAKES = {
    r"\s": "a command line is several words: leave the quotes out, as in ddlrun launch {0}",
    r"^[A-Za-z_]\w*=": "a variable is the value of an option: `--env` {0} PROGRAM",
    NOTEBOOK: "convert the notebook (jupyter nbconvert --to script {0}), or call ddlrun.run in it",
    r"^\d+(x\d+){1,3}$": "a topology is an option: `--topology` {0} SCRIPT",
    r"[\u2018-\u201f\xab\xbb]": "its quotes are not those of a shell: type ' or \" anew",
    r"^~": "a shell replaces ~ by a home folder, but not within quotes: leave them out",
    r"^-$": "ranks read no script from standard input; name a file",
    r",|\[\d|^@": "hosts are an option: `-H` {0} SCRIPT",
}
# The name of a Python interpreter, whose first argument is a script.
PYTHON = r"python[0-9.]*"
# Programs whose first argument is often a script.
PROGRAMS = ("python", "torchrun", "mpirun", "bash")
# Files that a Python interpreter runs: source, bytecode and archives.
PYTHON_FILES = (".py", ".pyc", ".pyz")


def read_program(script: str, args: tuple[str, ...], *, is_module: bool, in_image: bool = False) -> tuple[str, ...]:
    """Return the command line of each rank. Raises InputError for a file that does not exist or cannot be executed.

    With `in_image`, the Python is that of a container's image, and the script may be in there.
    """
    python = PYTHON_OF_IMAGE if in_image else sys.executable
    if not script:
        raise InputError("the script is an empty word; is a variable of the command line unset?")
    if is_module:
        _check_module(script)
        return (python, "-m", script, *args)
    runs_in_python = script.endswith(PYTHON_FILES) or os.path.isfile(f"{script}/__main__.py")
    if os.path.isfile(script) and not runs_in_python:
        if "/" not in script:
            own = f"./{script}"
            _check_exists(script, f"the file in this folder is {own}" if os.access(own, os.X_OK) else _remedy(own))
        elif not in_image:
            _check_executable(script)
    elif not in_image and not os.path.isfile(script):
        _check_missing(script, args)
    return (python, script, *args) if runs_in_python else (script, *args)


def _check_executable(path: str) -> None:
    """Raise InputError for a file that cannot be executed, or whose interpreter has a name that ends in CR."""
    if not os.access(path, os.X_OK):
        raise InputError(f"{path!r} is not executable; {_remedy(path)}")
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError:  # an executable file need not be readable
        return
    if line.startswith(b"#!") and line.endswith(b"\r\n"):
        raise InputError(
            f"{path!r} has lines that end in CR LF, so that it cannot start; convert it: sed -i 's/\\r$//' {path}"
        )


def _remedy(path: str) -> str:
    """Return the remedy for a file that is not executable."""
    if path.endswith(".ipynb"):
        return MISTAKES[NOTEBOOK].format(path)
    shell = "sh" if path.endswith(".sh") else "INTERPRETER"
    return f"chmod +x {path}, or write its interpreter before it: {shell} {path}"


def _check_missing(script: str, args: tuple[str, ...]) -> None:
    """Raise InputError for a word that names no file, unless it is a program on PATH."""
    remedy = next((remedy for pattern, remedy in MISTAKES.items() if re.search(pattern, script)), None)
    if remedy is not None:
        _check_exists(script, remedy)
    ranks = re.fullmatch(r"(.+\.py):(\d+)", script)
    if ranks is not None and os.path.isfile(ranks[1]):
        raise InputError(f"script {script!r} does not exist; write `-np` {ranks[2]} {ranks[1]} for {ranks[2]} ranks")
    if script.endswith(PYTHON_FILES):
        _check_script(script)
    if os.path.isdir(script) and not os.path.isfile(f"{script}/__main__.py"):
        folder = f"{script!r} is a folder; name the script or program in it"
        if "/" in script or script in (".", ".."):
            raise InputError(folder)
        _check_exists(script, folder)
    if os.path.isfile(f"{script}.py"):
        _check_exists(script, "did you mean {0}.py?")
    if args and args[0].endswith(".py"):
        if re.fullmatch(PYTHON, os.path.basename(script)):
            _check_script(args[0])
        elif os.path.isfile(args[0]) and "/" not in script:
            _check_exists(script, "if it is a host, hosts are one word: `-H` HOST,{0}", PROGRAMS)


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
        raise InputError(f"`-m` {name}: `-m` takes the name of a module, such as {module}; leave `-m` out for a file")


def _check_exists(program: str, remedy: str, names: Iterable[str] = ()) -> None:
    """Raise InputError with a remedy, and the nearest of `names`, where a word is not a program."""
    if shutil.which(program) is None:
        raise InputError(f"there is no program {program!r}{did_you_mean(program, names)}; {remedy.format(program)}")


def _scripts_beside(script: str) -> list[str]:
    """Return the names of the Python scripts in a script's folder."""
    try:
        entries = os.scandir(os.path.dirname(script) or ".")
        return [entry.name for entry in entries if entry.name.endswith(".py") and entry.is_file()]
    except OSError:
        return []
