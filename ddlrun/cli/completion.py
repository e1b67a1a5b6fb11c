"""Completion of command lines in bash, zsh and fish.

The scripts in share/ start ddlrun with the variable _DDLRUN_COMPLETE, and click finds the option or the argument under
the cursor; `completers` has the values of each.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

Items: TypeAlias = "list[CompletionItem[str]]"  # generic since click 8.4


def complete_line(group: click.Group, variable: str) -> int:
    """Print the completions that a shell's script requests by a variable, or click's own script.

    Return the exit code.
    """
    shell, _, action = os.environ[variable].partition("_")
    if shell not in SHELLS:
        return 1
    completion = SHELLS[shell](group, {}, "ddlrun", variable)
    if action == "source":
        click.echo(completion.source(), nl=False)
        return 0
    with suppress(Exception):  # an unfinished line may have any error, and a message would stand in the user's prompt
        click.echo(completion.complete())
    return 0


class BashCompletion(BashComplete):
    """Completion in bash, which by default splits words at each =."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor, and the word under it; --name=value is one word."""
        args, incomplete = super().get_completion_args()
        *joined, last = join_values([*args, incomplete])
        self._split = last != incomplete
        return joined, last

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        """Return the completions: of the whole word, or of what bash takes for a word."""
        items = super().get_completions(args, incomplete)
        return items if self._split else with_option(items, incomplete)


class FishCompletion(FishComplete):
    """Completion in fish, which replaces the whole word."""

    def get_completions(self, args: list[str], incomplete: str) -> Items:
        """Return the completions of the whole word."""
        return with_option(super().get_completions(args, incomplete), incomplete)


SHELLS: dict[str, type[ShellComplete]] = {"bash": BashCompletion, "zsh": ZshComplete, "fish": FishCompletion}


def join_values(words: Sequence[str]) -> list[str]:
    """Join the words that bash has split at =.

    >>> join_values(["launch", "--machine", "=", "dgx"]), join_values(["--env", "A", "="])
    (['launch', '--machine=dgx'], ['--env', 'A='])
    """
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def with_option(items: Items, incomplete: str) -> Items:
    """Return completions of --name=value with --name= before each value."""
    name, equals, _ = incomplete.partition("=")
    if not equals or not name.startswith("-"):
        return items
    return [
        CompletionItem(f"{name}={item.value}", item.type, item.help) if item.type == "plain" else item for item in items
    ]
