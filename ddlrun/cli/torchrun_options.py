"""Options of torchrun, accelerate launch and deepspeed: translated, accepted with a note, or rejected with a remedy."""

import re
from collections.abc import Callable

from ddlrun.errors import InputError

Words = tuple[str, ...]

STARTED_ONCE = "ddlrun is started once for all hosts (-H HOST,HOST); leave the option out"
ELASTIC = "ddlrun restarts a failed job instead; use --restarts, --spare-hosts, --min-topology"
RENDEZVOUS = "ddlrun sets MASTER_ADDR and MASTER_PORT for every rank; --env MASTER_ADDR=... sets your own"
ACCELERATE = "accelerate launch alone has it; give Accelerator() a plug-in in the script, or its variables by --env"
# Option -> option of ddlrun with the same value.
RENAMED = {
    "--max-restarts": "--restarts", "--log-dir": "--output-filename", "--shutdown-timeout": "--grace",
    "--local-ranks-filter": "--local-ranks", "--num-processes": "-np", "--num-machines": "--nnodes",
    "--num-gpus": "--accelerators", "--num-nodes": "--nnodes", "--enable-each-rank-log": "--output-filename",
    "--mpirun-hostfile": "--hostfile", "--deepspeed-hostfile": "--hostfile",
}  # fmt: skip
# Switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, Words] = {
    "--standalone": (), "--no-python": (), "--multi-gpu": (), "--module": ("-m",), "--same-network": (),
    **dict.fromkeys(("--enable-cpu-affinity", "--bind-cores-to-rank"), ()),  # ranks are bound
    **dict.fromkeys(("--no-ssh-check", "--force-multi", "--save-pid", "--no-local-rank", "--use-env"), ()),
    "--cpu": ("--env", "ACCELERATE_USE_CPU=true"),
    "--virtual-local-rank": ("--visible-gpus", "own", "--env", "LOCAL_RANK=0"),
}  # fmt: skip
# Option with a value that changes nothing -> reason, printed as a note.
WITHOUT_EFFECT = {
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--master-addr", "--master-port", "--main-process-ip",
         "--main-process-port"), RENDEZVOUS),
    "--local-addr": "ddlrun chooses the addresses on the network of the job; see --network",
    "--monitor-interval": "ddlrun notices the end of a rank at once",
    "--start-method": "every rank is a process of its own",
    "--event-log-handler": "ddlrun has no such handlers; ddlrun runs and ddlrun logs show what happened",
    **dict.fromkeys(("--node-rank", "--machine-rank"), STARTED_ONCE),
}  # fmt: skip
# The same for switches.
SWITCHES_WITHOUT_EFFECT = {"--run-path": "every rank is a Python of its own, which runs the script"}
# Option without an equivalent -> reason and remedy.
UNSUPPORTED = {
    **dict.fromkeys(
        ("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
        "ddlrun does not copy chosen lines; the run folder has a log per rank, to search with grep"),
    **dict.fromkeys(
        ("--use-deepspeed", "--use-fsdp", "--use-megatron-lm", "--use-parallelism-config", "--use-xpu", "--ipex",
         "--deepspeed-config-file", "--deepspeed-multinode-launcher", "--deepspeed-moe-layer-cls-names",
         "--gradient-clipping", "--downcast-bf16", "--main-training-function", "--tpu"), ACCELERATE),
    "--config_file": "accelerate's config file is not read; give its values as options (--config-file is ddlrun's own)",
    **dict.fromkeys(
        ("--include", "--deepspeed-inclusion-filter", "--deepspeed-exclusion-filter", "--gpu-ids"),
        "name hosts with -H HOST,HOST, and GPUs of each host with CUDA_VISIBLE_DEVICES=0,1 before ddlrun"),
    "--bind-core-list": "start ddlrun under taskset --cpu-list LIST: ranks are bound to these cores",
    "--launcher-args": "use --mpi-args for mpirun, -p and -i for ssh",
    "--no-ssh": STARTED_ONCE,
    "--venv-script": "activate the environment before ddlrun, whose Python starts the ranks; --ship env copies it",
    **dict.fromkeys(("--elastic-training", "--min-elastic-nodes", "--max-elastic-nodes"), ELASTIC),
    "--autotuning": "ddlrun tune measures the settings of ddlrun and Horovod; DeepSpeed's need its own launcher",
    "--logs-specs": "ddlrun takes no plug-in for logs; see --output-filename and --rank-logs",
}  # fmt: skip
# The same for all options that begin like this.
FAMILIES = ("--fsdp-", "--megatron-lm-", "--fp8-", "--zero", "--offload-", "--parallelism-config-", "--dynamo-use-")
# The modes of --numa-binding -> binding.
NUMA_BINDINGS = {"node": "numa", "socket": "package", "exclusive": "core", "core-complex": "core"}
# A value of --redirects and --tee: 0 to 3 for all local ranks, or for each one that is named.
STREAMS = r"[0-3]|\d+:[0-3](,\d+:[0-3])*"
# The signals that end a job of ddlrun, too.
ENDING_SIGNALS = frozenset(("INT", "TERM", "HUP", "QUIT"))


def translate_nproc_per_node(name: str, value: str) -> Words:
    """Translate the number of ranks per host, or the devices that they stand for. Raises InputError."""
    if value == "xpu":
        raise InputError(f"{name} {value}: ddlrun counts no Intel GPUs; write the number of ranks per host")
    units = {"auto": "gpu-or-core", "cpu": "core"}
    return "--accelerators", units.get(value, value)


def translate_nnodes(name: str, value: str) -> Words:
    """Translate the number of hosts. Raises InputError for a range."""
    low, _, high = value.partition(":")
    if high and low != high:
        raise InputError(f"{name} {value}: {ELASTIC}")
    return "--nnodes", low


def translate_numa_binding(name: str, value: str) -> Words:
    """Translate a mode of torch.numa.binding. Raises InputError."""
    if value not in NUMA_BINDINGS:
        raise InputError(f"{name} {value}: unknown binding; write one of {', '.join(NUMA_BINDINGS)}")
    return "--bind", NUMA_BINDINGS[value]


def translate_signals(_: str, value: str) -> Words:
    """Translate the signals that torchrun passes on; those that end a job need no option."""
    names = [word.strip().upper().removeprefix("SIG") for word in value.split(",")]
    others = [name for name in names if name and name not in ENDING_SIGNALS]
    return ("--forward-signals", ",".join(others)) if others else ()


def translate_streams(name: str, value: str) -> Words:
    """Translate --redirects or --tee to nothing: every rank has a log in any case. Raises InputError."""
    if re.fullmatch(STREAMS, value) is None:
        time = "; a time limit is --timeout, as in --timeout 60m" if name == "-t" else ""
        raise InputError(
            f"{name} {value}: write 0 to 3 for all local ranks, or LOCAL_RANK:0 to 3, such as 0:3,1:2{time}"
        )
    return ()


def translate_variable(variable: str) -> Callable[[str, str], Words]:
    """Return the translation of an option whose value is a variable of the ranks."""
    return lambda _, value: ("--env", f"{variable}={value}")


def translate_node_rank(name: str, value: str) -> Words:
    """Translate the number of this host to nothing. Raises InputError on a host other than the first."""
    if value != "0":
        raise InputError(f"{name} {value}: {STARTED_ONCE}")
    return ()


# Option -> function from its name and value to words for ddlrun.
VALUES: dict[str, Callable[[str, str], Words]] = {
    "--nproc-per-node": translate_nproc_per_node, "--nnodes": translate_nnodes,
    "--numa-binding": translate_numa_binding, "--signals-to-handle": translate_signals,
    "--rdzv-id": translate_variable("TORCHELASTIC_RUN_ID"), "--role": translate_variable("ROLE_NAME"),
    "--mixed-precision": translate_variable("ACCELERATE_MIXED_PRECISION"),
    "--gradient-accumulation-steps": translate_variable("ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    "--num-cpu-threads-per-process": translate_variable("OMP_NUM_THREADS"),
    "--mpirun-ccl": translate_variable("CCL_WORKER_COUNT"),
    "--dynamo-backend": lambda _, value: ("--env", f"ACCELERATE_DYNAMO_BACKEND={value.upper()}"),
    "--dynamo-mode": translate_variable("ACCELERATE_DYNAMO_MODE"),
    **dict.fromkeys(("--redirects", "-r", "--tee", "-t"), translate_streams),
    **dict.fromkeys(("--node-rank", "--machine-rank"), translate_node_rank),
}  # fmt: skip


def find_note(name: str, value: str) -> str | None:
    """Return the note on an option that has no effect, or another one than with torchrun; None where none is due."""
    reason = WITHOUT_EFFECT.get(name) or SWITCHES_WITHOUT_EFFECT.get(name)
    if reason is not None:
        return f"no effect: {reason}"
    if name in ("--redirects", "-r") and value != "0":
        return "the terminal shows all output, too; --ranks LIST limits it; the run folder has a log per rank"
    if (name, value) == ("--numa-binding", "core-complex"):
        return "each rank gets an equal share of the cores, beginning with those of its GPU's L3 domain"
    return None
