"""The settings of a learner at its start, and their comparison between ranks."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ddlrun import __version__
from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, ONE_HOST
from ddlrun.ddl.group.settings import SIZES, GroupSettings, parse_tuning
from ddlrun.ddl.launch_context import find_context
from ddlrun.ddl.selection.unequal_links import LINKS
from ddlrun.errors import InputError
from ddlrun.ranges import name_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ddlrun.ddl.launch_context import LaunchContext
    from ddlrun.ddl.transports.communicators import Communicator

    # The settings that are the same on all ranks: name -> its value as text, and the remedy if the values differ.
    SharedSettings = dict[str, tuple[str, str]]

# Version of the messages between learners. Learners with different versions do not understand each other.
PROTOCOL = 2

SAME_VERSION = "install the same ddlrun on all hosts"
SAME_OPTIONS = "pass the same options to init(), or set the same DDL_OPTIONS, on all ranks"
SAME_TOPOLOGY = "give all ranks the same topology, in init(), DDL_OPTIONS or DDLRUN_TOPOLOGY"
SAME_ORDER = "set the same DDLRUN_RANK_ORDER on all ranks"
SAME_TUNING = "pass the same tuning to init(), or set the same DDLRUN_DDL_TUNING, on all ranks"


@dataclass(frozen=True, slots=True)
class StartSettings:
    """The settings of a learner."""

    context: LaunchContext
    group: GroupSettings

    def shared(self) -> SharedSettings:
        """Return the settings that must be the same on all ranks."""
        options = asdict(self.context.options)
        flags = [name for name in options if name not in {"mode", "topology"}]
        return {
            "the version of ddlrun": (__version__, SAME_VERSION),
            "the version of its messages": (str(PROTOCOL), SAME_VERSION),
            "the mode": (self.context.options.mode, SAME_OPTIONS),
            "the topology": (str(self.context.topology), SAME_TOPOLOGY),
            "the rank order": (self.context.order.value, SAME_ORDER),
            **{f"-{name}": (str(options[name]), SAME_OPTIONS) for name in flags},
            **{f"the tuning of {name}": (text, SAME_TUNING) for name, text in self._sizes()},
        }

    def _sizes(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the text of each size."""
        between_hosts = self.group.tuning(BETWEEN_HOSTS)._asdict()
        for name, value in self.group.tuning(ONE_HOST)._asdict().items():
            yield name, repr(value) if value == between_hosts[name] else "the default"


def agree_on_settings(
    read: Callable[[], StartSettings], comm: Communicator, environ: Mapping[str, str]
) -> StartSettings:
    """Return the settings of this learner, which are the same on all ranks. All ranks call it together.

    A rank whose settings are wrong takes part in the comparison: otherwise the others would wait for it.

    Raises:
        InputError: The settings of a rank are wrong, or those of the ranks differ. All ranks raise the same error.
    """
    try:
        settings = read()
    except Exception as error:
        _compare(comm, {}, error)
        raise
    _compare(comm, settings.shared())
    links = comm.bcast(environ.get(LINKS, ""))
    return replace(settings, group=replace(settings.group, links=links))


def read_settings(
    options: str | None, tuning: str | None, size: int, environ: Mapping[str, str], *, part: bool
) -> StartSettings:
    """Return the settings of this learner, given the arguments of `ddl.init` and the number of ranks.

    `part`: the ranks are only some of the job's. Raises InputError.
    """
    context = find_context(options, size, environ, part=part)
    source = SIZES if tuning is None else "tuning"
    text = environ.get(SIZES, "") if tuning is None else tuning
    parse_tuning(text, BETWEEN_HOSTS, source)
    return StartSettings(context, GroupSettings(text, is_part=part))


def _compare(comm: Communicator, shared: SharedSettings, problem: Exception | None = None) -> None:
    """Compare the settings of all ranks, or the problems that ranks without settings have.

    Returns only if all ranks have the same settings, or all the same problem.
    """
    if _all_equal(comm, shared):
        return
    records = comm.allgather((_describe(problem), shared))
    problems = [text for text, _ in records]
    if not any(problems):
        raise InputError(*name_differences([settings for _, settings in records]))
    if len(set(problems)) > 1:
        raise InputError(*name_problems(problems)) from problem


def _all_equal(comm: Communicator, shared: SharedSettings) -> bool:
    """Compare the settings of all ranks by their digests; False if a rank has none."""
    import numpy as np  # noqa: PLC0415 - 120 ms, for a job alone

    digest = int.from_bytes(hashlib.blake2b(repr(shared).encode(), digest_size=7).digest(), "big")
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


def name_differences(records: Sequence[SharedSettings]) -> list[str]:
    """Return a problem per setting whose value differs between ranks; `records` has the settings of each rank.

    >>> name_differences([{"the mode": (mode, "choose one")} for mode in "prr"])
    ['ddl.init: the mode differs: p on rank 0, r on ranks 1-2; choose one']
    """
    problems = []
    for name, (_, remedy) in {name: setting for record in records for name, setting in record.items()}.items():
        values = [record.get(name, ("none", remedy))[0] for record in records]
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
