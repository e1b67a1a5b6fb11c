"""Command lines of other launchers (horovodrun, torchrun, mpirun, ...) in words of ddlrun."""

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import click

from ddlrun.cli.console import print_note
from ddlrun.cli.options.argv import match_option, options_by_name
from ddlrun.cli.options.foreign import (
    MCA,
    RENAMED,
    SHARED,
    SWITCHES,
    VALUES,
    Words,
    find_note,
)
from ddlrun.cli.options.unsupported import ACCELERATE, FAMILIES, UNSUPPORTED
from ddlrun.errors import InputError
from ddlrun.wording import did_you_mean

FOREIGN = frozenset((*MCA, *RENAMED, *SWITCHES, *UNSUPPORTED, *VALUES))
# Option -> separator of its values, which add up if it is given several times.
JOINED = {"--mpi-args": " ", "--output": ","}
# Dashes that editors write for -.
DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{HORIZONTAL BAR}"


class TranslatedArgv(NamedTuple):
    """A command line in words of ddlrun, and notes on options that have no effect, or another one."""

    words: list[str]
    notes: tuple[str, ...]
    origins: Mapping[str, str]
    """Option of ddlrun -> the foreign one that it stands for, as typed."""

    def print_notes(self) -> None:
        """Print the notes."""
        for note in self.notes:
            print_note(note)


class _Translation(NamedTuple):
    """Words for ddlrun, the number of words that they replace, and a note."""

    words: Words
    consumed: int
    note: str | None = None
    """The note on the option, without its name."""


def translate(args: Sequence[str], params: Iterable[click.Parameter]) -> TranslatedArgv:
    """Return a command line with the foreign options before the script translated to ddlrun's.

    Raises InputError with a remedy for an option that has no equivalent.
    """
    options = options_by_name(params)
    foreign = FOREIGN - (options.keys() - VALUES.keys())
    rest, translated, origins = list(args), list[Words](), dict[str, str]()
    noted: dict[str, list[str]] = {}
    while rest and rest[0][:1] in ("-", *DASHES) and rest[0] not in ("-", "--"):
        typed = _split_value(rest[0])[0]
        rest[:1] = _respell(rest[0], options, foreign)
        match = None if rest[0].partition("=")[0] in foreign else match_option(rest[0], options)
        step = _Translation(tuple(rest[: match.words]), match.words) if match else _translate_first(rest, typed)
        if step is None:
            break
        _check_values(rest[: step.consumed], options)
        translated.append(step.words)
        origins |= {step.words[0]: typed} if step.words and match is None else {}
        if step.note:
            noted.setdefault(step.note, []).append(typed)
        del rest[: step.consumed]
    for name, separator in JOINED.items():
        translated = _join_values(translated, name, separator)
    notes = tuple(f"{', '.join(names)}: {note}" for note, names in noted.items())
    return TranslatedArgv([*chain(*translated), *rest], notes, origins)


def _join_values(options: Sequence[Words], name: str, separator: str) -> list[Words]:
    """Return the words of options, in which the values of one option are joined if it is given several times."""
    given = [words for words in options if words and words[0].partition("=")[0] == name]
    if len(given) < 2:
        return [*options]
    value = separator.join("=".join(words).partition("=")[2] for words in given)
    return [*(words for words in options if words not in given), (name, value)]


def _check_values(words: Sequence[str], options: Collection[str]) -> None:
    """Raise InputError where an option has another one as its value, unless the value is arguments of a program."""
    name, *values = words
    wrong = [value for value in values if value in options and not name.endswith(("arg", "args"))]
    if wrong:
        raise InputError(f"{name}: its value is missing before {wrong[0]}; is a variable of the command line unset?")


def _respell(word: str, options: Mapping[str, click.Option], foreign: frozenset[str]) -> list[str]:
    """Return a word as click reads it: -np2, -N2 and -n=2 as two words, -timeout and --ssh_port with dashes.

    Raises InputError for a dash that an editor has replaced, and for an unknown word that click would take for another
    option with its value, such as -pathname for -p.
    """
    name, equals, value = word.partition("=")
    if word[0] in DASHES:
        typed = f"-{word[1:]}" if f"-{name[1:]}" in options else f"--{word.lstrip(DASHES)}"
        raise InputError(f"{word}: its dash is not an ASCII hyphen; write {typed}")
    joined = re.fullmatch(r"(-np|-n|-p|-N|-c|-G)([0-9]+)", word)
    if joined is not None:
        return [*joined.groups()]
    known = {*options, *foreign}
    long = f"--{name.lstrip('-')}"
    forms = (long, long.replace("_", "-"))
    spelling = name
    if name not in known and (not foreign.isdisjoint(forms) or long in SHARED or name.startswith("--")):
        spelling = next((near for near in forms if near in known), name)
    if equals and spelling in options and not spelling.startswith("--"):
        return [spelling, value]
    if spelling not in known and word[:2] in ("-p", "-n") and len(word) > 2 and word[:2] in options:
        hint = did_you_mean(long, (option for option in options if option.startswith("--")))
        raise InputError(f"no such option {word}{hint}")
    return [f"{spelling}{equals}{value}"]


def _translate_first(args: Sequence[str], typed: str) -> _Translation | None:
    """Translate the foreign option that the words begin with; None if it is unknown or lacks its value.

    `typed` is its name in messages.
    """
    name, equals, joined = _split_value(args[0])
    if name in MCA and len(args) > 2:
        return _Translation(("--mpi-args", shlex.join((name, *args[1:3]))), 3)
    if name in SWITCHES and not equals:
        return _Translation(SWITCHES[name], 1, find_note(name, ""))
    if name in UNSUPPORTED:
        raise InputError(f"{typed}: {UNSUPPORTED[name]}")
    if name.replace("_", "-").startswith(FAMILIES):
        raise InputError(f"{typed}: {ACCELERATE}")
    if (name in RENAMED or name in VALUES) and (equals or len(args) > 1):
        value = joined if equals else args[1]
        words = VALUES[name](typed, value) if name in VALUES else (RENAMED[name], value)
        return _Translation(words, 1 if equals else 2, find_note(name, value))
    return None


def _split_value(word: str) -> tuple[str, str, str]:
    """Split a word at its =; a letter of torchrun's may stand before its value, as in -r3."""
    letter = re.fullmatch(r"(-[rt])([0-9].*)", word)
    return (letter[1], "=", letter[2]) if letter is not None else word.partition("=")
