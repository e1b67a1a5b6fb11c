"""The config files that apply, and the values of options in them."""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ddlrun.application.inputs import read_text
from ddlrun.application.reporter import Reporter
from ddlrun.plan.precedence import NAMED_FILE, PROJECT_FILE, USER_FILE

PROJECT_NAME = "ddlrun.yaml"
# The word of --config-file without which the user's and the project's files are read.
NO_FILES = "none"


class ConfigFile(NamedTuple):
    """A config file: its place in OPTION_SOURCES, and its path."""

    source: str
    path: str


class OptionValue(NamedTuple):
    """A value of an option that is not on the command line."""

    value: object
    source: str
    """The entry of OPTION_SOURCES."""
    place: str
    """The file, the line and the key; or the environment variable."""


class Configuration(NamedTuple):
    """The values of all config files and environment variables."""

    files: tuple[str, ...]
    values: Mapping[str, OptionValue]
    """By parameter."""
    assignments: tuple[str, ...]
    """Variables for the ranks: NAME=VALUE."""


def read_config_files(named: str | None, reporter: Reporter) -> Configuration:
    """Return the values of all config files that apply; `named` is the word of --config-file."""
    files = [*(find_files(os.environ, _current_folder(), reporter) if named != NO_FILES else ())]
    if named not in (None, "", NO_FILES):
        files.append(ConfigFile(NAMED_FILE, str(named)))
    values: dict[str, OptionValue] = {}
    assignments: list[str] = []
    for file in files:
        entries = _read_file(file, reporter)
        assignments += entries.assignments
        values |= entries.values
    return Configuration(tuple(file.path for file in files), values, tuple(assignments))


def _current_folder() -> str:
    """Return the current folder; the root where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def find_files(environ: Mapping[str, str], folder: str, reporter: Reporter) -> Iterator[ConfigFile]:
    """Yield the user's config file, and the project's: ddlrun.yaml in a folder or the nearest folder above it."""
    home = environ.get("HOME") or os.path.expanduser("~")
    user = f"{environ.get('XDG_CONFIG_HOME') or home + '/.config'}/ddlrun/config.yaml"
    if os.path.isfile(user):
        yield ConfigFile(USER_FILE, user)
    project = _find_above(folder, home)
    if project is None:
        other = f"{folder}/{PROJECT_NAME.removesuffix('.yaml')}.yml"
        if os.path.isfile(other):
            reporter.line(f"note: {other} has no effect; name it {PROJECT_NAME}")
        return
    if os.stat(project).st_uid not in (0, os.geteuid()):  # it names programs to start
        reporter.line(f"note: {project} is left out, as it belongs to another user; name it with --config-file")
        return
    yield ConfigFile(PROJECT_FILE, project)


def _find_above(folder: str, home: str) -> str | None:
    """Return the project's file in a folder or above it, up to the home directory."""
    while True:
        path = os.path.join(folder, PROJECT_NAME)
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder or os.path.realpath(folder) == os.path.realpath(home):
            return None
        folder = parent


def _read_file(file: ConfigFile, reporter: Reporter) -> Configuration:
    from ddlrun.plan.config_file import parse_config  # noqa: PLC0415 - 2 ms, and 16 of YAML: for config files alone

    where = f"config file {file.path}"
    content = parse_config(read_text(file.path, "config file"), where)
    for note in content.notes:
        reporter.line(f"note: {note}")
    values = {
        name: OptionValue(value, file.source, content.places.get(name, where)) for name, value in content.values.items()
    }
    return Configuration((file.path,), values, tuple(content.assignments))
