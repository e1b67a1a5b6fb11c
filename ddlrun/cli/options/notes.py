"""Notes on options without effect: after the script, or beside an option that excludes them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from ddlrun.application.inputs import read_text
from ddlrun.cli.console import print_note
from ddlrun.cli.options import Option
from ddlrun.cli.options.foreign import LIBRARY_VALUES, RENAMED, VALUES
from ddlrun.environment.secrets import REDACTED, redact
from ddlrun.errors import InputError, UnreachableError

# Headings of options that scripts seldom have themselves.
HEADINGS = frozenset({"Hosts", "Network", "Topology", "Placement", "Restarts", "Scheduler"})
# Parameter -> parameters that have no effect beside it, and the reason.
EXCLUDED = {
    "rankfile": (
        ("rank_order", "cores_per_rank", "reserve_cores", "core_kinds"),
        "the file names the cores",
    ),
}


def note_misplaced(script: str, args: Sequence[str], params: Iterable[click.Parameter]) -> None:
    """Print a note on options of ddlrun after a Python script whose text does not contain their names."""
    words = [script, *args]
    at = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if at is None or "--" in words[at:]:
        return
    misplaced = find_misplaced(words[at + 1 :], _read(words[at]), params)
    if misplaced:
        print_note(
            f"passed to {words[at]}, which does not mention it: {', '.join(misplaced)}; options of "
            "ddlrun stand before the script"
        )


def note_excluded(ctx: click.Context) -> None:
    """Print a note on options of the command line that have no effect beside others."""
    given = {
        param.name: param.opts[0]
        for param in ctx.command.params
        if param.name is not None and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    }
    for name, (excluded, reason) in EXCLUDED.items():
        options = [given[other] for other in excluded if name in given and other in given]
        if options:
            print_note(f"{', '.join(options)}: no effect with {given[name]}: {reason}")


def note_secrets(options: Mapping[str, Any], place: str) -> None:
    """Print a note on each NAME=VALUE of the command line that looks like a secret, and that a place shows."""
    for name, value in redact(dict(word.split("=", 1) for word in options["variables"] if "=" in word)).items():
        if value == REDACTED:
            print_note(f"--env {name}: its value is in {place}; export a secret, and use -x {name}")


@contextmanager
def note_on_descriptions() -> Iterator[None]:
    """Print how a dry run plans without the hosts where one cannot be reached."""
    try:
        yield
    except UnreachableError:
        print_note("with --machine PRESET|FILE|DIR, no host need be reachable")
        raise


def find_misplaced(args: Sequence[str], text: str | None, params: Iterable[click.Parameter]) -> list[str]:
    """Return the options of ddlrun among a script's arguments that the script's text does not contain."""
    if text is None:
        return []
    own = {name for param in params if isinstance(param, Option) and param.section in HEADINGS for name in param.opts}
    known = {*own, *RENAMED, *VALUES, "--dry-run"} - {"-n", *LIBRARY_VALUES}
    names = dict.fromkeys(word.partition("=")[0] for word in args if word.startswith("-"))
    plain = text.replace("-", "_")
    return [
        name for name in names if name.replace("_", "-") in known and name.lstrip("-").replace("-", "_") not in plain
    ]


def _read(path: str) -> str | None:
    try:
        return read_text(path, "script")
    except InputError:
        return None
