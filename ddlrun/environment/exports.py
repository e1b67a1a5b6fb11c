"""Exported variables: names that are passed on to ranks, assignments of the user, secrets."""

import re
from collections.abc import Iterable, Mapping

from ddlrun.errors import InputError

# Passed on by name where they are set; a pattern ends in *.
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


def render_lms_variables(values: Mapping[str, object]) -> dict[str, str]:
    """Return the variables with the defaults of `ddlrun.ddl.lms`; `values` maps parameters to values, None: unset."""
    names = {"lms": "DDLRUN_LMS", "lms_frac": "DDLRUN_LMS_FRAC"}
    return {variable: str(values[name]) for name, variable in names.items() if values.get(name) is not None}


def parse_assignment(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`. Raises InputError without `=`, or on a name that no shell can carry."""
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


def select_exports(environ: Iterable[str], named: Iterable[str]) -> tuple[str, ...]:
    """Return the names to pass on, sorted: those of FAMILIES, and those that the user named with -x or set."""
    families = (
        name for name in environ if (name in _EXACT or name.startswith(_PREFIXES)) and re.fullmatch(_NAME, name)
    )
    return tuple(sorted({*families, *named}))


def redact(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with REDACTED in place of the values of secrets."""
    return {
        name: REDACTED if re.search(_SECRETIVE, name) or re.search(_IN_A_URL, value) else value
        for name, value in variables.items()
    }
