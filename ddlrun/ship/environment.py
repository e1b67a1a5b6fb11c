"""Environments that move: their interpreter, console scripts and editable packages, and conda's prefixes."""

import ast
import glob
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ddlrun.errors import InputError
from ddlrun.ship.files import CONDA_MARK, ENVIRONMENT_MARK, EmbeddedPrefix, Entry, list_tree, read_entries
from ddlrun.ship.host.store import OBJECTS
from ddlrun.ship.host.unpack import FILE
from ddlrun.ship.request import is_inside

# Folders of conda's base environment: the package cache, and the other environments.
OF_BASE = ("pkgs", "envs")
LONGEST_SCRIPT = 1 << 16
MOST_LINKS = 40
# The first lines of a console script that starts the Python beside it: sh takes the second line, Python skips it.
RELOCATABLE = b'#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/%b" "$0" "$@"\n\' \'\'\'\n'


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter on which a virtual environment is based; it does not travel."""

    path: str
    version: tuple[int, ...]
    """Major and minor version; empty if unknown."""


def find_environment(python: str) -> str:
    """Return the virtual or conda environment of a Python. Raises InputError where it is in none."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    if os.path.isfile(f"{folder}/{ENVIRONMENT_MARK}") or is_conda(folder):
        return folder
    raise InputError(
        f"`--ship` env: {python} is of no environment that can travel; start ddlrun in one (python -m venv, uv venv, "
        "conda create), name a lock file (env=FILE), or leave out env"
    )


def is_conda(folder: str) -> bool:
    """Return True for a conda environment."""
    return os.path.isdir(f"{folder}/{CONDA_MARK}")


def find_interpreter(folder: str) -> Interpreter | None:
    """Return the interpreter of a virtual environment, outside of it, from the text of its pyvenv.cfg and its links.

    That of a conda environment is a part of it, for which this is None.
    """
    if not os.path.isfile(f"{folder}/{ENVIRONMENT_MARK}"):
        return None
    with open(f"{folder}/{ENVIRONMENT_MARK}", encoding="utf-8") as file:
        settings = dict(re.findall(r"(?m)^\s*(\w+)\s*=\s*(.*?)\s*$", file.read()))
    numbers = re.match(r"(\d+)\.(\d+)", settings.get("version") or settings.get("version_info") or "")
    version = (int(numbers[1]), int(numbers[2])) if numbers else ()
    path = f"{folder}/bin/python"
    for _ in range(MOST_LINKS):
        if not is_inside(path, folder):
            return Interpreter(path, version)
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return Interpreter(os.path.join(settings.get("home", "/usr/bin"), "python3"), version)


def read_environment(folder: str) -> list[Entry]:
    """Return the entries of an environment, with console scripts that work in any folder."""
    entries = read_conda(folder) if is_conda(folder) else read_entries(list_tree(folder), folder, keep_times=True)
    return [_relocate_script(entry, folder) for entry in entries]


def _relocate_script(entry: Entry, folder: str) -> Entry:
    """Return a console script with a first line that does not name the environment; any other entry as it is."""
    in_bin = entry.kind == FILE and os.path.dirname(entry.path) == f"{folder}/bin"
    if not in_bin or entry.size > LONGEST_SCRIPT:
        return entry
    with open(entry.source, "rb") as file:
        content = file.read()
    moved = relocate_script(content, folder)
    return entry if moved == content else replace(entry, content=moved, size=len(moved))


def relocate_script(content: bytes, folder: str) -> bytes:
    r"""Return the text of a console script whose Python is the one beside it, wherever that is.

    >>> relocate_script(b"#!/v/bin/python3\nimport x\n", "/v").splitlines()[0]
    b'#!/bin/sh'
    """
    start = re.escape(os.fsencode(f"{folder}/bin/"))
    direct = re.match(rb"#! ?" + start + rb"(python[0-9.]*) ?[^\n]*\n", content)
    end = rb"\"?[^\n]*(?:#|\n' )'''\n"
    by_shell = re.match(rb"#!/bin/sh\n'''exec' \"?" + start + rb"(python[0-9.]*)" + end, content)
    match = direct or by_shell
    return content if match is None else RELOCATABLE % match[1] + content[match.end() :]


def find_editable(folder: str) -> list[str]:
    """Return the folders outside of an environment from which it imports packages in editable mode."""
    sites = glob.glob(f"{glob.escape(folder)}/lib/python3*/site-packages")
    folders = [path for site in sites for path in _editable(site)]
    return [path for path in dict.fromkeys(folders) if not is_inside(path, folder) and os.path.isdir(path)]


def _editable(site: str) -> Iterator[str]:
    """Yield the folders that .pth files and the finders of setuptools name."""
    for path in sorted(glob.glob(f"{glob.escape(site)}/*.pth")):
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = (line.strip() for line in file)
            yield from (line for line in lines if line.startswith("/"))
    for path in sorted(glob.glob(f"{glob.escape(site)}/__editable__*_finder.py")):
        with open(path, encoding="utf-8", errors="replace") as file:
            yield from map(os.path.dirname, _mapping(file.read()).values())


def _mapping(text: str) -> dict[str, str]:
    """Return the table of packages and their paths in a finder of setuptools."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "MAPPING":
            table = ast.literal_eval(node.value) if node.value is not None else {}
            return {str(name): str(path) for name, path in table.items()}
    return {}


def read_conda(folder: str) -> list[Entry]:
    """Return the entries of a conda environment. Raises InputError for one that conda's records do not describe."""
    others = frozenset(f"{folder}/{name}" for name in OF_BASE)
    prefixes = {path: prefix for record in _records(folder) for path, prefix in _prefixes(folder, record)}
    entries = read_entries(list_tree(folder, others), folder, keep_times=True)
    return [replace(entry, prefix=prefixes.get(entry.path)) for entry in entries]


def _records(folder: str) -> Iterator[dict[str, Any]]:
    """Yield the records of the packages in an environment. Raises InputError for one that has no list of files."""
    for path in sorted(glob.glob(f"{glob.escape(folder)}/{CONDA_MARK}/*.json")):
        try:
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
        except (OSError, ValueError) as error:
            raise InputError(f"`--ship` env: {path}: {error}; reinstall the package") from error
        if not isinstance(record, dict) or (record.get("files") and not record.get("paths_data")):
            raise InputError(f"`--ship` env: {path} does not list prefixes; reinstall the package with a recent conda")
        yield record


def _prefixes(folder: str, record: dict[str, Any]) -> Iterator[tuple[str, EmbeddedPrefix]]:
    """Yield the paths of a package's files that contain the prefix."""
    for item in (record.get("paths_data") or {}).get("paths", ()):
        placeholder = item.get("prefix_placeholder")
        if placeholder:
            longest = len(os.fsencode(placeholder)) if item.get("file_mode") == "binary" else None
            yield f"{folder}/{item['_path']}", EmbeddedPrefix(folder, longest)


def check_prefixes(entries: tuple[Entry, ...], folder: str, digest: str) -> None:
    """Raise InputError where a binary file has no room for the prefix that the archive's digest has on the hosts."""
    for entry in entries:
        if entry.prefix is None or entry.prefix.longest is None:
            continue
        place = f"{folder}/{OBJECTS}/{digest}{entry.prefix.path}"
        length = len(os.fsencode(place))
        if length > entry.prefix.longest:
            raise InputError(
                f"`--ship` env: {entry.path} has room for a path of {entry.prefix.longest} bytes, and the "
                f"environment's path on the hosts would have {length}: {place}; name a shorter folder: `--ship-dir`"
            )
