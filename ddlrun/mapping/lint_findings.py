"""Findings of the rank file check: their codes, their texts, and the record.

Each text on what a major does was measured with Open MPI 4.1.4, 4.1.8 and 5.0.11; tests/mpi/test_rankfile_lint.py
compares it with a real mpirun of each.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

NO_VALUES: Mapping[str, object] = MappingProxyType({})


class Effect(NamedTuple):
    """What one major of Open MPI does with the line; `as_meant`: it reads the line as its author meant it."""

    text: str
    as_meant: bool = False


class LintRule(NamedTuple):
    """The texts of one code, with {fields} for a finding's values; a rule that is no `error` is a warning."""

    message: str
    open_mpi_4: Effect
    open_mpi_5: Effect
    remedy: str
    error: bool = True


def _same(message: str, effect: str, remedy: str, *, error: bool = True) -> LintRule:
    """Return the rule for what both majors treat alike."""
    return LintRule(message, Effect(effect), Effect(effect), remedy, error=error)


_AS_MEANT = Effect("reads it", as_meant=True)
_SYNTAX = "stops with a syntax error"
MISSING = '"A rank is missing its location specification"'
_NAME_COLUMNS = "at most {limit}: ranges, shorter names"
_ONE_RANGE = "write one range: 0:0-4; separate several by ; each with its package"
_RANGES = "write PACKAGE:FIRST-LAST, such as 0:0-4, or FIRST-LAST over the host"
_COMMA = "slot={slot}: a comma between cores of a package"
_CRYPTIC = "fails with two cryptic lines"
_OTHER_NAME = "give it another name in /etc/hosts"
_NAME = "host {name}: {problem}"
_OVERFLOW = "writes past a buffer: Debian's build aborts (134), others"
_READS = Effect("reads it as it is", as_meant=True)
_READING = Effect("{reading_5}")
_COUNT = "{ranks} ranks have lines, {expected} are to be launched"
_LAUNCH = "launch {ranks}, or write the others"


class LintCode(Enum):
    """The problems of rank files, each with its rule."""

    # The line as a whole.
    CR_LF = _same("the line ends in CR LF", _SYNTAX, "write LF alone")
    NO_LAST_NEWLINE = _same("a comment ends the file without a newline", _SYNTAX, "end it with a newline")
    NOT_A_LINE = _same("{text} is not a rank file line", _SYNTAX, "write: rank N=HOST slot=PACKAGE:CORES")
    NO_SLOT = LintRule(
        "{text} names no cores",
        Effect('stops ("Sorry! ...")'),
        Effect("silently binds the rank to none"),
        "name them: slot=0:0-4",
    )
    NO_RANK = _same("the line with {text} places no rank", "ignores it", "put a # before it", error=False)
    NO_RANK_FIRST = LintRule(
        "the line begins with {text}, not with the word rank",
        Effect(_SYNTAX),
        Effect("ignores it", as_meant=True),
        "put a # before it, or leave it out",
    )
    NO_HOST = _same(
        "{text} names no host",
        "refuses the file, unless -np leaves the rank out",
        "write: rank N=HOST slot=PACKAGE:CORES",
    )
    SEVERAL_RANKS = LintRule(
        "{text} has the word rank twice",
        Effect("refuses the file, or takes the first rank alone"),
        Effect("takes the slot text for the last rank"),
        "write a line for each rank",
    )
    SEVERAL_HOSTS = LintRule(
        "the line has a second =, which names a host other than {host}",
        Effect("refuses the file"),
        Effect("places the rank on {last}, or refuses the file"),
        "leave out what follows the slot text",
    )
    SLOT_TWICE = _same("the line has two slot texts", "{effect}", "leave one of them out")
    SLOT_AGAIN = _same("the line has two slot texts", "{effect}", "leave one of them out", error=False)
    USER = _same("{text} names a user", "takes {name} for the host", "set User in ~/.ssh/config instead", error=False)
    TRAILING_WORDS = _same(
        "{text} is neither rank, host nor slot text", "ignores it", "leave it out, or put a # before it", error=False
    )
    TOO_LONG = LintRule(
        "host and slot text are {length} characters",
        Effect(f"{_OVERFLOW} go on or crash"),
        _AS_MEANT,
        _NAME_COLUMNS,
    )
    TOO_LONG_FOR_BOTH = LintRule(
        "host and slot text are {length} characters",
        Effect(f"{_OVERFLOW} drop what is beyond {{slot_limit}} characters of the slot text"),
        Effect("drops what is beyond {slot_limit} characters of the slot text"),
        _NAME_COLUMNS,
    )

    # The slot text.
    EMPTY_SLOT = _same("no slot text", _SYNTAX, "name the cores: slot=0:0-4")
    EVERY_CORE = _same("slot=*", "gives core 0 alone", "name the cores: slot=0-19 counts them over the host")
    EVERY_PACKAGE = _same("slot=*:*", "gives package 0 alone", "name the cores: slot=0-19 counts them over the host")
    BACKWARDS = _same(
        "slot={slot}: a range runs backwards", "silently leaves the rank unbound", "write the smaller core first"
    )
    NO_CORES = _same("slot={shown}: {term} is not a core", "takes a core of its own choice, or fails", _RANGES)
    PHYSICAL = LintRule(
        "slot={shown}: {term} is not a core",
        Effect("gives a core other than 5.0's"),
        Effect("gives the whole package"),
        _RANGES,
    )
    COMMA = LintRule(_COMMA, Effect("{reading_4}"), _AS_MEANT, _ONE_RANGE)
    COMMA_AFTER_RANGE = LintRule(_COMMA, Effect("{reading_4}"), _READING, _ONE_RANGE)
    COMMA_BEFORE_PACKAGE = LintRule(
        _COMMA,
        Effect("reads it as meant, if every part names its package", as_meant=True),
        _READING,
        _ONE_RANGE,
    )

    # The host.
    RELATIVE_HOST = _same(
        "host {name} is relative", "needs -H or a hostfile that it counts in", "write the host's name", error=False
    )
    HOST_NAME = _same(_NAME, "refuses it, or means another host", _OTHER_NAME)
    HOST_NAME_FOR_4 = LintRule(_NAME, Effect("crashes"), _AS_MEANT, _OTHER_NAME)
    DOTTED_HOST = LintRule(
        "host {name} has a dot",
        Effect("cuts it there, unless --mca orte_keep_fqdn_hostnames is 1"),
        Effect("cuts it there, unless --prtemca prte_keep_fqdn_hostnames is 1"),
        "ddlrun launch --rankfile passes the parameter",
        error=False,
    )
    FOREIGN_HOST = _same(
        "host {name} is not among the job's hosts",
        '"All nodes which are allocated ... already filled", or it starts there',
        "take one of {hosts}",
    )

    # The cores on their machine.
    NO_PACKAGES = _same(
        "{place}: hwloc finds no packages, or at several depths", "fails", "count cores over the host: slot=0-3"
    )
    UNKNOWN_PACKAGE = _same("{place}: there is no package {package}", "fails", "packages 0-{last}")
    UNKNOWN_CORE = LintRule(
        "{place}: there is no core {core}",
        Effect("ends with 1 and no message at all"),
        _READING,
        "cores 0-{last}",
    )
    OUTSIDE_PACKAGE = LintRule(
        "{place}: package {package} has cores 0-{last}", Effect(_CRYPTIC), _READING, "keep to the package's own cores"
    )
    EMPTY_PACKAGE = LintRule(
        "{place}: package {package} has no core that may be used",
        Effect("{reading_4}"),
        _READING,
        "packages {packages}",
    )
    PACKAGES_UNCERTAIN = _same(
        "{place}: a cpuset hides a package before others",
        "counts it if its hwloc finds PCI devices there, so that {package} may be another package",
        "{correction}",
        error=False,
    )
    CORES_ARE_THREADS = LintRule(
        "{place}: hwloc finds no cores, or at several depths, and counts hardware threads",
        Effect("counts the threads", as_meant=True),
        Effect("refuses every line"),
        "launch it with Open MPI 4.1",
    )
    UNEQUAL_PACKAGES = LintRule("{place}: packages of different sizes", _READS, _READING, "{correction}")
    PACKAGE_GAP = LintRule(
        "{place}: package {package} before it has no core that may be used", _READS, _READING, "{correction}"
    )
    MIXED_SMT = LintRule(
        "{place}: the first core has one hardware thread, others have more", _READS, _READING, "{correction}"
    )
    FOR_OPEN_MPI_5 = LintRule(
        "{place}: counted in hardware threads, for Open MPI 5.0 alone",
        Effect("{reading_4}"),
        _READS,
        "launch it with Open MPI 5.0; ddlrun gen-rankfile --open-mpi 4 writes a file for 4.1",
    )
    UNUSABLE_CORES = _same(
        "{place}: not all of these cores are usable",
        "binds there all the same, against the affinity that the job has",
        "take usable cores",
        error=False,
    )
    SEVERAL_PACKAGES = _same(
        "{place}: over several packages", "does so", "one rank per package, unless it is meant", error=False
    )

    # The ranks of the file.
    NO_RANKS = _same("the file places no rank", '"No nodes are available"', "ddlrun gen-rankfile writes one")
    DUPLICATE_RANK = _same("rank {rank} has line {line} already", "{effect}", "give it one line")
    RANK_0_LATE = _same("rank 0 comes after rank {rank}", '"Error, rank 0 is already assigned"', "put its line first")
    MISSING_RANKS = _same("rank {ranks} has no line, rank {last} has one", MISSING, "number them 0, 1, 2, ...")
    TOO_FEW_RANKS = _same(_COUNT, MISSING, _LAUNCH)
    TOO_MANY_RANKS = _same(_COUNT, "silently runs the first ranks", _LAUNCH)
    SHARED_CORE = LintRule(
        "rank {rank} has {core} of {host}, as rank {other} has",
        Effect("silently lets them share it"),
        Effect("refuses the file, unless --bind-to core:overload-allowed"),
        "a core of its own for each rank",
    )
    UNEQUAL_HOSTS = LintRule(
        "{most} has {most_ranks} ranks, {least} has {least_ranks}",
        Effect("runs them so", as_meant=True),
        Effect("runs them so", as_meant=True),
        "the same number on each host, where the job is to have a topology XxYxZ",
        error=False,
    )


class LintFinding(NamedTuple):
    """One problem of a rank file.

    `line` and `column` count from 1; both are None for a problem of the file as a whole. `values` fill in
    the code's texts.
    """

    code: LintCode
    line: int | None
    column: int | None
    values: Mapping[str, object] = NO_VALUES

    @property
    def error(self) -> bool:
        """Whether it is an error; else it is a warning."""
        return self.code.value.error

    @property
    def location(self) -> str:
        """The location, to be appended to the file's name: `:LINE:COLUMN`, as far as it has them."""
        return "".join(f":{number}" for number in (self.line, self.column) if number is not None)

    @property
    def message(self) -> str:
        """The problem itself."""
        return self.code.value.message.format_map(self.values)

    @property
    def open_mpi_4(self) -> str:
        """What Open MPI 4.1 does."""
        return self.code.value.open_mpi_4.text.format_map(self.values)

    @property
    def open_mpi_5(self) -> str:
        """What Open MPI 5.0 does."""
        return self.code.value.open_mpi_5.text.format_map(self.values)

    @property
    def remedy(self) -> str:
        """How to correct the file."""
        return self.code.value.remedy.format_map(self.values)

    @property
    def same_in_both(self) -> bool:
        """Whether both majors do the same."""
        return self.code.value.open_mpi_4 == self.code.value.open_mpi_5

    def concerns(self, major: int | None) -> bool:
        """Check if Open MPI `major` (None: either) reads the line otherwise than it is meant."""
        effect = {4: self.code.value.open_mpi_4, 5: self.code.value.open_mpi_5}.get(major or 0)
        return effect is None or not effect.as_meant

    def effect(self, major: int | None) -> str:
        """Return a clause on what Open MPI `major` (None: each of both) does."""
        if major == 4 or self.same_in_both:
            return f"Open MPI {self.open_mpi_4}"
        if major == 5:
            return f"Open MPI {self.open_mpi_5}"
        return f"4.1 {self.open_mpi_4}, 5.0 {self.open_mpi_5}"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for `ddlrun lint --json`."""
        return {
            "code": self.code.name.lower().replace("_", "-"),
            "line": self.line,
            "column": self.column,
            "error": self.error,
            "message": self.message,
            "open_mpi_4": self.open_mpi_4,
            "open_mpi_5": self.open_mpi_5,
            "remedy": self.remedy,
        }
