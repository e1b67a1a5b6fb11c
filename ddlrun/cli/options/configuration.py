"""Values of options from config files and environment variables, each with its source and its place."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from ddlrun.application.config_files import Configuration, OptionValue, read_config_files
from ddlrun.cli.console import ConsoleReporter, print_note
from ddlrun.cli.options.foreign import RENAMED
from ddlrun.cli.options.names import SYNONYMS
from ddlrun.errors import InputError
from ddlrun.plan.precedence import COMMAND_LINE, DEFAULT, VARIABLE
from ddlrun.wording import did_you_mean

# Names that may be variables of options, and all other variables of this name that a user or an outer job sets.
VARIABLES = r"DDLRUN_[A-Z0-9_]+"
OTHER_VARIABLES = (
    "DDLRUN_DDL_TUNING", "DDLRUN_DDL_LINKS", "DDLRUN_DDL_TRANSPORT", "DDLRUN_DDL_SECRET", "DDLRUN_DDL_START_TIMEOUT",
    "DDLRUN_LMS", "DDLRUN_LMS_FRAC", "DDLRUN_CONFIG_FILE", "DDLRUN_FAN_OUT", "DDLRUN_RACKS",
    "DDLRUN_RESTART", "DDLRUN_RUN_DIR", "DDLRUN_SHIPPED", "DDLRUN_SPARE_CPUS", "DDLRUN_IFNAMES", "DDLRUN_RANK",
    "DDLRUN_LOCAL_RANK", "DDLRUN_SIZE", "DDLRUN_COMPLETE",
)  # fmt: skip
# Variables by which torchrun takes its options, as Kubeflow sets them.
TORCHRUN_VARIABLES = r"PET_(?:NNODES|NPROC_PER_NODE|NODE_RANK|MASTER_ADDR|MASTER_PORT|MAX_RESTARTS|RDZV_[A-Z_]+)"
# Options of commands other than launch, show and submit that have values from here, too: how hosts are reached.
SHARED = frozenset(("ssh_port", "ssh_identity_file", "scheduler", "launcher", "mpirun", "network", "tcp"))


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

    `named` is the value of --config-file, `only` the parameters that the command takes from there; None: all.
    """
    environ = {} if "DDLRUN_RUN" in os.environ else os.environ  # a rank has the variables of its job
    files = read_config_files(named or environ.get("DDLRUN_CONFIG_FILE"), ConsoleReporter())
    variables = _read_variables(ctx.command.get_params(ctx), environ)
    values = {**files.values, **variables.values}
    if only is None:
        _note_unknown_variables(ctx, environ)
    else:
        values = {name: value for name, value in values.items() if name in only}
    ctx.obj = Configuration(files.files, values, (*files.assignments, *variables.assignments))
    ctx.default_map = {name: value.value for name, value in values.items()}


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
        if option.name == "variables":
            assignments += value
        elif value is not None:
            values[str(option.name)] = OptionValue(value, VARIABLE, variable)
    return Configuration((), values, tuple(assignments))


def _note_unknown_variables(ctx: click.Context, environ: Mapping[str, str]) -> None:
    """Print a note on torchrun's variables, and on each DDLRUN_ variable that belongs to no option of any command."""
    foreign = [name for name in environ if re.fullmatch(TORCHRUN_VARIABLES, name)]
    if foreign:
        print_note(f"{', '.join(foreign)}: no effect: give torchrun's options instead, such as --nproc-per-node N")
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
        for name in (*option.opts, *option.secondary_opts)
    }
    for typed, meant in (*RENAMED.items(), *SYNONYMS.items()):
        variable = f"ddlrun_{typed.strip('-').replace('-', '_')}"
        synonyms.setdefault(variable, synonyms.get(f"ddlrun_{meant.strip('-')}", ""))
    known = {*synonyms.values(), *OTHER_VARIABLES}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, map(str.lower, known), synonyms)
            hint = re.sub("ddlrun_[a-z_]+", lambda match: match[0].upper(), hint)
            print_note(f"{name} has no effect: ddlrun has no such variable{hint}")


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
