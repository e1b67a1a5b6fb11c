"""Options of other launchers (horovodrun, torchrun, mpirun, ...): translated, or rejected with a remedy."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import click

from ddlrun.cli import srun_options
from ddlrun.cli.argv import match_option, options_by_name
from ddlrun.errors import InputError

STARTED_ONCE = "ddlrun is started once for all hosts (-H HOST,HOST); leave the option out"
RENDEZVOUS = (
    "ddlrun sets MASTER_ADDR and MASTER_PORT for every rank; leave the option out, or set them: --env MASTER_ADDR=..."
)
ELASTIC = "ddlrun restarts a failed job instead; use --restarts, --spare-hosts, --min-topology"
PLACEMENT = "ddlrun plans the placement; use --topology, --bind, --rankfile, and see ddlrun show placement"
# Foreign option -> option of ddlrun with the same value.
RENAMED = srun_options.RENAMED | {
    "-hostfile": "--hostfile", "--machinefile": "--hostfile", "-machinefile": "--hostfile", "-host": "--host",
    "--npernode": "--accelerators", "-npernode": "--accelerators", "--slots-per-host": "--accelerators",
    "--num-gpus": "--accelerators", "--num-processes": "-np", "--num-nodes": "--nnodes", "--num-machines": "--nnodes",
    "--max-restarts": "--restarts", "--log-dir": "--output-filename",
    "-output-filename": "--output-filename", "-rankfile": "--rankfile", "-rf": "--rankfile", "--rf": "--rankfile",
    "--network-interfaces": "--network-interface",
}  # fmt: skip
# Foreign switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, tuple[str, ...]] = srun_options.SWITCHES | {
    "--mpi": (), "--use-mpi": (), "--disable-cache": (), "--standalone": (), "--no-python": (), "--multi-gpu": (),
    "--module": ("-m",), "-tag-output": ("--tag-output",), "-q": ("--quiet",), "-quiet": ("--quiet",),
    "-prefix-timestamp": ("--timestamp-output",), "--prefix-output-with-timestamp": ("--timestamp-output",),
    "-timestamp-output": ("--timestamp-output",), "--log-without-timestamp": ("--no-log-with-timestamp",),
    "-allow-run-as-root": ("--allow-run-as-root",),
    "--pernode": ("--accelerators", "1"), "-pernode": ("--accelerators", "1"),
}  # fmt: skip
# Foreign option without an equivalent -> reason and remedy.
UNSUPPORTED = srun_options.UNSUPPORTED | {
    **dict.fromkeys(("--node-rank", "--machine-rank"), STARTED_ONCE),
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--local-addr", "--master-addr",
         "--master-port", "--main-process-ip", "--main-process-port"), RENDEZVOUS),
    **dict.fromkeys(
        ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script", "--elastic-timeout",
         "--reset-limit", "--blacklist-cooldown-range"), ELASTIC),
    **dict.fromkeys(
        ("--map-by", "-map-by", "--rank-by", "-rank-by", "--binding-args", "--cpus-per-proc", "--cpu-set",
         "--report-bindings", "-report-bindings", "--display-map", "-display-map"), PLACEMENT),
    **dict.fromkeys(
        ("--oversubscribe", "-oversubscribe"),
        "use --overload, which lets ranks share cores, or --spawn-slots for MPI_Comm_spawn"),
    **dict.fromkeys(("--gloo", "--use-gloo", "--jsrun"), "ddlrun starts ranks with MPI; leave the option out"),
    **dict.fromkeys(("-wdir", "--wdir", "-wd"), "ranks start in the current folder; cd there first"),
    **dict.fromkeys(("--tee", "--redirects"), "the run folder has all output; see --output-filename and --ranks"),
    "-c": "use -np N for the number of ranks (mpirun), or --cores-per-rank N for their cores (srun)",
    "--debug": "use --verbose for all reasons and the command, and ddlrun show for parts of a plan",
    "-N": "use --accelerators N for ranks per host, or -H HOST,HOST for hosts",
}  # fmt: skip
MCA = ("--mca", "-mca", "--gmca", "-gmca", "--prtemca", "-prtemca", "--pmixmca", "-pmixmca")
BINDINGS = {
    "none": "none", "core": "core", "hwthread": "core", "numa": "numa", "socket": "package", "package": "package",
}  # fmt: skip


def _translate_nproc_per_node(_: str, value: str) -> tuple[str, ...]:
    return {"auto": (), "cpu": ("--accelerators", "core")}.get(value, ("--accelerators", value))


def _translate_nnodes(name: str, value: str) -> tuple[str, ...]:
    low, _, high = value.partition(":")
    if high and low != high:
        raise InputError(f"{name} {value}: {ELASTIC}")
    return "--nnodes", low


def _translate_bind(name: str, value: str) -> tuple[str, ...]:
    if value not in BINDINGS:
        raise InputError(f"{name} {value}: unknown binding; write one of {', '.join(BINDINGS)}, or use --rankfile")
    return "--bind", BINDINGS[value]


# Foreign option -> function from its name and value to words for ddlrun.
VALUES: dict[str, Callable[[str, str], tuple[str, ...]]] = {
    "--nproc-per-node": _translate_nproc_per_node, "--nnodes": _translate_nnodes, "--bind-to": _translate_bind,
    "-bind-to": _translate_bind,
}  # fmt: skip
FOREIGN = frozenset((*MCA, *RENAMED, *SWITCHES, *UNSUPPORTED, *VALUES))


class _Translation(NamedTuple):
    """Words for ddlrun, and the number of words that they replace."""

    words: tuple[str, ...]
    consumed: int


def translate(args: Sequence[str], params: Iterable[click.Parameter]) -> list[str]:
    """Return a command line with the foreign options before the script translated to ddlrun's.

    Raises InputError with a remedy for an option that has no equivalent.
    """
    options = options_by_name(params)
    foreign = FOREIGN - (options.keys() - VALUES.keys())
    rest, translated = list(args), list[str]()
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        match = None if rest[0].partition("=")[0] in foreign else match_option(rest[0], options)
        step = _Translation(tuple(rest[: match.words]), match.words) if match else _translate_first(rest)
        if step is None:
            break
        translated += step.words
        del rest[: step.consumed]
    return [*translated, *rest]


def _translate_first(args: Sequence[str]) -> _Translation | None:
    """Translate the foreign option that the words begin with; None where it is unknown, or lacks its value."""
    name, equals, joined = args[0].partition("=")
    plain = name.replace("_", "-") if name.startswith("--") else name
    if plain in MCA and len(args) > 2:
        mpi_args = (f"--{plain.lstrip('-')}", args[1], args[2])
        return _Translation(tuple(word for mpi_arg in mpi_args for word in ("--mpiarg", mpi_arg)), 3)
    if plain in SWITCHES and not equals:
        return _Translation(SWITCHES[plain], 1)
    if plain in UNSUPPORTED:
        raise InputError(f"{name}: {UNSUPPORTED[plain]}")
    if (plain in RENAMED or plain in VALUES) and (equals or len(args) > 1):
        value = joined if equals else args[1]
        words = VALUES[plain](name, value) if plain in VALUES else (RENAMED[plain], value)
        return _Translation(words, 1 if equals else 2)
    return None
