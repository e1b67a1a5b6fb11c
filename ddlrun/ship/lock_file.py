"""Environments from lock files: uv.lock, and requirements of which each has an exact version."""

import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

from ddlrun.errors import InputError
from ddlrun.remote.processes import start_command

UV_LOCK = "uv.lock"
# The file beside an environment: locked while it is made, with this text once it is complete; its time is the last use.
STATE, COMPLETE = ".state", "complete"
INSTALL_SECONDS = 86400.0
# Environments that no launch has used for this time are removed.
KEPT_SECONDS = 30 * 86400.0
REQUIREMENT = re.compile(r"\s*([A-Za-z0-9./$]|-[rce]|--(requirement|constraint|editable)\b)")
EXACT = re.compile(r"\s*[A-Za-z0-9][^#;]*(===?\s*[^\s*,;]+\s*(;.*)?$|\s@\s)")


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock file, and all that its environment depends on."""

    path: str
    python: str
    """The interpreter on which the environment is based."""
    digest: str

    @property
    def of_uv(self) -> bool:
        """Whether uv alone can read it."""
        return os.path.basename(self.path) == UV_LOCK


def read_lock(path: str) -> LockFile:
    """Return a lock file for this Python. Raises InputError where it is missing, or no lock file."""
    path = os.path.abspath(path)
    parts = [sys.version, os.path.realpath(sys.executable)]
    try:
        with open(path, encoding="utf-8") as file:
            parts.append(file.read())
        if os.path.basename(path) == UV_LOCK:
            parts.append(path)  # the project is part of the environment
            with open(f"{os.path.dirname(path)}/pyproject.toml", encoding="utf-8") as file:
                parts.append(file.read())
        else:
            _check_exact(parts[-1], path)
    except OSError as error:
        raise InputError(f"`--ship` env: {error.filename}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"`--ship` env={path}: byte {error.start} is not UTF-8; it is not a lock file") from error
    return LockFile(path, os.path.realpath(sys.executable), hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16])


def _check_exact(text: str, path: str) -> None:
    """Raise InputError for a requirement that has no exact version, or for a file without requirements."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    requirements = [(number, line) for number, line in enumerate(lines, 1) if REQUIREMENT.match(line)]
    loose = next((item for item in requirements if not EXACT.match(re.sub(r"\s--hash\b.*|\s#.*", "", item[1]))), None)
    if loose is not None or not requirements:
        what = f"line {loose[0]}, {loose[1].strip()!r}, has no exact version" if loose else "it has no requirements"
        raise InputError(
            f"`--ship` env={path}: {what}; name a uv.lock, or the output of uv pip compile, pip-compile or pip freeze"
        )


def make_environment(lock: LockFile, cache: str, report: Callable[[str], None]) -> str:
    """Return the environment of a lock file, which is made if it is not in the cache folder. Raises InputError.

    `report` is called with a line before anything is installed, and with the output of an installer that failed.
    """
    folder = f"{cache}/{lock.digest}"
    try:
        os.makedirs(cache, exist_ok=True)
        with open(f"{folder}{STATE}", "a+", encoding="ascii") as state:
            fcntl.flock(state, fcntl.LOCK_EX)
            state.seek(0)
            if state.read() != COMPLETE:
                shutil.rmtree(folder, ignore_errors=True)
                report(f"making the environment of {lock.path} in {folder}")
                _install(lock, folder, report)
                state.write(COMPLETE)
                state.flush()
                os.utime(state.fileno())
                _remove_unused(cache)
            os.utime(state.fileno())
    except OSError as error:
        raise InputError(f"`--ship` env={lock.path}: {error.filename}: {error.strerror}") from error
    return folder


def _install(lock: LockFile, folder: str, report: Callable[[str], None]) -> None:
    for argv in _installers(lock, folder):
        done = start_command(argv, timeout=INSTALL_SECONDS)()
        if done.code != 0:
            report(f"{done.out}{done.err}".strip())
            raise InputError(f"`--ship` env={lock.path}: {os.path.basename(argv[-1])} was not installed; see above")


def _installers(lock: LockFile, folder: str) -> Iterator[Sequence[str]]:
    """Yield the commands that make an environment. Raises InputError where a program for it is missing."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    uv = beside if os.access(beside, os.X_OK) else shutil.which("uv")
    if lock.of_uv:
        if uv is None:
            raise InputError(f"`--ship` env={lock.path}: this needs uv, which is not on PATH: pip install uv")
        target = f"UV_PROJECT_ENVIRONMENT={folder}"
        yield ["env", target, uv, "sync", "--frozen", "--python", lock.python, "--project", os.path.dirname(lock.path)]
    elif uv is not None:
        yield [uv, "venv", "--quiet", "--python", lock.python, folder]
        yield [uv, "pip", "sync", "--python", f"{folder}/bin/python", lock.path]
    elif find_spec("pip"):
        yield [lock.python, "-m", "venv", "--without-pip", folder]
        yield [sys.executable, "-m", "pip", "--python", f"{folder}/bin/python", "install", "--no-deps", "-r", lock.path]
    else:
        raise InputError(f"`--ship` env={lock.path}: this needs uv or pip, neither of which is installed here")


def _remove_unused(cache: str) -> None:
    """Remove environments that no launch has used for some time."""
    for entry in os.scandir(cache):
        if entry.name.endswith(STATE) and entry.stat().st_mtime < time.time() - KEPT_SECONDS:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
            shutil.rmtree(entry.path.removesuffix(STATE), ignore_errors=True)
