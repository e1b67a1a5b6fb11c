"""Options of horovodrun, torchrun and mpirun: into ours, or an error that names ours."""

from collections.abc import Callable, Iterable, Sequence

import click

from ddlrun.cli.argv import option_of
from ddlrun.errors import InputError

ONCE = "ddlrun is started once, for all hosts (-H HOST,HOST); leave it out"
MEETING = "ddlrun gives every rank MASTER_ADDR and MASTER_PORT; leave it out, or set yours: --env MASTER_ADDR=..."
ELASTIC = "ddlrun starts a failed job again instead: --restarts, --spare-hosts, --min-topology"
PLACING = "ddlrun plans that: --topology, --bind, --rankfile; see ddlrun show placement"
# Theirs -> ours, with the same value.
SAME = {
    "-hostfile": "--hostfile", "--machinefile": "--hostfile", "-machinefile": "--hostfile", "-host": "--host",
    "--npernode": "--accelerators", "-npernode": "--accelerators", "--slots-per-host": "--accelerators",
    "--num-gpus": "--accelerators", "--num-processes": "-np", "--num-nodes": "--nnodes", "--num-machines": "--nnodes",
    "-c": "-np", "--max-restarts": "--restarts", "--log-dir": "--output-filename",
    "-output-filename": "--output-filename", "-rankfile": "--rankfile", "-rf": "--rankfile", "--rf": "--rankfile",
    "--network-interfaces": "--network-interface",
}  # fmt: skip
# Switches: theirs -> ours; none where ddlrun does that anyway.
SWITCHES: dict[str, tuple[str, ...]] = {
    "--mpi": (), "--use-mpi": (), "--disable-cache": (), "--standalone": (), "--no-python": (), "--multi-gpu": (),
    "--module": ("-m",), "-tag-output": ("--tag-output",), "-q": ("--quiet",), "-quiet": ("--quiet",),
    "-prefix-timestamp": ("--timestamp-output",), "--prefix-output-with-timestamp": ("--timestamp-output",),
    "-timestamp-output": ("--timestamp-output",), "--log-without-timestamp": ("--no-log-with-timestamp",),
    "-allow-run-as-root": ("--allow-run-as-root",),
    "--pernode": ("--accelerators", "1"), "-pernode": ("--accelerators", "1"),
}  # fmt: skip
# What ddlrun has no word for, and what to do.
REFUSED = {
    **dict.fromkeys(("--node-rank", "--machine-rank"), ONCE),
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--local-addr", "--master-addr",
         "--master-port", "--main-process-ip", "--main-process-port"), MEETING),
    **dict.fromkeys(
        ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script", "--elastic-timeout",
         "--reset-limit", "--blacklist-cooldown-range"), ELASTIC),
    **dict.fromkeys(
        ("--map-by", "-map-by", "--rank-by", "-rank-by", "--binding-args", "--cpus-per-proc", "--cpu-set",
         "--report-bindings", "-report-bindings", "--display-map", "-display-map"), PLACING),
    **dict.fromkeys(("--oversubscribe", "-oversubscribe"), "ranks that share cores: --overload"),
    **dict.fromkeys(("--gloo", "--use-gloo", "--jsrun"), "ddlrun starts ranks through MPI; leave it out"),
    **dict.fromkeys(("-wdir", "--wdir", "-wd"), "ranks start in the folder that you are in: cd there first"),
    **dict.fromkeys(("--tee", "--redirects"), "the run folder has all output; see --output-filename, --ranks"),
    "-N": "ranks on each host: --accelerators N; hosts: -H HOST,HOST",
}  # fmt: skip
MCA = ("--mca", "-mca", "--gmca", "-gmca", "--prtemca", "-prtemca", "--pmixmca", "-pmixmca")
BINDINGS = {
    "none": "none", "core": "core", "hwthread": "core", "numa": "numa", "socket": "package", "package": "package",
}  # fmt: skip


def _per_node(_: str, value: str) -> tuple[str, ...]:
    return {"auto": (), "cpu": ("--accelerators", "core")}.get(value, ("--accelerators", value))


def _nnodes(name: str, value: str) -> tuple[str, ...]:
    low, _, high = value.partition(":")
    if high and low != high:
        raise InputError(f"{name} {value}: {ELASTIC}")
    return "--nnodes", low


def _bind(name: str, value: str) -> tuple[str, ...]:
    if value not in BINDINGS:
        raise InputError(f"{name} {value}: ddlrun binds to {', '.join(BINDINGS)} or by --rankfile")
    return "--bind", BINDINGS[value]


VALUES: dict[str, Callable[[str, str], tuple[str, ...]]] = {
    "--nproc-per-node": _per_node, "--nnodes": _nnodes, "--bind-to": _bind, "-bind-to": _bind,
}  # fmt: skip
THEIRS = frozenset((*MCA, *SAME, *SWITCHES, *REFUSED, *VALUES))


def translate(args: Sequence[str], params: Iterable[click.Parameter]) -> list[str]:
    """Return the words of a launch with other launchers' options before the script as ours.

    Raises InputError for one that has no like, saying what to do.
    """
    known = {
        name: param for param in params if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }  # fmt: skip
    left, done = list(args), list[str]()
    while left and left[0].startswith("-") and left[0] not in ("-", "--"):
        ours = option_of(left[0], known) if left[0].partition("=")[0] not in THEIRS else None
        if ours is not None:
            done += left[: ours[1]]
            del left[: ours[1]]
        elif not _take(left, done):
            break
    return [*done, *left]


def _take(left: list[str], done: list[str]) -> bool:
    """Move one option of another launcher from `left` to `done` as ours; False: it is nobody's."""
    name, equals, joined = left[0].partition("=")
    plain = name.replace("_", "-") if name.startswith("--") else name
    if plain in MCA and len(left) > 2:
        words = (f"--{plain.lstrip('-')}", left[1], left[2])
        done += [word for one in words for word in ("--mpiarg", one)]
        del left[:3]
    elif plain in SWITCHES and not equals:
        done += SWITCHES[plain]
        del left[0]
    elif plain in REFUSED:
        raise InputError(f"{name}: {REFUSED[plain]}")
    elif (plain in SAME or plain in VALUES) and (equals or len(left) > 1):
        value = joined if equals else left[1]
        done += VALUES[plain](name, value) if plain in VALUES else (SAME[plain], value)
        del left[: 1 if equals else 2]
    else:
        return False
    return True
