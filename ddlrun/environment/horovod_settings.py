"""Horovod's settings: their options, keys in the config file, and variables."""

from collections.abc import Callable, Mapping
from typing import NamedTuple


def _flag(value: object) -> str:
    return "1" if value else "0"


def _inverse(value: object) -> str:
    return "0" if value else "1"


def _megabytes(value: object) -> str:
    return str(int(float(str(value)) * 1048576))


class HorovodSetting(NamedTuple):
    """A setting of Horovod."""

    option: str
    yaml: str
    """Its key in the config file, which is Horovod's own."""
    variable: str
    kind: type
    render: Callable[[object], str] = str
    """Function that turns a value into the text of the variable."""
    help: str = ""

    @property
    def parameter(self) -> str:
        """The option as a Python name."""
        return self.option.replace("-", "_")


# The names are those of Horovod 0.28: horovod/runner/common/util/config_parser.py.
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
        help="Milliseconds between two cycles that look for ready tensors.",
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
        help="Samples that autotuning discards at the start.",
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
        help="Largest number of samples that autotuning takes.",
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
        "Warn when ranks wait too long for each other.",
    ),
    HorovodSetting(
        "stall-check-warning-time-seconds",
        "stall_check.warning_time_seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        int,
        help="Seconds until a warning about a stalled rank.",
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


def render_horovod_variables(values: Mapping[str, object]) -> dict[str, str]:
    """Return variables for the options that are set; `values` maps parameters to values, None: unset."""
    return {
        setting.variable: setting.render(values[setting.parameter])
        for setting in HOROVOD
        if values.get(setting.parameter) is not None
    }
