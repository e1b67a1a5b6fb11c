"""Options of horovodrun, mpirun, srun, mpiexec, torchrun, accelerate, deepspeed and IBM's ddlrun: their meaning.

A long option of mpirun's is written with - or --.
"""

import re
import shlex
from collections.abc import Callable, Mapping

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
    "--network-interfaces": "--network-interface",
    # mpirun
    "--n": "-np", "--np": "-np", "--machinefile": "--hostfile", "--default-hostfile": "--hostfile",
    "--npernode": "--ranks-per-host", "--cpus-per-proc": "--cores-per-rank", "--cpus-per-rank": "--cores-per-rank",
    "--rf": "--rankfile",
    # srun, jsrun, and mpiexec of MPICH and Intel MPI
    "--ntasks": "-np", "--ntasks-per-node": "--ranks-per-host", "--tasks-per-node": "--ranks-per-host",
    "--cpus-per-task": "--cores-per-rank", "--nodelist": "--host", "-w": "--host",
    "--ppn": "--ranks-per-host", "--perhost": "--ranks-per-host", "-hosts": "--host", "-f": "--hostfile",
    "-iface": "--network-interface", "-bootstrap": "--launcher",
    # torchrun, accelerate and deepspeed
    "--max-restarts": "--restarts", "--shutdown-timeout": "--grace",
    "--local-ranks-filter": "--local-ranks", "--num-processes": "-np", "--num-machines": "--nnodes",
    "--num-gpus": "--ranks-per-host", "--num-nodes": "--nnodes",
    "--mpirun-hostfile": "--hostfile", "--deepspeed-hostfile": "--hostfile",
}  # fmt: skip
# Switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, Words] = {
    **dict.fromkeys(("--mpi", "--use-mpi", "--disable-cache", "--gloo", "--use-gloo"), ()),
    **dict.fromkeys(
        ("--timestamp-output", "--prefix-output-with-timestamp", "--prefix-timestamp", "-prepend-timestamp"),
        ("--output", "timestamp")),
    **dict.fromkeys(("--tag-output", "--label", "-l", "-prepend-rank"), ("--output", "tag")),
    "--log-without-timestamp": ("--no-log-with-timestamp",),
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

PLACEMENT = "ddlrun plans the placement; use --topology, --bind, --rankfile, and see ddlrun show placement"
STARTED_ONCE = "ddlrun is started once for all hosts (-H HOST,HOST); leave the option out"
ELASTIC = "ddlrun restarts a failed job instead; use --restarts, --spare-hosts, --min-topology"
ACCELERATE = "accelerate launch alone has it; give Accelerator() a plug-in in the script, or its variables by --env"
# Options without an equivalent, and the reason and remedy.
_UNSUPPORTED = {
    ELASTIC: "--min-np --max-np --min-num-proc --max-num-proc --host-discovery-script --elastic-timeout --reset-limit "
             "--blacklist-cooldown-range --elastic-training --min-elastic-nodes --max-elastic-nodes",
    "ddlrun starts ranks with mpirun; leave the option out": "--jsrun",
    "ddlrun check --check-build shows it": "--check-build -cb",
    "more ranks than cores run without it, and are not bound; leave it out": "--overload",
    # mpirun
    PLACEMENT: "--binding-args --cpu-set --cpu-list --bycore --cartofile --cpu-bind --distribution --hint "
               "--ntasks-per-socket --ntasks-per-core --cores-per-socket -rankmap -order-nodes -grr -hosts-group",
    "ddlrun show placement, hosts or machines shows that; leave the option out":
        "--report-bindings --display --display-map --display-devel-map --display-diffable-map --display-allocation "
        "--display-devel-allocation --display-topo -print-rank-map",
    "ranks start in the current folder; cd there first": "--wdir --wd --set-cwd-to-session-dir --chdir -D --workdir",
    "use --debug-rank N for a rank under a debugger": "--debugger --tv",
    "use --ship FOLDER, which copies it to all hosts": "--preload-files --preload-binary -s",
    "use --stall-timeout TIME, or ddlrun doctor": "--get-stack-traces --report-state-on-timeout",
    "an option of mpirun alone: pass it on in --mpi-args":
        "--tune -am -cf --personality --report-pid --report-uri --report-events --debug-daemons --debug-daemons-file "
        "--debug-devel -d --leave-session-attached --dvm --hnp --novm --ompi-server --launch-agent --enable-recovery "
        "--continuous --max-vm-size --fwd-mpirun-port --xml --xml-file --index-argv-by-rank --output-proctable "
        "--report-child-jobs-separately --enable-instant-on-support --use-regexp --runtime-options --with-ft "
        "--stream-buffering",
    "use --mpirun DIR/bin/mpirun for another Open MPI; ddlrun tells its daemons where it is": "--prefix",
    "set PATH, which all ranks get": "--path",
    "redirect the output: ddlrun launch ... 2>&1": "--merge-stderr-to-stdout",
    "separate the programs with a colon: -np 2 A : -np 3 B": "--app --multi-prog -configfile",
    "use --threads-per-core N, for hardware threads of a rank's cores": "--use-hwthread-cpus",
    "use --debug-rank N or --pty for a rank at this terminal": "--xterm",
    "ddlrun --version prints the version": "--version -V",
    "use --verbose for all reasons and the command, and ddlrun show for parts of a plan": "--debug",
    "use -np N for the number of ranks (mpirun), or --cores-per-rank N for their cores (srun)": "-c",
    "use --ranks-per-host N for ranks per host, or -H HOST,HOST for hosts": "-N",
    # srun, jsrun, and mpiexec of MPICH and Intel MPI
    "each rank gets a GPU of its host; use --ranks-per-host gpu, --gpu-order, --share-gpus":
        "--gres --gpus -G --gpus-per-task --gpus-per-socket --gpu-bind --ntasks-per-gpu -gpus-per-proc",
    "it belongs to the job's submission: see ddlrun submit --help":
        "--partition --account --qos --exclusive --constraint --reservation --mem --mem-per-cpu --mem-per-gpu "
        "--job-name --begin --dependency --licenses --comment --nice",
    "use ddlrun submit --account NAME": "-A",
    "use ddlrun submit --job-name NAME": "-J",
    "use --env NAME=VALUE, --env NAME or --export NAME,...": "-genv -env -genvlist -envlist -genvnone -envnone -E",
    "use --output dir=DIR for files per rank; the run folder has all output":
        "--error -o -e -outfile-pattern -errfile-pattern -prepend-pattern",
    "ddlrun has no resource sets; use --ranks-per-host N for ranks per host, --cores-per-rank N for their cores":
        "--nrs -a -g --tasks-per-rs --cpu-per-rs --gpu-per-rs --rs-per-host --rs-per-socket",
    "use --mpi-args": "--smpiargs",
    "redirect standard input: ddlrun launch ... <FILE; --stdin-rank N chooses the rank that reads it": "--input",
    "set TMPDIR before ddlrun, or use --env TMPDIR=DIR": "-tmpdir",
    "use --scheduler NAME": "-rmk",
    "leave the host out of -H HOST,HOST": "--exclude --nolocal -skip-launch-node",
    "use --debug-rank N, or --wrap RANKS:COMMAND for a tool": "-gdb -gtool -gtoolfile",
    "use --spawn-slots N for MPI_Comm_spawn": "-usize",
    "a failed rank ends the job in any case; leave the option out": "-disable-auto-cleanup --kill-on-bad-exit",
    "ddlrun chooses how ranks start; leave the option out": "--mpi",
    "use --membind local, interleave or gpu": "--mem-bind",
    "use --timeout with a unit, such as --timeout 60m": "--time",
    # torchrun, accelerate and deepspeed
    "ddlrun does not copy chosen lines; the run folder has a log per rank, to search with grep":
        "--duplicate-stdout-filters --duplicate-stderr-filters",
    ACCELERATE: "--use-deepspeed --use-fsdp --use-megatron-lm --use-parallelism-config --use-xpu --ipex "
                "--deepspeed-config-file --deepspeed-multinode-launcher --deepspeed-moe-layer-cls-names "
                "--gradient-clipping --downcast-bf16 --main-training-function --tpu",
    "accelerate's config file is not read; give its values as options (--config-file is ddlrun's own)": "--config_file",
    "name hosts with -H HOST,HOST, and GPUs of each host with CUDA_VISIBLE_DEVICES=0,1 before ddlrun":
        "--include --deepspeed-inclusion-filter --deepspeed-exclusion-filter --gpu-ids",
    "start ddlrun under taskset --cpu-list LIST: ranks are bound to these cores": "--bind-core-list",
    "use --mpi-args for mpirun, -p and -i for ssh": "--launcher-args",
    STARTED_ONCE: "--no-ssh",
    "activate the environment before ddlrun, whose Python starts the ranks; --ship env copies it": "--venv-script",
    "ddlrun network tune tunes ddlrun and Horovod; DeepSpeed's settings need its own launcher": "--autotuning",
    "ddlrun takes no plug-in for logs; ddlrun logs prints those of each rank": "--logs-specs",
}  # fmt: skip
UNSUPPORTED = {name: reason for reason, names in _UNSUPPORTED.items() for name in names.split()}
# The beginnings of options that are unsupported for the reason ACCELERATE.
FAMILIES = ("--fsdp-", "--megatron-lm-", "--fp8-", "--zero", "--offload-", "--parallelism-config-", "--dynamo-use-")
# Option that changes nothing -> reason, printed as a note.
WITHOUT_EFFECT = {
    **dict.fromkeys(("--gloo", "--use-gloo"), "ddlrun starts Horovod over MPI"),
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--master-addr", "--master-port", "--main-process-ip",
         "--main-process-port"),
        "ddlrun sets MASTER_ADDR and MASTER_PORT for every rank; --env MASTER_ADDR=... sets your own"),
    "--local-addr": "ddlrun chooses the addresses on the network of the job; see --network",
    "--monitor-interval": "ddlrun notices the end of a rank at once",
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


# Option -> function from its name and value to words for ddlrun, which raises InputError on a wrong value.
VALUES: Mapping[str, Callable[[str, str], Words]] = {
    **dict.fromkeys(WITHOUT_EFFECT.keys() - SWITCHES.keys(), lambda _name, _value: ()),
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
