"""Command lines as the user typed them: split into options, topology and script."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import click


class SplitArgv(NamedTuple):
    """Words of a command line: each option with its words, and the rest from the script, or a -- before it, on.

    The rest begins early at an option that is unknown or lacks its value: click reports that.
    """

    topology: str | None
    options: tuple[tuple[click.Option, tuple[str, ...]], ...]
    rest: tuple[str, ...]


class OptionMatch(NamedTuple):
    """An option, and the number of words that it has on the command line."""

    option: click.Option
    words: int


def options_by_name(params: Iterable[click.Parameter]) -> dict[str, click.Option]:
    """Return options by each of their names, such as -p and --ssh-port."""
    options = (param for param in params if isinstance(param, click.Option))
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}


def split_argv(args: Sequence[str], params: Iterable[click.Parameter], *, has_topology: bool = True) -> SplitArgv:
    """Split `[options] TOPOLOGY [options] SCRIPT ...`; every word is in the result once, in its order.

    Without a topology, the first word that is not an option is the script.
    """
    options_of = options_by_name(params)
    topology: str | None = None
    options: list[tuple[click.Option, tuple[str, ...]]] = []
    index = 0
    while index < len(args):
        if args[index] == "--" or not args[index].startswith("-") or args[index] == "-":
            if not has_topology or topology is not None or args[index] == "--":
                break
            topology = args[index]
            index += 1
            continue
        match = match_option(args[index], options_of)
        if match is None or index + match.words > len(args):
            break
        options.append((match.option, tuple(args[index : index + match.words])))
        index += match.words
    return SplitArgv(topology, tuple(options), tuple(args[index:]))


def match_option(word: str, options: Mapping[str, click.Option]) -> OptionMatch | None:
    """Match a word such as --name=value, -np, -p22 or switches in one word; None where the option is unknown."""
    name, equals, _ = word.partition("=")
    option = options.get(name)
    if option is not None:
        return OptionMatch(option, 1 if equals or _is_switch(option) else 1 + option.nargs)
    return None if word == "-" or word.startswith("--") else _match_letters(word, options)


def _match_letters(word: str, options: Mapping[str, click.Option]) -> OptionMatch | None:
    """Match a word of one-letter options: switches, the last of which may be an option with a value."""
    for position, letter in enumerate(word[1:], 2):
        option = options.get(f"-{letter}")
        if option is None:
            return None
        if not _is_switch(option):
            return OptionMatch(option, 1 if word[position:] else 1 + option.nargs)
    return OptionMatch(options[f"-{word[-1]}"], 1)


def _is_switch(option: click.Option) -> bool:
    return option.is_flag or option.count
