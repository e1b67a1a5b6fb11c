"""Options as keyword arguments in messages."""

import re
from collections.abc import Mapping, Sequence

import click

# A command with its options, or an option of the launch.
OPTION = r"\bddlrun [a-z-]+[^;,)]*|(?<![\w-])--?[A-Za-z][\w-]*"


def in_python(problem: str, given: Sequence[str]) -> str:
    """Return a message with the keyword arguments of ddlrun.launch in place of options; `given` has the options.

    >>> in_python("--grace 5x: no time; --overload permits it", [])
    'grace 5x: no time; overload=True permits it'
    >>> in_python("no such option --foo; see ddlrun launch --help", ["--foo=1"])
    'no such option foo; see ddlrun launch --help'
    """
    keywords = {word.partition("=")[0]: _keyword(word.partition("=")[0]) for word in given if word.startswith("-")}
    keywords |= _option_keywords()
    return re.sub(OPTION, lambda match: keywords.get(match[0], match[0]), problem)


def _option_keywords() -> Mapping[str, str]:
    """Return the keyword argument of each option of launch."""
    from ddlrun.cli.launch import command  # noqa: PLC0415 - 50 ms, for errors alone

    options = [param for param in command.params if isinstance(param, click.Option)]
    on = {name: f"{_keyword(name)}{'=True' if option.is_flag else ''}" for option in options for name in option.opts}
    off = {name: f"{_keyword(max(option.opts, key=len))}=False" for option in options for name in option.secondary_opts}
    return on | off


def _keyword(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
