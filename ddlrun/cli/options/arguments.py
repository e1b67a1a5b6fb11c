"""The words after `ddlrun launch`: stored without secrets, and changed for another run."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from ddlrun.application.options.settings import LaunchOptions
from ddlrun.cli.options.argv import SplitArgv, options_by_name, split_argv
from ddlrun.cli.options.configuration import find_configuration, source_of
from ddlrun.cli.options.names import suggest_option
from ddlrun.environment.secrets import REDACTED, has_secret, redact, redact_words
from ddlrun.errors import InputError
from ddlrun.plan.precedence import COMMAND_LINE, EXCLUSIVE_GROUPS

# The parameter whose values are NAME=VALUE, or NAME.
VARIABLES = "variables"
Words = tuple[str, ...]
Options = Iterable[tuple[click.Option, Words]]


def launch_options(ctx: click.Context, values: Mapping[str, Any]) -> LaunchOptions:
    """Return the options of a context, with the values of one program of its command line."""
    sources = {name: source_of(ctx, name) for group in EXCLUSIVE_GROUPS for name in group.parameters}
    configuration = find_configuration(ctx)
    site = configuration.values.get("mpi_args")
    if site and values["mpi_args"] and source_of(ctx, "mpi_args") == COMMAND_LINE:
        values = {**values, "mpi_args": f"{site.value} {values['mpi_args']}"}
    return LaunchOptions(values, sources, configuration.assignments)


def strip_secrets(args: Sequence[str], params: Iterable[click.Parameter]) -> Words:
    """Return the words of a command line with <redacted> in place of secrets in variables and in the program."""
    argv = split_argv(args, params, has_topology=False)
    options = (word for option, words in argv.options for word in _strip_option(option, words))
    return (*options, *redact_words(argv.rest))


def _strip_option(option: click.Option, words: Words) -> Words:
    if option.name != VARIABLES:
        return (option.opts[0], REDACTED) if any(map(has_secret, words)) else words
    name, equals, value = _value(words).partition("=")
    return words if not equals else (option.opts[0], f"{name}={redact({name: value})[name]}")


def _value(words: Words) -> str:
    """Return the value of an option that is one or two words, such as -x NAME, -xNAME or --env=NAME=VALUE."""
    if len(words) > 1:
        return words[1]
    return words[0].partition("=")[2] if words[0].startswith("--") else words[0][2:]


def merge_arguments(stored: Sequence[str], changes: SplitArgv, params: Iterable[click.Parameter]) -> Words:
    """Return the words of a run with changes: options replace those that mean the same, and arguments are appended.

    Raises InputError where a secret was not stored, and is not a variable that is given again.
    """
    before = split_argv(stored, params, has_topology=False)
    if any(REDACTED in word for word in before.rest):
        raise InputError(
            f"an argument of the program was not stored, as it may be secret: {shlex.join(before.rest)}; start it with "
            "ddlrun launch, and pass secrets in variables"
        )
    replaced = _replaced_parameters(option for option, _ in changes.options)
    given = {_value(words).partition("=")[0] for option, words in changes.options if option.name == VARIABLES}
    kept = _kept_options(before.options, replaced, given)
    added = (word for _, words in changes.options for word in words)
    return (*kept, *added, *before.rest, *changes.rest[1:])


def _replaced_parameters(options: Iterable[click.Option]) -> set[str | None]:
    """Return the parameters of which a run's own options are dropped."""
    names = {option.name for option in options if not option.multiple}
    groups = (group.parameters for group in EXCLUSIVE_GROUPS if names.intersection(group.parameters))
    return {"run_dir", *names, *(name for group in groups for name in group)}


def _kept_options(options: Options, replaced: set[str | None], given: set[str]) -> Iterator[str]:
    for option, words in options:
        name, _, value = _value(words).partition("=") if option.name == VARIABLES else ("", "", "")
        if option.name in replaced or (name and name in given):
            continue
        if REDACTED in (value, words[-1]):
            remedy = f"add -x {name} or --env {name}=..." if name else "give it again"
            raise InputError(f"the value of {name or option.opts[0]} was not stored, as it may be secret; {remedy}")
        yield from words


def parse_changes(words: Sequence[str], params: Iterable[click.Parameter]) -> SplitArgv:
    """Split `[RUN] [options] [-- arguments]`; the run is in the place of the topology.

    Raises InputError on an option that is unknown or lacks its value, and on a word too many.
    """
    changes = split_argv(words, params)
    if changes.rest and changes.rest[0] != "--":
        usage = "write ddlrun rerun [RUN] [OPTIONS] [-- ARGUMENTS]"
        raise InputError(f"{changes.rest[0]!r}: {_explain_word(changes.rest[0], params)}; {usage}")
    return changes


def _explain_word(word: str, params: Iterable[click.Parameter]) -> str:
    """Return the reason why a word cannot be parsed."""
    if not word.startswith("-"):
        return "unexpected argument"
    options, name = options_by_name(params), word.partition("=")[0]
    if name in options:
        return "the value of this option is missing"
    return f"ddlrun launch has no such option{suggest_option(name, options)}"
