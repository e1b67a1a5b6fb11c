"""Settings of Horovod and of ddlrun.ddl.lms: their options, keys in the config file, and variables of the ranks.

The options and the keys are those of horovodrun 0.28 (horovod/runner/common/util/config_parser.py).
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.units import parse_bytes

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def _count(text: str) -> str:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return str(int(text))


def _number(text: str, most: float = 1e300) -> str:
    if not 0 <= float(text) <= most:
        raise ValueError(text)
    return str(float(text))


def _kilobytes(text: str) -> str:
    return _count(text) if text.isdigit() else str(math.ceil(parse_bytes(text, "") / 1024))


def _level(text: str) -> str:
    if text.upper() not in LEVELS:
        raise ValueError(text)
    return text.upper()


# Kind of a value -> its name, and a function from its text to the variable's, which raises ValueError or InputError.
KINDS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "count": ("a whole number of at least 0", _count),
    "number": ("a number of at least 0", _number),
    "share": ("a number from 0 to 1", lambda text: _number(text, 1)),
    "megabytes": ("a number of at least 0", lambda text: str(int(float(_number(text)) * 1048576))),
    "kilobytes": ("a size, such as 500 (KB) or 1MB", _kilobytes),
    "level": (f"one of {', '.join(LEVELS)}", _level),
    "text": ("text", str),
}
# Kinds of switches -> the variable's text where they are on, and off.
SWITCHES = {"switch": ("1", "0"), "inverse": ("0", "1")}


class LibrarySetting(NamedTuple):
    """A setting that ranks get as a variable."""

    option: str
    yaml: str
    variable: str
    kind: str
    """One of KINDS or SWITCHES."""

    @property
    def parameter(self) -> str:
        """The option as a Python name."""
        return self.option.replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether the setting is on or off."""
        return self.kind in SWITCHES

    def render(self, value: object, where: str) -> str:
        """Return the text of the variable. Raises InputError, which begins with `where`."""
        if self.is_switch:
            return SWITCHES[self.kind][not value]
        name, convert = KINDS[self.kind]
        try:
            return convert(str(value))
        except (ValueError, InputError) as error:
            raise InputError(f"{where}: {value!r} is not {name}") from error


# docs/reference/library-settings.md shows this table.
SETTINGS = tuple(
    LibrarySetting(*row)
    for row in (
        ("fusion-threshold-mb", "params.fusion_threshold_mb", "HOROVOD_FUSION_THRESHOLD", "megabytes"),
        ("cycle-time-ms", "params.cycle_time_ms", "HOROVOD_CYCLE_TIME", "number"),
        ("cache-capacity", "params.cache_capacity", "HOROVOD_CACHE_CAPACITY", "count"),
        ("hierarchical-allreduce", "params.hierarchical_allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE", "switch"),
        ("hierarchical-allgather", "params.hierarchical_allgather", "HOROVOD_HIERARCHICAL_ALLGATHER", "switch"),
        ("torus-allreduce", "params.torus_allreduce", "HOROVOD_TORUS_ALLREDUCE", "switch"),
        ("autotune", "autotune.enabled", "HOROVOD_AUTOTUNE", "switch"),
        ("autotune-log-file", "autotune.log_file", "HOROVOD_AUTOTUNE_LOG", "text"),
        ("autotune-warmup-samples", "autotune.warmup_samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "count"),
        ("autotune-steps-per-sample", "autotune.steps_per_sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "count"),
        ("autotune-bayes-opt-max-samples", "autotune.bayes_opt_max_samples",
         "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "count"),
        ("autotune-gaussian-process-noise", "autotune.gaussian_process_noise",
         "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "share"),
        ("timeline-filename", "timeline.filename", "HOROVOD_TIMELINE", "text"),
        ("timeline-mark-cycles", "timeline.mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "switch"),
        ("stall-check", "stall_check.enabled", "HOROVOD_STALL_CHECK_DISABLE", "inverse"),
        ("stall-check-warning-time-seconds", "stall_check.warning_time_seconds",
         "HOROVOD_STALL_CHECK_TIME_SECONDS", "count"),
        ("stall-check-shutdown-time-seconds", "stall_check.shutdown_time_seconds",
         "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "count"),
        ("mpi-threads-disable", "library_options.mpi_threads_disable", "HOROVOD_MPI_THREADS_DISABLE", "switch"),
        ("num-nccl-streams", "library_options.num_nccl_streams", "HOROVOD_NUM_NCCL_STREAMS", "count"),
        ("thread-affinity", "library_options.thread_affinity", "HOROVOD_THREAD_AFFINITY", "text"),
        ("gloo-timeout-seconds", "library_options.gloo_timeout_seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS", "count"),
        ("log-level", "logging.level", "HOROVOD_LOG_LEVEL", "level"),
        ("log-with-timestamp", "logging.with_timestamp", "HOROVOD_LOG_HIDE_TIME", "inverse"),
        ("log-hide-timestamp", "logging.hide_timestamp", "HOROVOD_LOG_HIDE_TIME", "switch"),
        ("lms", "ddl.lms", "DDLRUN_LMS", "kilobytes"),
        ("lms-frac", "ddl.lms_frac", "DDLRUN_LMS_FRAC", "share"),
    )
)  # fmt: skip
# Settings that are options in the help of launch, too.
SHOWN = ("fusion-threshold-mb", "hierarchical-allreduce")


def render_shown_variables(values: Mapping[str, object]) -> dict[str, str]:
    """Return variables for the options of SHOWN that are set; `values` maps parameters to values, None: unset."""
    return {
        setting.variable: setting.render(values[setting.parameter], f"`--{setting.option}`")
        for setting in SETTINGS
        if setting.option in SHOWN and values.get(setting.parameter) is not None
    }
