"""The settings of a learner at its start, and their comparison between ranks."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, astuple, dataclass, replace
from typing import TYPE_CHECKING

from ddlrun import __version__
from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, ONE_HOST
from ddlrun.ddl.group.settings import GroupSettings, parse_tuning
from ddlrun.ddl.launch_context import find_context
from ddlrun.ddl.selection.unequal_links import LINKS
from ddlrun.errors import InputError
from ddlrun.ranges import name_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ddlrun.ddl.launch_context import LaunchContext
    from ddlrun.ddl.transports.communicators import Communicator

# Version of the messages between learners. Learners with different versions do not understand each other.
PROTOCOL = 2

SAME_VERSION = "install the same ddlrun on all hosts"
SAME_OPTIONS = "pass the same options to init(), or set the same DDL_OPTIONS, on all ranks"
SAME_TOPOLOGY = "give all ranks the same topology, in init(), DDL_OPTIONS or DDLRUN_TOPOLOGY"
SAME_ORDER = "set the same DDLRUN_RANK_ORDER on all ranks"
SAME_TUNING = "pass the same tuning to init(), or set the same DDLRUN_DDL_TUNING, on all ranks"


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The arguments of `ddl.init`, and the number of ranks."""

    options: str | None
    tuning: str | None
    size: int
    part: bool
    """Whether the ranks are only some of the job's."""


@dataclass(frozen=True, slots=True)
class SharedSetting:
    """A setting that is the same on all ranks: its name, its value as text, and the remedy if the values differ."""

    name: str
    value: str
    remedy: str


@dataclass(frozen=True, slots=True)
class StartSettings:
    """The settings of a learner."""

    context: LaunchContext
    group: GroupSettings

    def shared(self) -> list[SharedSetting]:
        """Return the settings that must be the same on all ranks."""
        options = asdict(self.context.options)
        flags = [name for name in options if name not in {"mode", "topology"}]
        return [
            SharedSetting("the version of ddlrun", __version__, SAME_VERSION),
            SharedSetting("the version of its messages", str(PROTOCOL), SAME_VERSION),
            SharedSetting("the mode", self.context.options.mode, SAME_OPTIONS),
            SharedSetting("the topology", str(self.context.topology), SAME_TOPOLOGY),
            SharedSetting("the rank order", self.context.order.value, SAME_ORDER),
            *(SharedSetting(f"-{name}", str(options[name]), SAME_OPTIONS) for name in flags),
            *(SharedSetting(f"the tuning of {name}", text, SAME_TUNING) for name, text in self._sizes()),
        ]

    def _sizes(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each size."""
        between_hosts = self.group.tuning(BETWEEN_HOSTS)._asdict()
        for name, value in self.group.tuning(ONE_HOST)._asdict().items():
            yield name, repr(value) if value == between_hosts[name] else "the default"


def agree_on_settings(request: StartRequest, comm: Communicator, environ: Mapping[str, str]) -> StartSettings:
    """Return the settings of this learner, which are the same on all ranks. All ranks call it together.

    A rank whose settings are wrong takes part in the comparison: otherwise the others would wait for it.

    Raises:
        InputError: The settings of a rank are wrong, or those of the ranks differ. All ranks raise the same error.
    """
    try:
        settings = read_settings(request, environ)
    except Exception as error:
        _compare(comm, [], error)
        raise
    _compare(comm, settings.shared())
    links = comm.bcast(environ.get(LINKS, ""))
    return replace(settings, group=replace(settings.group, links=links))


def read_settings(request: StartRequest, environ: Mapping[str, str]) -> StartSettings:
    """Return the settings of this learner. Raises InputError."""
    context = find_context(request.options, request.size, environ, part=request.part)
    text, source = request.tuning, "tuning"
    if text is None:
        text, source = environ.get("DDLRUN_DDL_TUNING", ""), "DDLRUN_DDL_TUNING"
    parse_tuning(text, BETWEEN_HOSTS, source)
    return StartSettings(context, GroupSettings(text, is_part=request.part))


def _compare(comm: Communicator, shared: list[SharedSetting], problem: Exception | None = None) -> None:
    """Compare the settings of all ranks, or the problems that ranks without settings have.

    Returns only if all ranks have the same settings, or all the same problem.
    """
    if _all_equal(comm, shared):
        return
    records = comm.allgather((_describe(problem), [astuple(setting) for setting in shared]))
    problems = [text for text, _ in records]
    if not any(problems):
        raise InputError(*name_differences([[SharedSetting(*row) for row in rows] for _, rows in records]))
    if len(set(problems)) > 1:
        raise InputError(*name_problems(problems)) from problem


def _all_equal(comm: Communicator, shared: list[SharedSetting]) -> bool:
    """Compare the settings of all ranks by their digests; False if a rank has none."""
    import numpy as np  # noqa: PLC0415 - 120 ms, for a job alone

    text = "\n".join(f"{setting.name} {setting.value}" for setting in shared)
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    largest = np.array([digest, -digest, not shared], np.int64)
    comm.take_maxima(largest)
    return bool(largest[0] == -largest[1] and not largest[2])


def _describe(problem: Exception | None) -> str:
    if problem is None:
        return ""
    return str(problem) if isinstance(problem, InputError) else f"{type(problem).__name__}: {problem}"


def name_problems(problems: Sequence[str]) -> list[str]:
    """Return each line of each rank's problem, with the ranks that have it.

    >>> name_problems(["", "no such mode", "no such mode"])
    ['ddl.init: no such mode (ranks 1-2)']
    """
    texts = [text for text in dict.fromkeys(problems) if text]
    return [f"ddl.init: {line} ({_ranks_with(problems, text)})" for text in texts for line in text.splitlines()]


def name_differences(records: Sequence[Sequence[SharedSetting]]) -> list[str]:
    """Return a problem per setting whose value differs between ranks; `records` has the settings of each rank.

    >>> name_differences([[SharedSetting("the mode", mode, "choose one")] for mode in "prr"])
    ['ddl.init: the mode differs: p on rank 0, r on ranks 1-2; choose one']
    """
    remedies = {setting.name: setting.remedy for record in records for setting in record}
    by_name = [{setting.name: setting.value for setting in record} for record in records]
    problems = []
    for name, remedy in remedies.items():
        values = [values.get(name, "none") for values in by_name]
        if len(set(values)) > 1:
            places = ", ".join(f"{value} on {_ranks_with(values, value)}" for value in dict.fromkeys(values))
            problems.append(f"ddl.init: {name} differs: {places}; {remedy}")
    return problems


def _ranks_with(values: Sequence[str], value: str) -> str:
    """Return the ranks that have a value.

    >>> _ranks_with("aabac", "a")
    'ranks 0-1,3'
    """
    return name_numbers("rank", (rank for rank, other in enumerate(values) if other == value))
