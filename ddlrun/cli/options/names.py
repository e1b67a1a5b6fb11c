"""Names of options as users type them, and suggestions for those that do not exist."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from ddlrun.cli.console import print_note
from ddlrun.cli.options.argv import match_option, options_by_name
from ddlrun.environment.library_settings import SETTINGS
from ddlrun.wording import nearest

# Names of the parameter of -H.
HOSTS = ("hosts", "named_hosts")
# Options of other programs -> option here.
SYNONYMS = {
    "--nproc": "-np", "--np": "-np", "--world-size": "-np", "--processes": "-np",
    **dict.fromkeys(("--accelerators", "--gpus-per-node", "--nproc-per-node"), "--ranks-per-host"),
    "--host-file": "--hostfile", "--rank-file": "--rankfile", "--config": "--config-file",
    "--binding": "--bind", "--dashboard": "--web", "--to": "--otlp", "--metrics": "--listen", "--load": "--machine",
    "--network-interface": "--network",
    "--spread": "--packing", "--skip-checks": "--checks", "--only-checks": "--checks",
    "--walltime": "--timeout", "--dryrun": "--dry-run", "--tail": "--lines",
}  # fmt: skip


def note_repeated_values(ctx: click.Context, args: Sequence[str], params: Iterable[click.Parameter]) -> None:
    """Print a note on each option that has several values, of which only the last counts, unless --quiet holds."""
    options, rest, given = options_by_name(params), list(args), dict[str, list[str]]()
    while rest and rest[0] != "--" and (ctx.allow_interspersed_args or rest[0].startswith("-")):
        match = match_option(rest[0], options) if rest[0].startswith("-") else None
        words = rest[: match.words if match else 1]
        if match and not match.option.multiple:
            given.setdefault(str(match.option.name), []).append(" ".join(words))
        del rest[: len(words)]
    if ctx.resilient_parsing or given.get("verbose", [""])[-1] == "--quiet":
        return
    for name, values in given.items():
        if len({*values}) > 1:
            remedy = "; write -H A,B" if name in HOSTS else ""
            print_note(f"{', '.join(values)}: only the last one counts, {values[-1]}{remedy}")


@contextmanager
def naming_unknown_options(
    ctx: click.Context, args: Sequence[str], params: Iterable[click.Parameter]
) -> Iterator[None]:
    """Report an option that does not exist as it was typed, with the nearest one that does.

    Raises click.UsageError.
    """
    options = options_by_name(params)
    try:
        yield
    except click.NoSuchOption as error:
        word = _typed_word(error.option_name, args, options)
        visible = [name for name, option in options.items() if not option.hidden and len(name) > 2]
        if "--fusion-threshold-mb" in visible:
            visible += [f"--{setting.option}" for setting in SETTINGS]
        hint = suggest_option(word, visible)
        if not hint and not ctx.allow_interspersed_args:
            hint = "; options of the script stand after its name"
        raise click.UsageError(f"no such option `{word}`{hint}", ctx) from error
    except click.BadOptionUsage as error:  # an option without its value, for which click does not name the command
        error.ctx = error.ctx or ctx
        raise


def suggest_option(word: str, names: Iterable[str]) -> str:
    """Return a question with the option that a word means, in brackets; empty where none is near.

    It is the nearest one without the dashes, or the only one that begins with a single letter.

    >>> suggest_option("-r", ["--rank", "--ranks", "--follow"]), suggest_option("--steps", ["--hosts"])
    (' (did you mean `--rank`?)', '')
    """
    typed, bare = word.lstrip("-"), {name.lstrip("-"): name for name in names}
    if len(typed) == 1:
        begun = sorted(name for name in bare if name.startswith(typed))
        meant = begun[0] if begun and all(name.startswith(begun[0]) for name in begun) else None
    else:
        synonyms = {other.lstrip("-"): name.lstrip("-") for other, name in SYNONYMS.items() if name in bare.values()}
        meant = nearest(typed, bare, synonyms)
    return "" if meant is None else f" (did you mean `{bare[meant]}`?)"


def _typed_word(name: str, args: Sequence[str], options: Mapping[str, click.Option]) -> str:
    """Return the name of an option as it was typed: click reports the first unknown letter of -topology."""
    if name.startswith("--"):
        return name
    words = (word.partition("=")[0] for word in args if word[:1] == "-" and word[:2] != "--" and name[1] in word)
    return next((word for word in words if match_option(word, options) is None), name)
