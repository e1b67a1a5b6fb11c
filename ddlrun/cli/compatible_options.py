"""Options of other launchers (horovodrun, torchrun, mpirun, ...): translated, or rejected with a remedy."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import click

from ddlrun.cli import srun_options, torchrun_options
from ddlrun.cli.argv import match_option, options_by_name
from ddlrun.cli.torchrun_options import ELASTIC, Words
from ddlrun.errors import InputError

PLACEMENT = "ddlrun plans the placement; use --topology, --bind, --rankfile, and see ddlrun show placement"
# Foreign option -> option of ddlrun with the same value.
RENAMED = {
    **srun_options.RENAMED,
    **torchrun_options.RENAMED,
    "-hostfile": "--hostfile", "--machinefile": "--hostfile", "-machinefile": "--hostfile", "-host": "--host",
    "--npernode": "--accelerators", "-npernode": "--accelerators", "--slots-per-host": "--accelerators",
    "--num-gpus": "--accelerators", "--num-nodes": "--nnodes",
    "-output-filename": "--output-filename", "-rankfile": "--rankfile", "-rf": "--rankfile", "--rf": "--rankfile",
    "--network-interfaces": "--network-interface",
}  # fmt: skip
# Foreign switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, Words] = {
    **srun_options.SWITCHES,
    **torchrun_options.SWITCHES,
    **dict.fromkeys(torchrun_options.SWITCHES_WITHOUT_EFFECT, ()),
    **dict.fromkeys(("--mpi", "--use-mpi", "--disable-cache", "--gloo", "--use-gloo"), ()),
    **dict.fromkeys(("--oversubscribe", "-oversubscribe"), ("--overload",)),
    "-tag-output": ("--tag-output",), "-q": ("--quiet",), "-quiet": ("--quiet",),
    "-prefix-timestamp": ("--timestamp-output",), "--prefix-output-with-timestamp": ("--timestamp-output",),
    "-timestamp-output": ("--timestamp-output",), "--log-without-timestamp": ("--no-log-with-timestamp",),
    "-allow-run-as-root": ("--allow-run-as-root",),
    "--pernode": ("--accelerators", "1"), "-pernode": ("--accelerators", "1"),
}  # fmt: skip
# Foreign option without an equivalent -> reason and remedy.
UNSUPPORTED = {
    **srun_options.UNSUPPORTED,
    **torchrun_options.UNSUPPORTED,
    **dict.fromkeys(
        ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script", "--elastic-timeout",
         "--reset-limit", "--blacklist-cooldown-range"), ELASTIC),
    **dict.fromkeys(
        ("--rank-by", "-rank-by", "--binding-args", "--cpus-per-proc", "--cpu-set",
         "--report-bindings", "-report-bindings", "--display-map", "-display-map"), PLACEMENT),
    "--jsrun": "ddlrun starts ranks with mpirun; leave the option out",
    **dict.fromkeys(("-wdir", "--wdir", "-wd"), "ranks start in the current folder; cd there first"),
    "-c": "use -np N for the number of ranks (mpirun), or --cores-per-rank N for their cores (srun)",
    "--debug": "use --verbose for all reasons and the command, and ddlrun show for parts of a plan",
    "-N": "use --accelerators N for ranks per host, or -H HOST,HOST for hosts",
}  # fmt: skip
MCA = ("--mca", "-mca", "--gmca", "-gmca", "--prtemca", "-prtemca", "--pmixmca", "-pmixmca")
BINDINGS = {
    "none": "none", "core": "core", "hwthread": "core", "numa": "numa", "socket": "package", "package": "package",
}  # fmt: skip


def _translate_bind(name: str, value: str) -> Words:
    if value not in BINDINGS:
        raise InputError(f"{name} {value}: unknown binding; write one of {', '.join(BINDINGS)}, or use --rankfile")
    return "--bind", BINDINGS[value]


def _translate_mapping(name: str, value: str) -> Words:
    """Translate --map-by where it only names a number per host, or lets ranks share cores. Raises InputError."""
    policy, _, modifiers = value.partition(":")
    per_host = re.fullmatch(r"ppr:([1-9][0-9]*):node", value)
    if per_host is not None:
        return "--accelerators", per_host[1]
    if policy in ("", "slot", "core") and modifiers.lower() in ("oversubscribe", "overload-allowed"):
        return ("--overload",)
    raise InputError(f"{name} {value}: {PLACEMENT}")


# Foreign option -> function from its name and value to words for ddlrun.
VALUES: dict[str, Callable[[str, str], Words]] = {
    **torchrun_options.VALUES,
    **dict.fromkeys(torchrun_options.WITHOUT_EFFECT.keys() - torchrun_options.VALUES.keys(), lambda _name, _value: ()),
    **dict.fromkeys(("--bind-to", "-bind-to"), _translate_bind),
    **dict.fromkeys(("--map-by", "-map-by"), _translate_mapping),
}  # fmt: skip
FOREIGN = frozenset((*MCA, *RENAMED, *SWITCHES, *UNSUPPORTED, *VALUES))
OVER_MPI = "no effect: ddlrun starts Horovod over MPI"
NOTES = dict.fromkeys(("--gloo", "--use-gloo"), OVER_MPI)


class TranslatedArgv(NamedTuple):
    """A command line in words of ddlrun, and notes on options that have no effect, or another one."""

    words: list[str]
    notes: tuple[str, ...]

    def print_notes(self) -> None:
        """Print the notes."""
        for note in self.notes:
            click.echo(f"ddlrun: note: {note}", err=True)


class _Translation(NamedTuple):
    """Words for ddlrun, the number of words that they replace, and a note."""

    words: Words
    consumed: int
    note: str | None = None


def translate(args: Sequence[str], params: Iterable[click.Parameter]) -> TranslatedArgv:
    """Return a command line with the foreign options before the script translated to ddlrun's.

    Raises InputError with a remedy for an option that has no equivalent.
    """
    options = options_by_name(params)
    foreign = FOREIGN - (options.keys() - VALUES.keys())
    rest, translated, notes = list(args), list[str](), list[str]()
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        match = None if rest[0].partition("=")[0] in foreign else match_option(rest[0], options)
        step = _Translation(tuple(rest[: match.words]), match.words) if match else _translate_first(rest)
        if step is None:
            break
        translated += step.words
        notes += [step.note] if step.note else []
        del rest[: step.consumed]
    return TranslatedArgv([*translated, *rest], tuple(notes))


def _translate_first(args: Sequence[str]) -> _Translation | None:
    """Translate the foreign option that the words begin with; None where it is unknown, or lacks its value."""
    name, equals, joined = _split_value(args[0])
    plain = name.replace("_", "-") if name.startswith("--") else name
    if plain in MCA and len(args) > 2:
        mpi_args = (f"--{plain.lstrip('-')}", args[1], args[2])
        return _Translation(tuple(word for mpi_arg in mpi_args for word in ("--mpiarg", mpi_arg)), 3)
    if plain in SWITCHES and not equals:
        return _Translation(SWITCHES[plain], 1, _find_note(name, plain, ""))
    if plain in UNSUPPORTED:
        raise InputError(f"{name}: {UNSUPPORTED[plain]}")
    if (plain in RENAMED or plain in VALUES) and (equals or len(args) > 1):
        value = joined if equals else args[1]
        words = VALUES[plain](name, value) if plain in VALUES else (RENAMED[plain], value)
        return _Translation(words, 1 if equals else 2, _find_note(name, plain, value))
    return None


def _split_value(word: str) -> tuple[str, str, str]:
    """Split a word at its =; a letter of torchrun's may stand before its value, as in -r3."""
    letter = re.fullmatch(r"(-[rt])([0-9].*)", word)
    return (letter[1], "=", letter[2]) if letter is not None else word.partition("=")


def _find_note(name: str, plain: str, value: str) -> str | None:
    note = NOTES.get(plain) or torchrun_options.find_note(plain, value)
    return f"{name}: {note}" if note else None
