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
    metavar: str | None = None

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
        metavar="MB",
    ),
    HorovodSetting(
        "cycle-time-ms",
        "params.cycle_time_ms",
        "HOROVOD_CYCLE_TIME",
        float,
        help="Milliseconds between two searches for tensors that are ready.",
        metavar="MS",
    ),
    HorovodSetting(
        "cache-capacity",
        "params.cache_capacity",
        "HOROVOD_CACHE_CAPACITY",
        int,
        help="Number of responses in the cache; 0: no cache.",
        metavar="N",
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
        "Allreduce with rings inside each host and rings across hosts.",
    ),
    HorovodSetting(
        "autotune",
        "autotune.enabled",
        "HOROVOD_AUTOTUNE",
        bool,
        _flag,
        "Tune Horovod's parameters during the run.",
    ),
    HorovodSetting(
        "autotune-log-file",
        "autotune.log_file",
        "HOROVOD_AUTOTUNE_LOG",
        str,
        help="Write autotuning's samples to a CSV file.",
        metavar="FILE",
    ),
    HorovodSetting(
        "autotune-warmup-samples",
        "autotune.warmup_samples",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        int,
        help="Samples that autotuning discards at the start.",
        metavar="N",
    ),
    HorovodSetting(
        "autotune-steps-per-sample",
        "autotune.steps_per_sample",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        int,
        help="Steps per sample of autotuning.",
        metavar="N",
    ),
    HorovodSetting(
        "autotune-bayes-opt-max-samples",
        "autotune.bayes_opt_max_samples",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        int,
        help="Maximum number of samples of autotuning.",
        metavar="N",
    ),
    HorovodSetting(
        "autotune-gaussian-process-noise",
        "autotune.gaussian_process_noise",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        float,
        help="Noise of the measurements that autotuning assumes.",
        metavar="NOISE",
    ),
    HorovodSetting(
        "timeline-filename",
        "timeline.filename",
        "HOROVOD_TIMELINE",
        str,
        help="Write Horovod's timeline to FILE (Chrome trace JSON).",
        metavar="FILE",
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
        "Warn if ranks wait too long for each other.",
    ),
    HorovodSetting(
        "stall-check-warning-time-seconds",
        "stall_check.warning_time_seconds",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        int,
        help="Time after which a stalled rank is reported.",
        metavar="SECONDS",
    ),
    HorovodSetting(
        "stall-check-shutdown-time-seconds",
        "stall_check.shutdown_time_seconds",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        int,
        help="Time after which a stalled job is ended; 0: never.",
        metavar="SECONDS",
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
        "num-nccl-streams",
        "library_options.num_nccl_streams",
        "HOROVOD_NUM_NCCL_STREAMS",
        int,
        help="Number of NCCL streams.",
        metavar="N",
    ),
    HorovodSetting(
        "thread-affinity",
        "library_options.thread_affinity",
        "HOROVOD_THREAD_AFFINITY",
        str,
        help="CPUs of Horovod's background threads.",
        metavar="CPU,...",
    ),
    HorovodSetting(
        "gloo-timeout-seconds",
        "library_options.gloo_timeout_seconds",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        int,
        help="Time after which a Gloo operation fails.",
        metavar="SECONDS",
    ),
    HorovodSetting(
        "log-level",
        "logging.level",
        "HOROVOD_LOG_LEVEL",
        str,
        help="Horovod's log level.",
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
