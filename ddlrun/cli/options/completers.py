"""The values of options and arguments for the completion of command lines."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import click
from click.shell_completion import CompletionItem

from ddlrun.application.inputs import configs_folder
from ddlrun.application.known_hosts import hostfile_names, known_hosts
from ddlrun.environment.frameworks import FRAMEWORKS
from ddlrun.mapping.topology_request import UNITS
from ddlrun.network.presets import BETWEEN, INSIDE
from ddlrun.preflight.judge import NAMES
from ddlrun.runs.names import LAST, strip_date
from ddlrun.runs.registry import read_runs
from ddlrun.runs.state_folders import newest_first
from ddlrun.runs.store import state_folder
from ddlrun.ship.request import CODE_WORD, ENVIRONMENT_WORD


@dataclass(frozen=True, slots=True)
class Completer:
    """The values that a parameter may have."""

    values: Callable[[click.Context, str], Iterable[str]] = lambda *_: ()
    """Returns the values for a command line, and for the word to complete."""
    listed: bool = False
    """The parameter is a list with commas."""
    paths: str | None = None
    """"file" or "dir" where it may also be a path."""


def complete_parameter(
    param: click.Parameter, ctx: click.Context, incomplete: str
) -> "list[CompletionItem[str]] | None":
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
    yield from sorted(name.removesuffix(".yaml") for name in os.listdir(f"{configs_folder()}/machines"))
    yield "local"


def _signals(_ctx: click.Context, _last: str) -> Iterator[str]:
    yield from (member.name.removeprefix("SIG") for member in signal.Signals)


def _active_runs(_ctx: click.Context, _last: str) -> Iterator[str]:
    yield from (run.run for run in read_runs(state_folder(os.environ)))


def _runs(ctx: click.Context, last: str) -> Iterator[str]:
    """Yield the names of all runs, or the words of their names for a word that is not a date, the latest first."""
    names = (*_active_runs(ctx, last), *newest_first(state_folder(os.environ)))
    yield from names
    if last:
        yield from (LAST, *map(strip_date, names))


def _hosts(ctx: click.Context, last: str) -> Iterable[str]:
    return hostfile_names(last) if last.startswith("@") else known_hosts(ctx.params.get("hostfile"))


def _spare_hosts(ctx: click.Context, last: str) -> Iterable[str]:
    return ("extra", *_hosts(ctx, last))


# Name of an option or an argument -> its values.
COMPLETERS = {
    "ranks_per_host": Completer(lambda *_: UNITS),
    "args": Completer(paths="file"),
    "config_file": Completer(lambda *_: ("none",), paths="file"),
    "export": Completer(lambda *_: ("ALL", "NONE", *sorted(os.environ)), listed=True),
    "fetch": Completer(listed=True, paths="file"),
    "forward_signals": Completer(_signals, listed=True),
    "frameworks": Completer(lambda *_: ("auto", *FRAMEWORKS), listed=True),
    "hosts": Completer(_hosts, listed=True),
    "machine": Completer(_presets, paths="file"),
    "variables": Completer(lambda *_: sorted(os.environ)),
    "named_hosts": Completer(_hosts, listed=True),
    "network": Completer(lambda *_: sorted(os.listdir("/sys/class/net")), listed=True),
    "checks": Completer(lambda *_: ("none", *NAMES), listed=True),
    "profile": Completer(lambda *_: ("auto", "none"), paths="file"),
    "rankfile": Completer(paths="file"),
    "run": Completer(_runs, paths="dir"),
    "runs": Completer(_active_runs),
    "changes": Completer(_runs, paths="dir"),
    "script": Completer(paths="file"),
    "ship": Completer(lambda *_: (CODE_WORD, ENVIRONMENT_WORD), listed=True, paths="file"),
    "spare_hosts": Completer(_spare_hosts, listed=True),
}
# Metavar of any other option -> its values.
COMPLETERS_BY_METAVAR = {
    "DIR": Completer(paths="dir"),
    "FILE": Completer(paths="file"),
    "FILE|PRESETS": Completer(lambda *_: (*INSIDE, *BETWEEN), listed=True, paths="file"),
}
