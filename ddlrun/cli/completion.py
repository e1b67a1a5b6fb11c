"""Completion of command lines in bash, zsh and fish.

The scripts in share/ start ddlrun with the variable _DDLRUN_COMPLETE, and click finds the option or the argument under
the cursor. COMPLETERS has the values of each.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

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


class Completer(NamedTuple):
    """The values that a parameter may have."""

    values: Callable[[click.Context, str], Iterable[str]] = lambda *_: ()
    """Returns the values for a command line, and for the word to complete."""
    listed: bool = False
    """The parameter is a list with commas."""
    paths: str | None = None
    """"file" or "dir" where it may also be a path."""


def complete_parameter(param: click.Parameter, ctx: click.Context, incomplete: str) -> "Items | None":
    """Return the completions of a parameter's value; None where click knows its values, or nothing does."""
    metavar = param.metavar if isinstance(param, click.Option) else None
    completer = COMPLETERS.get(param.name or "") or COMPLETERS_BY_METAVAR.get(metavar or "")
    if completer is None:
        return None
    head, comma, last = incomplete.rpartition(",") if completer.listed else ("", "", incomplete)
    used = {*head.split(",")}
    values = (value for value in completer.values(ctx, last) if value.startswith(last) and value not in used)
    items = [CompletionItem(f"{head}{comma}{value}") for value in dict.fromkeys(values)]
    if completer.paths:  # first: shells offer paths where no other value fits
        items.insert(0, CompletionItem(incomplete, completer.paths))
    return items


def _presets(_ctx: click.Context, _last: str) -> Iterator[str]:
    from ddlrun.application.inputs import configs_folder  # noqa: PLC0415 - as all imports here: only for its parameter

    yield from sorted(name.removesuffix(".yaml") for name in os.listdir(f"{configs_folder()}/machines"))
    yield "local"


def _network_presets(_ctx: click.Context, _last: str) -> Iterable[str]:
    from ddlrun.network.presets import BETWEEN, INSIDE  # noqa: PLC0415

    return (*INSIDE, *BETWEEN)


def _frameworks(_ctx: click.Context, _last: str) -> Iterable[str]:
    from ddlrun.environment.frameworks import FRAMEWORKS  # noqa: PLC0415

    return ("auto", *FRAMEWORKS)


def _checks(_ctx: click.Context, _last: str) -> Iterable[str]:
    from ddlrun.preflight.judge import NAMES  # noqa: PLC0415

    return NAMES


def _units(_ctx: click.Context, _last: str) -> Iterable[str]:
    from ddlrun.mapping.topology_request import UNITS  # noqa: PLC0415

    return UNITS


def _signals(_ctx: click.Context, _last: str) -> Iterator[str]:
    import signal  # noqa: PLC0415

    yield from (member.name.removeprefix("SIG") for member in signal.Signals)


def _interfaces(_ctx: click.Context, _last: str) -> Iterable[str]:
    return sorted(os.listdir("/sys/class/net"))


def _variables(_ctx: click.Context, _last: str) -> Iterable[str]:
    return sorted(os.environ)


def _exports(_ctx: click.Context, _last: str) -> Iterable[str]:
    return ("ALL", "NONE", *sorted(os.environ))


def _active_runs(_ctx: click.Context, _last: str) -> Iterator[str]:
    from ddlrun.runs.registry import read_runs  # noqa: PLC0415
    from ddlrun.runs.store import state_folder  # noqa: PLC0415

    yield from (run.run for run in read_runs(state_folder(os.environ)))


def _runs(ctx: click.Context, last: str) -> Iterator[str]:
    """Yield the names of all runs, or the words of their names for a word that is no date, the latest first."""
    from ddlrun.runs.history import run_names  # noqa: PLC0415
    from ddlrun.runs.names import LAST, strip_date  # noqa: PLC0415
    from ddlrun.runs.store import state_folder  # noqa: PLC0415

    names = (*_active_runs(ctx, last), *run_names(state_folder(os.environ)))
    yield from names
    if last:
        yield from (LAST, *map(strip_date, names))


def _hosts(ctx: click.Context, last: str) -> Iterable[str]:
    from ddlrun.application.known_hosts import hostfile_names, known_hosts  # noqa: PLC0415

    return hostfile_names(last) if last.startswith("@") else known_hosts(ctx.params.get("hostfile"))


def _shipped(_ctx: click.Context, _last: str) -> Iterable[str]:
    from ddlrun.ship.request import CODE_WORD, ENVIRONMENT_WORD  # noqa: PLC0415

    return (CODE_WORD, ENVIRONMENT_WORD)


def _spare_hosts(ctx: click.Context, last: str) -> Iterable[str]:
    return ("extra", *_hosts(ctx, last))


# Name of an option or an argument -> its values.
COMPLETERS = {
    "accelerators": Completer(_units),
    "args": Completer(paths="file"),
    "config_file": Completer(lambda *_: ("none",), paths="file"),
    "export": Completer(_exports, listed=True),
    "fetch": Completer(listed=True, paths="file"),
    "forward_signals": Completer(_signals, listed=True),
    "frameworks": Completer(_frameworks, listed=True),
    "hosts": Completer(_hosts, listed=True),
    "machine": Completer(_presets, paths="file"),
    "named": Completer(_variables),
    "named_hosts": Completer(_hosts, listed=True),
    "network_interface": Completer(_interfaces, listed=True),
    "only_checks": Completer(_checks, listed=True),
    "profile": Completer(lambda *_: ("auto", "none"), paths="file"),
    "rankfile": Completer(paths="file"),
    "run": Completer(_runs, paths="dir"),
    "runs": Completer(_active_runs),
    "changes": Completer(_runs, paths="dir"),
    "script": Completer(paths="file"),
    "ship": Completer(_shipped, listed=True, paths="file"),
    "spare_hosts": Completer(_spare_hosts, listed=True),
}
# Metavar of any other option -> its values.
COMPLETERS_BY_METAVAR = {
    "DIR": Completer(paths="dir"),
    "FILE": Completer(paths="file"),
    "FILE|PRESETS": Completer(_network_presets, listed=True, paths="file"),
}
