"""A command's words as they were typed: which options they are, and where the script begins."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click


class SplitArgv(NamedTuple):
    """`options`: each option with its own words, in their order; `rest`: from the script on, or from a -- before it.

    An option that is not known, or lacks its value, begins the rest: click says what is wrong with it.
    """

    topology: str | None
    options: tuple[tuple[click.Option, tuple[str, ...]], ...]
    rest: tuple[str, ...]


def split_words(args: Sequence[str], params: Iterable[click.Parameter]) -> SplitArgv:
    """Split `[options] TOPOLOGY [options] SCRIPT ...`; every word comes back once, in its order."""
    known = {
        name: param for param in params if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }  # fmt: skip
    topology: str | None = None
    options: list[tuple[click.Option, tuple[str, ...]]] = []
    at = 0
    while at < len(args):
        if args[at] == "--" or not args[at].startswith("-") or args[at] == "-":
            if topology is not None or args[at] == "--":
                break
            topology = args[at]
            at += 1
            continue
        found = option_of(args[at], known)
        if found is None or at + found[1] > len(args):
            break
        options.append((found[0], tuple(args[at : at + found[1]])))
        at += found[1]
    return SplitArgv(topology, tuple(options), tuple(args[at:]))


def option_of(word: str, known: dict[str, click.Option]) -> tuple[click.Option, int] | None:
    """Return the option that a word is, and its number of words: --name=value, -np 4, -p22, -p 22, or switches."""
    name, _, value = word.partition("=")
    if name in known:
        option = known[name]
        return option, 1 if value or "=" in word or _is_switch(option) else 1 + option.nargs
    if word.startswith("--"):
        return None
    for place, letter in enumerate(word[1:], 2):
        option_of = known.get(f"-{letter}")
        if option_of is None:
            return None
        if not _is_switch(option_of):
            return option_of, 1 if word[place:] else 1 + option_of.nargs
    return known[f"-{word[-1]}"], 1


def _is_switch(option: click.Option) -> bool:
    return option.is_flag or option.count
