"""Names of options: former names, and suggestions for names that do not exist."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from ddlrun.cli.argv import match_option, options_by_name
from ddlrun.wording import did_you_mean

# The release that removes the former names.
REMOVED_IN = "0.2.0"
# Options of other programs -> option here.
SYNONYMS = {
    "--nproc": "-np", "--np": "-np", "--ranks-per-host": "--accelerators", "--gpus-per-node": "--accelerators",
    "--nodelist": "--host", "--host-file": "--hostfile", "--rank-file": "--rankfile", "--config": "--config-file",
    "--binding": "--bind", "--walltime": "--timeout", "--dryrun": "--dry-run",
}  # fmt: skip


def replace_old_names(
    args: Sequence[str], params: Iterable[click.Parameter], *, interspersed: bool
) -> tuple[list[str], dict[str, str]]:
    """Return a command line with the present names of options, and the former names with the present ones.

    Words after `--` stay, and without `interspersed` those after the first argument.
    """
    options = options_by_name(params)
    present = {old: option.opts[0] for option in options.values() for old in getattr(option, "old", ())}
    if not present:
        return list(args), {}
    words, rest = list[str](), list(args)
    renamed: dict[str, str] = {}
    while rest and rest[0] != "--" and (interspersed or rest[0].startswith("-")):
        name, equals, value = rest[0].partition("=")
        if name in present:
            renamed[name] = present[name]
            rest[0] = f"{present[name]}{equals}{value}"
        match = match_option(rest[0], options) if rest[0].startswith("-") else None
        count = match.words if match else 1
        words += rest[:count]
        del rest[:count]
    return [*words, *rest], renamed


def note_old_name(ctx: click.Context, old: str, new: str) -> None:
    """Print a note on the former name of an option; none for a shell's completion."""
    if not ctx.resilient_parsing:
        click.echo(f"ddlrun: note: {old} is now {new}; release {REMOVED_IN} removes the old name", err=True)


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
        hint = did_you_mean(f"--{word.lstrip('-')}" if len(word) > 2 else word, visible, SYNONYMS)
        raise click.UsageError(f"no such option {word}{hint}", ctx) from error
    except click.BadOptionUsage as error:  # an option without its value, for which click does not name the command
        error.ctx = error.ctx or ctx
        raise


def _typed_word(name: str, args: Sequence[str], options: Mapping[str, click.Option]) -> str:
    """Return the name of an option as it was typed: click reports the first unknown letter of -topology."""
    if name.startswith("--"):
        return name
    words = (word.partition("=")[0] for word in args if word[:1] == "-" and word[:2] != "--" and name[1] in word)
    return next((word for word in words if match_option(word, options) is None), name)
