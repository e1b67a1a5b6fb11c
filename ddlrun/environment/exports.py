"""Exported variables: names that are passed on to ranks, assignments of the user."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddlrun.environment.secrets import REDACTED
from ddlrun.errors import InputError


class HostBound(NamedTuple):
    """Variables that describe one host, or a session there, and so are not passed on to other hosts."""

    reason: str
    names: str
    """Names with blanks between them; a pattern ends in *."""


# docs/reference/environment-variables.md shows this table.
HOST_BOUND = (
    HostBound("the user and the shell", "HOME USER LOGNAME SHELL MAIL PWD OLDPWD SHLVL _"),
    HostBound("the host", "HOSTNAME HOST TMPDIR TMP TEMP NVIDIA_VISIBLE_DEVICES"),
    HostBound("logins and keys", "SSH_* SUDO_* KRB5CCNAME GPG_* DBUS_*"),
    HostBound("sessions", "XDG_RUNTIME_DIR XDG_SESSION_* XDG_SEAT* XDG_VTNR"),
    HostBound("windows", "DISPLAY XAUTHORITY WAYLAND_* WINDOWID TMUX* STY"),
    HostBound("services of systemd", "INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET LISTEN_* MANAGERPID SYSTEMD_*"),
    HostBound("MPI, which passes on its own", "OMPI_* OPAL_* ORTE_* PRTE_* PMI_* PMIX_*"),
    HostBound("schedulers", "SLURM* LSB_* LSF_* LS_* PBS_* SGE_* PE_* FLUX_* COBALT_* KUBERNETES_*"),
)
# Passed on even with --export NONE or a list: programs may not start without them.
ESSENTIAL = tuple(
    "PATH LD_LIBRARY_PATH LD_PRELOAD PYTHON* VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LANG LC_* TZ".split()
)
_BOUND = tuple(name for group in HOST_BOUND for name in group.names.split())
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# Linux takes 128 KiB for one variable, its name included.
MOST_CHARACTERS = 120_000


def parse_assignment(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`. Raises InputError without `=`, or on a name that no shell can carry."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(_NAME, name):
        shown = f"{name}={REDACTED}" if equals else repr(name)
        raise InputError(f"`--env` {shown}: write NAME=VALUE, the name in letters, digits and _")
    if "\0" in value:
        raise InputError(f"`--env` {name}: the value has a NUL byte, which no environment can carry")
    return name, value


def check_name(name: str, option: str) -> None:
    """Raise InputError for a name that no shell can carry."""
    if not re.fullmatch(_NAME, name):
        raise InputError(f"{option} {name!r}: a variable's name is letters, digits and _")


class ExportPolicy(NamedTuple):
    """Which variables of ddlrun's environment the ranks get: --export."""

    everything: bool = True
    """Whether all are passed on that are not host-bound."""
    patterns: tuple[str, ...] = ()
    """Further names, host-bound ones too; a pattern ends in *."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names among the patterns."""
        return tuple(pattern for pattern in self.patterns if not pattern.endswith("*"))


def parse_exports(text: str) -> ExportPolicy:
    """Parse ALL, NONE (in any case) or a list of names and patterns. Raises InputError.

    >>> parse_exports("all"), parse_exports("NCCL_*,SEED")
    (ExportPolicy(everything=True, patterns=()), ExportPolicy(everything=False, patterns=('NCCL_*', 'SEED')))
    """
    stripped = [word.strip() for word in text.split(",") if word.strip()]
    words = [word.upper() if word.upper() in ("ALL", "NONE") else word for word in stripped]
    patterns = tuple(dict.fromkeys(word for word in words if word not in ("ALL", "NONE")))
    if not words or ("NONE" in words and len(words) > 1):
        raise InputError(f"`--export` {text!r}: write ALL, NONE, or names such as SEED,NCCL_*")
    for pattern in patterns:
        if "=" in pattern:
            raise InputError(f"`--export` {pattern.partition('=')[0]}=...: names alone; `--env` sets a value")
        check_name(pattern.removesuffix("*") or "_", "`--export`")
    return ExportPolicy("ALL" in words, patterns)


def keep_inherited(environ: Mapping[str, str], policy: ExportPolicy, named: Iterable[str]) -> dict[str, str]:
    """Return the variables of ddlrun's environment that reach ranks on its own host: host-bound ones too."""
    if policy.everything:
        return dict(environ)
    kept = _Patterns((*_BOUND, *ESSENTIAL, *policy.patterns, *named))
    return {name: value for name, value in environ.items() if kept.match(name)}


def select_exports(environ: Iterable[str], policy: ExportPolicy, named: Iterable[str]) -> tuple[str, ...]:
    """Return the names to pass on to other hosts, sorted: those that are not host-bound, and those that are named."""
    bound, listed = _Patterns(_BOUND), _Patterns(policy.patterns)
    names = (name for name in environ if re.fullmatch(_NAME, name))
    return tuple(sorted({*named, *(name for name in names if listed.match(name) or not bound.match(name))}))


class _Patterns:
    """Names and patterns of variables."""

    def __init__(self, patterns: Iterable[str]) -> None:
        words = tuple(patterns)
        self._names = frozenset(word for word in words if not word.endswith("*"))
        self._prefixes = tuple(word[:-1] for word in words if word.endswith("*"))

    def match(self, name: str) -> bool:
        """Return True if one of the patterns stands for a name."""
        return name in self._names or name.startswith(self._prefixes)
