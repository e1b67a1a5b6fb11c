"""Conda environments: their files, and those of them that contain the path of the environment."""

import glob
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ddlrun.errors import InputError
from ddlrun.ship.files import CONDA_MARK, EmbeddedPrefix, Entry, list_tree, read_entries
from ddlrun.ship.host.store import OBJECTS

# Folders of conda's base environment: the package cache, and the other environments.
OF_BASE = ("pkgs", "envs")


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
