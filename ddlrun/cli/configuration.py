"""Values of options from config files and environment variables, each with its source and its place."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from ddlrun.application.inputs import read_text
from ddlrun.errors import InputError
from ddlrun.plan.precedence import COMMAND_LINE, DEFAULT, NAMED_FILE, PROJECT_FILE, USER_FILE, VARIABLE
from ddlrun.wording import did_you_mean

PROJECT_NAME = "ddlrun.yaml"
# The word of --config-file without which the user's and the project's files are read.
NO_FILES = "none"
# Names that may be variables of options, and other variables that a user or an outer job sets.
VARIABLES = r"DDLRUN_(?!DDL_|LMS)[A-Z0-9_]+"
OTHER_VARIABLES = (
    "DDLRUN_CONFIG_FILE", "DDLRUN_CHECK_WORLD", "DDLRUN_FAN_OUT", "DDLRUN_RACKS",
    "DDLRUN_RESTART", "DDLRUN_RUN_DIR", "DDLRUN_SHIPPED", "DDLRUN_SPARE_CPUS", "DDLRUN_IFNAMES", "DDLRUN_RANK",
    "DDLRUN_LOCAL_RANK", "DDLRUN_SIZE", "DDLRUN_COMPLETE",
)  # fmt: skip
# Options of commands other than launch, show and submit that have values from here, too: how hosts are reached.
SHARED = frozenset(
    ("ssh_port", "ssh_identity_file", "scheduler", "launcher", "mpirun", "network", "network_interface", "tcp")
)


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


EMPTY = Configuration((), {}, ())


def find_configuration(ctx: click.Context) -> Configuration:
    """Return the configuration that was applied to a context."""
    return ctx.find_object(Configuration) or EMPTY


def source_of(ctx: click.Context, parameter: str) -> str:
    """Return the entry of OPTION_SOURCES that gave a parameter."""
    if ctx.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
        return COMMAND_LINE
    given = find_configuration(ctx).values.get(parameter)
    return DEFAULT if given is None else given.source


def apply_configuration(ctx: click.Context, named: str | None = None, only: frozenset[str] | None = None) -> None:
    """Make config files and environment variables the defaults of a command's options.

    Args:
        ctx: The context of the command.
        named: The value of --config-file.
        only: The parameters that the command takes from there; None: all.
    """
    environ = {} if "DDLRUN_RUN" in os.environ else os.environ  # a rank has the variables of its job
    named = named or environ.get("DDLRUN_CONFIG_FILE")
    files = [*(find_files(os.environ, _current_folder()) if named != NO_FILES else ())]
    if named not in (None, "", NO_FILES):
        files.append(ConfigFile(NAMED_FILE, str(named)))
    values: dict[str, OptionValue] = {}
    assignments: list[str] = []
    for file in files:
        entries = _read_file(file)
        assignments += entries.assignments
        values |= entries.values
    variables = _read_variables(ctx.command.get_params(ctx), environ)
    values |= variables.values
    if only is None:
        _note_unknown_variables(ctx, environ)
    else:
        values = {name: value for name, value in values.items() if name in only}
    paths = tuple(file.path for file in files)
    ctx.obj = Configuration(paths, values, (*assignments, *variables.assignments))
    ctx.default_map = {name: value.value for name, value in values.items()}


def _current_folder() -> str:
    """Return the current folder; the root where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def find_files(environ: Mapping[str, str], folder: str) -> Iterator[ConfigFile]:
    """Yield the user's config file, and the project's: ddlrun.yaml in a folder or the nearest folder above it."""
    home = environ.get("HOME") or os.path.expanduser("~")
    user = f"{environ.get('XDG_CONFIG_HOME') or home + '/.config'}/ddlrun/config.yaml"
    if os.path.isfile(user):
        yield ConfigFile(USER_FILE, user)
    project = _find_above(folder, home)
    if project is None:
        other = f"{folder}/{PROJECT_NAME.removesuffix('.yaml')}.yml"
        if os.path.isfile(other):
            click.echo(f"ddlrun: note: {other} has no effect; name it {PROJECT_NAME}", err=True)
        return
    if os.stat(project).st_uid not in (0, os.geteuid()):  # it names programs to start
        click.echo(
            f"ddlrun: note: {project} is left out, as it belongs to another user; name it with --config-file", err=True
        )
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


def _read_file(file: ConfigFile) -> Configuration:
    from ddlrun.plan.config_file import config_notes, config_places, parse_config  # noqa: PLC0415 - 2 ms, and 16 of YAML: for config files alone

    where = f"config file {file.path}"
    text = read_text(file.path, "config file")
    content = parse_config(text, where)
    for note in config_notes(text, where):
        click.echo(f"ddlrun: note: {note}", err=True)
    assignments = content.pop("assignments", ())
    places = config_places(text, where)
    values = {name: OptionValue(value, file.source, places.get(name, where)) for name, value in content.items()}
    return Configuration((file.path,), values, tuple(assignments) if isinstance(assignments, list) else ())


def variable_of(option: click.Option) -> str | None:
    """Return the environment variable of an option: DDLRUN_ and its long name; None where it has none."""
    names = [name for name in option.opts if name.startswith("--")]
    if not names or not option.expose_value:
        return None
    return f"DDLRUN_{max(names, key=len)[2:].upper().replace('-', '_')}"


def forget_variables(ctx: click.Context) -> None:
    """Remove the variables of options from the environment: the ranks get what the options set."""
    for option in ctx.command.get_params(ctx):
        variable = variable_of(option) if isinstance(option, click.Option) else None
        if variable is not None:
            os.environ.pop(variable, None)


def _read_variables(params: Iterable[click.Parameter], environ: Mapping[str, str]) -> Configuration:
    """Return the values of options that environment variables give."""
    values: dict[str, OptionValue] = {}
    assignments: list[str] = []
    for option in params:
        variable = variable_of(option) if isinstance(option, click.Option) else None
        if variable is None or not environ.get(variable):
            continue
        value = _parse_variable(option, variable, environ[variable])
        if option.name == "assignments":
            assignments += value
        elif value is not None:
            values[str(option.name)] = OptionValue(value, VARIABLE, variable)
    return Configuration((), values, tuple(assignments))


def _note_unknown_variables(ctx: click.Context, environ: Mapping[str, str]) -> None:
    """Print a note on each DDLRUN_ variable that belongs to no option of any command."""
    own = [variable_of(option) for option in ctx.command.params if isinstance(option, click.Option)]
    names = [name for name in environ if re.fullmatch(VARIABLES, name) and name not in (*OTHER_VARIABLES, *own)]
    group = ctx.find_root().command
    if not names or not isinstance(group, click.Group):
        return
    commands = [group.get_command(ctx, name) for name in group.list_commands(ctx)]
    params = [param for command in (*commands, ctx.command) if command is not None for param in command.params]
    options = [option for option in params if isinstance(option, click.Option)]
    synonyms = {
        f"ddlrun_{name.strip('-').lower()}": variable
        for option in options
        if (variable := variable_of(option)) is not None
        for name in option.opts
    }
    known = {*synonyms.values(), *OTHER_VARIABLES}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, map(str.lower, known), synonyms)
            hint = re.sub("ddlrun_[a-z_]+", lambda match: match[0].upper(), hint)
            click.echo(f"ddlrun: note: {name} has no effect: ddlrun has no such variable{hint}", err=True)


def _parse_variable(option: click.Parameter, variable: str, text: str) -> Any:  # noqa: ANN401 - an option's value
    """Return the value of an option; None where a switch is off that has no opposite. Raises InputError."""
    if option.multiple:
        try:
            return shlex.split(text)
        except ValueError as error:
            raise InputError(f"{variable}: {error}; quote the words as for a shell") from error
    if not isinstance(option, click.Option) or not option.is_flag:
        return text
    try:
        is_on = click.BOOL(text)
    except click.BadParameter as error:
        raise InputError(f"{variable}: {text!r}; write on or off") from error
    if isinstance(option.flag_value, str):
        return option.flag_value if is_on else None
    return is_on


def describe_values(ctx: click.Context) -> str:
    """Return the options of a command that have values from a configuration, and their places; empty: none."""
    values = {
        name: value
        for name, value in find_configuration(ctx).values.items()
        if ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP
    }
    names = {param.name: max(param.opts, key=len) for param in ctx.command.get_params(ctx)}
    return ", ".join(f"{names[name]} {value.value} ({value.place})" for name, value in values.items() if name in names)
