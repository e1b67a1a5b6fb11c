"""What the ranks find in their environment: what is passed on, and what ddlrun sets."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.machine import Machine
from ddlrun.machine.cpus import cpu_list
from ddlrun.mapping.local_ranks import LocalRankPlacement, spare_cores
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.policy import PlacementPolicy

# Passed on by name where the user has them; a pattern ends in *.
FAMILIES = (
    "PATH LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH PYTHON* VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LANG LC_* TZ "
    "OMP_* GOMP_* KMP_* MKL_* OPENBLAS_* BLIS_* NUMEXPR_* MPI4PY_* "
    "NCCL_* RCCL_* GLOO_* UCX_* UCC_* FI_* PSM2_* HFI_* SHARP_* IBV_* "
    "CUDA_* CUBLAS_* CUDNN_* NVIDIA_* HIP_* HSA_* ROCR_* ROCM_* MIOPEN_* GPU_* ZE_* ONEAPI_* "
    "MASTER_ADDR MASTER_PORT "
    "HOROVOD_* DDL_* DDLRUN_* TORCH_* TORCHINDUCTOR_* PYTORCH_* TRITON_* TF_* XLA_* JAX_* KERAS_* DEEPSPEED_* "
    "HF_* HUGGINGFACE_* TRANSFORMERS_* TOKENIZERS_* WANDB_* MLFLOW_* "
    "http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY"
).split()

_EXACT = frozenset(name for name in FAMILIES if not name.endswith("*"))
_PREFIXES = tuple(name[:-1] for name in FAMILIES if name.endswith("*"))
_SECRETIVE = r"(?i)TOKEN|SECRET|PASS|KEY|CREDENTIAL|COOKIE|DSN|AUTH(?!OR)|[^D]PWD"
_IN_A_URL = r"://[^/\s:@]*:[^/\s@]+@"  # user and password
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
REDACTED = "<redacted>"
# Linux takes 128 KiB for one variable, its name included.
MOST_CHARACTERS = 120_000


def _flag(value: object) -> str:
    return "1" if value else "0"


def _inverse(value: object) -> str:
    return "0" if value else "1"


def _megabytes(value: object) -> str:
    return str(int(float(str(value)) * 1048576))


class HorovodSetting(NamedTuple):
    """One Horovod setting: its option, its place in Horovod's YAML, its variable and how it is written."""

    option: str
    yaml: str
    variable: str
    kind: type
    write: Callable[[object], str] = str
    help: str = ""

    @property
    def parameter(self) -> str:
        """The option as a Python name."""
        return self.option.replace("-", "_")


# Horovod 0.28's launcher: horovod/runner/common/util/config_parser.py has the same names.
HOROVOD = (
    HorovodSetting(
        "fusion-threshold-mb",
        "params.fusion_threshold_mb",
        "HOROVOD_FUSION_THRESHOLD",
        float,
        _megabytes,
        "Fuse tensors up to this size, in MB; 0: no fusion.",
    ),
    HorovodSetting(
        "cycle-time-ms",
        "params.cycle_time_ms",
        "HOROVOD_CYCLE_TIME",
        float,
        help="Milliseconds between two looks for ready tensors.",
    ),
    HorovodSetting(
        "cache-capacity",
        "params.cache_capacity",
        "HOROVOD_CACHE_CAPACITY",
        int,
        help="Tensor responses kept in the cache; 0: none.",
    ),
    HorovodSetting(
        "hierarchical-allreduce",
        "params.hierarchical_allreduce",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        bool,
        _flag,
        "Allreduce inside each host first, then between hosts.",
    ),
    HorovodSetting(
        "hierarchical-allgather",
        "params.hierarchical_allgather",
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        bool,
        _flag,
        "Allgather inside each host first, then between hosts.",
    ),
    HorovodSetting(
        "torus-allreduce",
        "params.torus_allreduce",
        "HOROVOD_TORUS_ALLREDUCE",
        bool,
        _flag,
        "Allreduce as a 2D torus of local and crossing rings.",
    ),
    HorovodSetting(
        "autotune",
        "autotune.enabled",
        "HOROVOD_AUTOTUNE",
        bool,
        _flag,
        "Let Horovod tune its parameters while it runs.",
    ),
    HorovodSetting(
        "autotune-log-file",
        "autotune.log_file",
        "HOROVOD_AUTOTUNE_LOG",
        str,
        help="Write what autotuning tries to this CSV file.",
    ),
    HorovodSetting(
        "autotune-warmup-samples",
        "autotune.warmup_samples",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        int,
        help="Samples that autotuning throws away first.",
    ),
    HorovodSetting(
        "autotune-steps-per-sample",
        "autotune.steps_per_sample",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        int,
        help="Steps in one sample of autotuning.",
    ),
    HorovodSetting(
        "autotune-bayes-opt-max-samples",
        "autotune.bayes_opt_max_samples",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        int,
        help="Most samples that autotuning takes.",
    ),
    HorovodSetting(
        "autotune-gaussian-process-noise",
        "autotune.gaussian_process_noise",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        float,
        help="Noise that autotuning assumes, 0 to 1.",
    ),
    HorovodSetting(
        "timeline-filename",
        "timeline.filename",
        "HOROVOD_TIMELINE",
        str,
        help="Write Horovod's timeline (Chrome tracing JSON) to this file.",
    ),
    HorovodSetting(
        "timeline-mark-cycles",
        "timeline.mark_cycles",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        bool,
        _flag,
        "Mark cycles in the timeline.",
    ),
    HorovodSetting(
        "stall-check",
        "stall_check.enabled",
        "HOROVOD_STALL_CHECK_DISABLE",
        bool,
        _inverse,
        "Warn when ranks wait for each other too long.",
    ),
    HorovodSetting(
        "stall-check-warning-time-seconds",
        "stall_check.warning_time_seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        int,
        help="Seconds until a stalled rank is warned of.",
    ),
    HorovodSetting(
        "stall-check-shutdown-time-seconds",
        "stall_check.shutdown_time_seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        int,
        help="Seconds until a stalled job is ended; 0: never.",
    ),
    HorovodSetting(
        "mpi-threads-disable",
        "library_options.mpi_threads_disable",
        "HOROVOD_MPI_THREADS_DISABLE",
        bool,
        _flag,
        "Start MPI without thread support.",
    ),
    HorovodSetting(
        "num-nccl-streams", "library_options.num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS", int, help="NCCL streams."
    ),
    HorovodSetting(
        "thread-affinity",
        "library_options.thread_affinity",
        "HOROVOD_THREAD_AFFINITY",
        str,
        help="CPUs of Horovod's background threads.",
    ),
    HorovodSetting(
        "gloo-timeout-seconds",
        "library_options.gloo_timeout_seconds",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        int,
        help="Seconds until a Gloo operation fails.",
    ),
    HorovodSetting(
        "log-level",
        "logging.level",
        "HOROVOD_LOG_LEVEL",
        str,
        help="Horovod's log level: TRACE, DEBUG, INFO, WARNING, ERROR, FATAL.",
    ),
    HorovodSetting(
        "log-with-timestamp",
        "logging.with_timestamp",
        "HOROVOD_LOG_HIDE_TIME",
        bool,
        _inverse,
        "Write times into Horovod's log.",
    ),
    HorovodSetting(
        "log-hide-timestamp",
        "logging.hide_timestamp",
        "HOROVOD_LOG_HIDE_TIME",
        bool,
        _flag,
        "Leave times out of Horovod's log.",
    ),
)


def horovod_variables(values: Mapping[str, object]) -> dict[str, str]:
    """Return variables for the options that are set; `values` maps their parameters to values, None: left alone."""
    return {
        knob.variable: knob.write(values[knob.parameter]) for knob in HOROVOD if values.get(knob.parameter) is not None
    }


def lms_variables(values: Mapping[str, object]) -> dict[str, str]:
    """Return what tells `ddlrun.ddl.lms` its defaults; `values` has the options' parameters, None: left alone."""
    names = {"lms": "DDLRUN_LMS", "lms_frac": "DDLRUN_LMS_FRAC"}
    return {variable: str(values[name]) for name, variable in names.items() if values.get(name) is not None}


def parse_assignment(text: str) -> tuple[str, str]:
    """Part `K=V`. Raises InputError on a name that no shell can carry, or no `=`."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(_NAME, name):
        shown = f"{name}={REDACTED}" if equals else repr(name)
        raise InputError(f"--env {shown}: write NAME=VALUE, the name in letters, digits and _; -x NAME passes one on")
    if "\0" in value:
        raise InputError(f"--env {name}: the value has a NUL byte, which no environment can carry")
    return name, value


def check_name(name: str, option: str) -> None:
    """Raise InputError for a name that no shell can carry."""
    if not re.fullmatch(_NAME, name):
        raise InputError(f"{option} {name!r}: a variable's name is letters, digits and _")


def exported(environ: Iterable[str], named: Iterable[str]) -> tuple[str, ...]:
    """Return the names to pass on: the families', and those named with -x (whatever they are)."""
    families = (
        name for name in environ if (name in _EXACT or name.startswith(_PREFIXES)) and re.fullmatch(_NAME, name)
    )
    return tuple(sorted({*families, *named}))


def rank_variables(placement: Placement, mode: str, visible_gpus: str = "all") -> dict[str, str]:
    """Return what ddlrun tells every rank of the job's shape.

    DDLRUN_SEATS is what rank.py reads: for runs of equal hosts `HOSTS*SEAT;SEAT...`, joined by `/`. A seat
    is `threads@CPUs@GPUs@NICs`: the CPUs are OS indexes, left out where nobody measured them; the GPUs
    that the rank may see, `VENDOR=` and PCI addresses (numbers where nobody measured), its own first or,
    with `visible_gpus` "all", at the place of its local rank; the RDMA devices near it. DDLRUN_SPARES is there where
    cores are left, `HOSTS*CPUS;CPUS` in the same way: the CPUs of the cores that were reserved, then of the others.
    """
    variables = {
        "DDLRUN_TOPOLOGY": str(placement.topology),
        "DDLRUN_RANK_ORDER": placement.order.value,
        "DDLRUN_SEATS": _seats(placement, visible_gpus),
        "DDL_OPTIONS": f"-mode {mode}:{placement.topology}",
    }
    if placement.policy.threads_per_core:
        variables["DDLRUN_NARROW"] = "1"  # mpirun binds to whole cores: rank.py keeps to the PUs of the seat
    if spares := _spares(placement):
        variables["DDLRUN_SPARES"] = spares
    return variables


def _seats(placement: Placement, visible_gpus: str) -> str:
    groups = placement.groups()
    for cpus in (True, False):  # where hosts differ much, the CPUs go first: they only serve to check the binding
        texts = {id(seats): _seat_texts(seats, machine, visible_gpus, cpus=cpus) for _, machine, seats in groups}
        whole = _runs(texts[id(seats)] for seats in placement.bindings)
        if len(whole) <= MOST_CHARACTERS:
            return whole
    return ""


def _spares(placement: Placement) -> str:
    """Return what DDLRUN_SPARES has to say; nothing where no core is left, or hosts differ too much for a variable."""
    texts = {id(seats): _spare_text(seats, machine, placement.policy) for _, machine, seats in placement.groups()}
    whole = (
        _runs(texts[id(seats)] for seats in placement.bindings) if any(text != ";" for text in texts.values()) else ""
    )
    return whole if len(whole) <= MOST_CHARACTERS else ""


def _spare_text(seats: Sequence[LocalRankPlacement], machine: Machine, policy: PlacementPolicy) -> str:
    per_core = policy.threads_per_core
    groups = spare_cores(machine, seats, policy) if machine.measured else ((), ())
    return ";".join(cpu_list(pu.os_index for core in cores for pu in core.pus[:per_core]) for cores in groups)


def _seat_texts(seats: Sequence[LocalRankPlacement], machine: Machine, visible_gpus: str, *, cpus: bool) -> str:
    measured = machine.measured and cpus
    return ";".join(
        f"{seat.threads}@"
        + (cpu_list(pu.os_index for core in seat.cores for pu in core.pus) * measured)
        + f"@{_visible(seats, seat, machine, visible_gpus)}@{','.join(seat.nics)}"
        for seat in seats
    )


def _visible(seats: Sequence[LocalRankPlacement], seat: LocalRankPlacement, machine: Machine, visible_gpus: str) -> str:
    """Return the GPUs that a rank may see, in the order that it counts them in."""
    if seat.gpu is None or seat.gpu.vendor is None or visible_gpus == "unchanged":
        return ""
    used = list(dict.fromkeys(other.gpu for other in seats if other.gpu is not None))
    rest = () if len(used) < len(seats) else [gpu for gpu in machine.gpus if gpu not in used]  # shared: rank % count
    gpus = [seat.gpu] if visible_gpus == "own" else [*used, *rest]
    mine = [gpu for gpu in gpus if gpu.vendor == seat.gpu.vendor]
    if not machine.measured and mine == list(machine.gpus):
        return ""
    return f"{seat.gpu.vendor}={','.join(gpu.pci_address or str(gpu.number) for gpu in mine)}"


def _runs(texts: Iterable[str]) -> str:
    return "/".join(f"{len(list(run))}*{text}" for text, run in groupby(texts))


def redacted(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the values of secrets left out, fit to be shown."""
    return {
        name: REDACTED if re.search(_SECRETIVE, name) or re.search(_IN_A_URL, value) else value
        for name, value in variables.items()
    }
