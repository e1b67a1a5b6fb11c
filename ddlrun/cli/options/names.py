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
    "--nproc": "-np", "--np": "-np", "--world-size": "-np",
    **dict.fromkeys(("--accelerators", "--gpus-per-node", "--nproc-per-node"), "--ranks-per-host"),
    "--host-file": "--hostfile", "--rank-file": "--rankfile", "--config": "--config-file",
    "--binding": "--bind", "--dashboard": "--web", "--to": "--otlp", "--metrics": "--listen", "--load": "--machine",
    "--network-interface": "--network",
    "--spread": "--packing", "--skip-checks": "--checks", "--only-checks": "--checks",
    "--walltime": "--timeout", "--dryrun": "--dry-run",
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
        if "--autotune" in visible:
            visible += [f"--{setting.option}" for setting in SETTINGS]
        synonyms = {typed: name for typed, name in SYNONYMS.items() if name in options}
        meant = _suggest(word.lstrip("-"), visible, synonyms)
        hint = "" if meant is None else f" (did you mean `{meant}`?)"
        if not hint and not ctx.allow_interspersed_args:
            hint = "; options of the script stand after its name"
        raise click.UsageError(f"no such option `{word}`{hint}", ctx) from error
    except click.BadOptionUsage as error:  # an option without its value, for which click does not name the command
        error.ctx = error.ctx or ctx
        raise


def _suggest(word: str, names: Iterable[str], synonyms: Mapping[str, str]) -> str | None:
    """Return the option that a word without its dashes means: the nearest one, or the only one with its one letter.

    >>> _suggest("r", ["--rank", "--ranks", "--follow"], {}), _suggest("steps", ["--hosts"], {})
    ('--rank', None)
    """
    if len(word) == 1:
        begun = sorted(name for name in names if name.startswith(f"--{word}"))
        return begun[0] if begun and all(name.startswith(begun[0]) for name in begun) else None
    bare = {name.lstrip("-"): name for name in names}
    meant = nearest(word, bare, {typed.lstrip("-"): name for typed, name in synonyms.items()})
    return None if meant is None else bare.get(meant, meant)


def _typed_word(name: str, args: Sequence[str], options: Mapping[str, click.Option]) -> str:
    """Return the name of an option as it was typed: click reports the first unknown letter of -topology."""
    if name.startswith("--"):
        return name
    words = (word.partition("=")[0] for word in args if word[:1] == "-" and word[:2] != "--" and name[1] in word)
    return next((word for word in words if match_option(word, options) is None), name)
