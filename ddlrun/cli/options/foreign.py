"""Options of horovodrun, mpirun, srun, mpiexec, torchrun, accelerate, deepspeed and IBM's ddlrun: their meaning.

A long option of mpirun's is written with - or --.
"""

import re
import shlex
from collections.abc import Callable, Mapping

from ddlrun.cli.options.unsupported import ELASTIC, PLACEMENT, STARTED_ONCE
from ddlrun.environment.library_settings import SETTINGS, SHOWN, LibrarySetting
from ddlrun.errors import InputError

Words = tuple[str, ...]

# Options that ddlrun has, too, which mpirun and mpiexec accept with one dash.
SHARED = (
    "--host", "--hosts", "--hostfile", "--rankfile", "--output",
    "--allow-run-as-root", "--timeout", "--quiet", "--verbose", "--launcher", "--membind",
)  # fmt: skip
# Options with a name and a value, which are passed on to mpirun.
MCA = ("--mca", "--gmca", "--prtemca", "--pmixmca")
# Option -> option of ddlrun with the same value.
RENAMED = {
    "--slots-per-host": "--ranks-per-host", "--accelerators": "--ranks-per-host",
    "--network-interface": "--network", "--network-interfaces": "--network",
    # mpirun
    "--n": "-np", "--np": "-np", "--machinefile": "--hostfile", "--default-hostfile": "--hostfile",
    "--npernode": "--ranks-per-host", "--cpus-per-proc": "--cores-per-rank", "--cpus-per-rank": "--cores-per-rank",
    "--rf": "--rankfile",
    # srun, jsrun, and mpiexec of MPICH and Intel MPI
    "--ntasks": "-np", "--ntasks-per-node": "--ranks-per-host", "--tasks-per-node": "--ranks-per-host",
    "--cpus-per-task": "--cores-per-rank", "--nodelist": "--host", "-w": "--host",
    "--ppn": "--ranks-per-host", "--perhost": "--ranks-per-host", "-hosts": "--host", "-f": "--hostfile",
    "-iface": "--network", "-bootstrap": "--launcher",
    # torchrun, accelerate and deepspeed
    "--max-restarts": "--restarts", "--shutdown-timeout": "--grace",
    "--local-ranks-filter": "--local-ranks", "--num-processes": "-np", "--num-machines": "--nnodes",
    "--num-gpus": "--ranks-per-host", "--num-nodes": "--nnodes",
    "--mpirun-hostfile": "--hostfile", "--deepspeed-hostfile": "--hostfile",
}  # fmt: skip
# Switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, Words] = {
    **{
        f"--{no}{setting.option}": ("--env", f"{setting.variable}={setting.render(not no, '')}")
        for setting in SETTINGS if setting.is_switch and setting.option not in SHOWN
        for no in ("", "no-")
    },
    **dict.fromkeys(("--mpi", "--use-mpi", "--disable-cache", "--gloo", "--use-gloo"), ()),
    **dict.fromkeys(
        ("--timestamp-output", "--prefix-output-with-timestamp", "--prefix-timestamp", "-prepend-timestamp"),
        ("--output", "timestamp")),
    **dict.fromkeys(("--tag-output", "--label", "-l", "-prepend-rank"), ("--output", "tag")),
    "--log-without-timestamp": ("--env", "HOROVOD_LOG_HIDE_TIME=1"),
    # mpirun
    **dict.fromkeys(
        ("--noprefix", "--oversubscribe", "--nooversubscribe", "--disable-recovery", "--show-progress",
         "--do-not-resolve"), ()),
    "-q": ("--quiet",),
    "--pernode": ("--ranks-per-host", "1"),
    "--bind-to-core": ("--bind", "core"), "--bind-to-socket": ("--bind", "package"),
    "--bynode": ("--rank-order", "ddl"), "--byslot": ("--rank-order", "host"), "--do-not-launch": ("--dry-run",),
    # srun and mpiexec
    "--unbuffered": (), "-genvall": (), "-envall": (),
    "-rr": ("--rank-order", "ddl"),
    "-print-all-exitcodes": (), "-silent-abort": (), "-info": ("--verbose",),
    **dict.fromkeys(("-u", "-X", "-K", "--overlap", "--exact"), ()), "-Q": ("--quiet",),
    # torchrun, accelerate and deepspeed
    "--standalone": (), "--no-python": (), "--multi-gpu": (), "--module": ("-m",), "--same-network": (),
    "--run-path": (), **dict.fromkeys(("--enable-cpu-affinity", "--bind-cores-to-rank"), ()),  # ranks are bound
    **dict.fromkeys(("--no-ssh-check", "--force-multi", "--save-pid", "--no-local-rank", "--use-env"), ()),
    "--cpu": ("--env", "ACCELERATE_USE_CPU=true"),
    "--virtual-local-rank": ("--visible-gpus", "own", "--env", "LOCAL_RANK=0"),
}  # fmt: skip

# Option that changes nothing -> reason, printed as a note.
WITHOUT_EFFECT = {
    **dict.fromkeys(("--gloo", "--use-gloo"), "ddlrun starts Horovod over MPI"),
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--master-addr", "--master-port", "--main-process-ip",
         "--main-process-port"),
        "ddlrun sets MASTER_ADDR and MASTER_PORT for every rank; --env MASTER_ADDR=... sets your own"),
    "--local-addr": "ddlrun chooses the addresses on the network of the job; see --network",
    "--monitor-interval": "ddlrun notices the end of a rank at once",
    "--log-line-prefix-template": "lines begin with [RANK@HOST]; see --output",
    "--start-method": "every rank is a process of its own",
    "--event-log-handler": "ddlrun has no such handlers; ddlrun runs and ddlrun logs show what happened",
    **dict.fromkeys(("--node-rank", "--machine-rank"), STARTED_ONCE),
    "--run-path": "every rank is a Python of its own, which runs the script",
}  # fmt: skip

# Values of --bind-to and --numa-binding -> those of --bind, of --rank-by -> those of --rank-order.
BINDINGS = {
    "none": "none", "core": "core", "hwthread": "core", "numa": "numa", "socket": "package", "package": "package",
}  # fmt: skip
NUMA_BINDINGS = {"node": "numa", "socket": "package", "exclusive": "core", "core-complex": "core"}
RANKINGS = {"slot": "host", "node": "ddl"}
# Policies and modifiers of --map-by -> words for ddlrun.
POLICIES: dict[str, Words] = {**dict.fromkeys(("", "slot", "core"), ()), "node": ("--rank-order", "ddl")}
MODIFIERS: dict[str, Words] = dict.fromkeys(("", "nooversubscribe", "oversubscribe", "overload-allowed"), ())
# Devices of --nproc-per-node -> unit of --ranks-per-host.
UNITS = {"auto": "gpu-or-core", "cpu": "core"}
# A value of --redirects and --tee: 0 to 3 for all local ranks, or for each one that is named.
STREAMS = r"[0-3]|\d+:[0-3](,\d+:[0-3])*"
# The signals that end a job of ddlrun, too.
ENDING_SIGNALS = frozenset(("INT", "TERM", "HUP", "QUIT"))


def _translate_bind(name: str, value: str) -> Words:
    policy = value.partition(":")[0]
    if policy not in BINDINGS:
        raise InputError(f"{name} {value}: unknown binding; write one of {', '.join(BINDINGS)}, or use --rankfile")
    return "--bind", BINDINGS[policy]


def _translate_mapping(name: str, value: str) -> Words:
    """Translate --map-by where it names ranks per host or package, the order of ranks, their cores, or a rank file."""
    per_unit = re.match(r"ppr:([1-9][0-9]*):(node|socket|package)(?![^:])", value)
    policy, _, modifiers = value[0 if per_unit is None else per_unit.end() :].partition(":")
    if policy == "rankfile" and modifiers.startswith("file="):
        return "--rankfile", modifiers.removeprefix("file=")
    words = POLICIES.get(policy)
    if per_unit is not None:
        is_host = per_unit[2] == "node"
        words = ("--ranks-per-host", per_unit[1]) if is_host else _per_package(name, per_unit[1], value)
    for modifier in re.split("[:,]", modifiers.lower()):
        cores = re.fullmatch(r"pe=([1-9][0-9]*)", modifier)
        more = MODIFIERS.get(modifier) if cores is None else ("--cores-per-rank", cores[1])
        words = None if words is None or more is None else (*words, *more)
    if words is None:
        raise InputError(f"{name} {value}: {PLACEMENT}")
    return words


def _per_package(name: str, value: str, typed: str = "") -> Words:
    if value != "1":
        raise InputError(f"{name} {typed or value}: write the number of ranks per host: --ranks-per-host N")
    return "--ranks-per-host", "package"


def _translate_ranking(name: str, value: str) -> Words:
    if value not in RANKINGS:
        raise InputError(f"{name} {value}: {PLACEMENT}")
    return "--rank-order", RANKINGS[value]


def _translate_stdin(name: str, value: str) -> Words:
    if not value.isdecimal():
        raise InputError(
            f"{name} {value}: only one rank can read standard input: --stdin-rank N; for none, redirect it: </dev/null"
        )
    return "--stdin-rank", value


def _translate_nproc_per_node(name: str, value: str) -> Words:
    if value == "xpu":
        raise InputError(f"{name} {value}: ddlrun counts no Intel GPUs; write the number of ranks per host")
    return "--ranks-per-host", UNITS.get(value, value)


def _translate_nnodes(name: str, value: str) -> Words:
    low, _, high = value.partition(":")
    if high and low != high:
        raise InputError(f"{name} {value}: {ELASTIC}")
    return "--nnodes", low


def _translate_numa_binding(name: str, value: str) -> Words:
    if value not in NUMA_BINDINGS:
        raise InputError(f"{name} {value}: unknown binding; write one of {', '.join(NUMA_BINDINGS)}")
    return "--bind", NUMA_BINDINGS[value]


def _translate_signals(_: str, value: str) -> Words:
    names = [word.strip().upper().removeprefix("SIG") for word in value.split(",")]
    others = [name for name in names if name and name not in ENDING_SIGNALS]
    return ("--forward-signals", ",".join(others)) if others else ()


def _translate_streams(name: str, value: str) -> Words:
    """Translate --redirects or --tee to nothing: every rank has a log in any case."""
    if re.fullmatch(STREAMS, value) is None:
        time = "; a time limit is --timeout, as in --timeout 60m" if name == "-t" else ""
        raise InputError(
            f"{name} {value}: write 0 to 3 for all local ranks, or LOCAL_RANK:0 to 3, such as 0:3,1:2{time}"
        )
    return ()


def _translate_host_number(name: str, value: str) -> Words:
    if value != "0":
        raise InputError(f"{name} {value}: {STARTED_ONCE}")
    return ()


def _variable(variable: str) -> Callable[[str, str], Words]:
    return lambda _, value: ("--env", f"{variable}={value}")


def _setting(setting: LibrarySetting) -> Callable[[str, str], Words]:
    return lambda name, value: ("--env", f"{setting.variable}={setting.render(value, name)}")


# Option with a value -> function, for settings of libraries that are variables of the ranks.
LIBRARY_VALUES = {
    f"--{setting.option}": _setting(setting)
    for setting in SETTINGS
    if not setting.is_switch and setting.option not in SHOWN
}
# Option -> function from its name and value to words for ddlrun, which raises InputError on a wrong value.
VALUES: Mapping[str, Callable[[str, str], Words]] = {
    **dict.fromkeys(WITHOUT_EFFECT.keys() - SWITCHES.keys(), lambda _name, _value: ()),
    **LIBRARY_VALUES,
    "--mpiarg": lambda _, value: ("--mpi-args", shlex.quote(value)),  # IBM's ddlrun
    **dict.fromkeys(
        ("--output-filename", "--log-dir", "--enable-each-rank-log"), lambda _, value: ("--output", f"dir={value}")),
    "--bind-to": _translate_bind, "--map-by": _translate_mapping, "--rank-by": _translate_ranking,
    "--npersocket": _per_package, "--stdin": _translate_stdin,
    "--ppr": lambda name, value: _translate_mapping(name, f"ppr:{value}"),
    "--nproc-per-node": _translate_nproc_per_node, "--nnodes": _translate_nnodes,
    "--numa-binding": _translate_numa_binding, "--signals-to-handle": _translate_signals,
    **dict.fromkeys(("--redirects", "-r", "--tee", "-t"), _translate_streams),
    **dict.fromkeys(("--node-rank", "--machine-rank"), _translate_host_number),
    "--dynamo-backend": lambda _, value: ("--env", f"ACCELERATE_DYNAMO_BACKEND={value.upper()}"),
    "--rdzv-id": _variable("TORCHELASTIC_RUN_ID"), "--role": _variable("ROLE_NAME"),
    "--mixed-precision": _variable("ACCELERATE_MIXED_PRECISION"),
    "--gradient-accumulation-steps": _variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    "--num-cpu-threads-per-process": _variable("OMP_NUM_THREADS"),
    "--mpirun-ccl": _variable("CCL_WORKER_COUNT"), "--dynamo-mode": _variable("ACCELERATE_DYNAMO_MODE"),
}  # fmt: skip


def find_note(name: str, value: str) -> str | None:
    """Return the note on an option that has no effect, or another one than with torchrun; None where none is due."""
    if name in WITHOUT_EFFECT:
        return f"no effect: {WITHOUT_EFFECT[name]}"
    if name in ("--redirects", "-r") and value != "0":
        return "the terminal shows all output, too; --ranks LIST limits it; the run folder has a log per rank"
    if (name, value) == ("--numa-binding", "core-complex"):
        return "each rank gets an equal share of the cores, beginning with those of its GPU's L3 domain"
    return None
