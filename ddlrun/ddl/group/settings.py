"""The settings of a group, which all its ranks have in common.

The learners of `ddl.init` compare theirs at the start. A process group takes the variables of its rank 0.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlrun import __version__
from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, MOST_CONNECTIONS, ONE_HOST, Tuning
from ddlrun.ddl.launch_context import find_context
from ddlrun.ddl.selection.unequal_links import LINKS, make_layout
from ddlrun.ddl.selection.wire_compression import parse_wire
from ddlrun.errors import InputError
from ddlrun.ranges import name_numbers
from ddlrun.units import parse_multiple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ddlrun.ddl.launch_context import LaunchContext
    from ddlrun.ddl.schedules.weighted_schedule import HostLayout
    from ddlrun.ddl.selection.unequal_links import HostGroups
    from ddlrun.ddl.transports.communicators import Communicator

    # The settings that are the same on all ranks: name -> its value as text, and the remedy if the values differ.
    SharedSettings = dict[str, tuple[str, str]]

NUMBERS = [name for name in Tuning._fields if name != "wire"]
MAY_BE_ZERO = {"flat", "explore", "measure"}
MOST = {"connections": MOST_CONNECTIONS}
# Setting one of these sizes turns exploration off.
FIXED_SIZES = {"chunk", "depth", "flat"}


def parse_tuning(text: str, default: Tuning, where: str = "DDLRUN_DDL_TUNING") -> Tuning:
    """Parse "chunk=256K,depth=4". Sizes that are not named are those of `default`.

    Setting chunk, depth or flat turns exploration off, unless explore is set too. Raises InputError if the text is not
    in this format; `where` names its source.

    >>> parse_tuning("chunk=256K,depth=4", Tuning()).chunk
    262144
    """
    fields = dict[str, Any]()
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name == "wire":
            parse_wire(value, f"{where}: wire")
            fields[name] = value
            continue
        size, least = parse_multiple(value), 0 if name in MAY_BE_ZERO else 1
        if name not in NUMBERS or size is None or size < least:
            raise InputError(
                f"{where} {text!r}: {part.strip()!r} is not NAME=NUMBER with {', '.join(NUMBERS)}; "
                "write for example chunk=64K,depth=8,flat=64K,bucket=4M,wire=bfloat16"
            )
        fields[name] = size
        if fields[name] > MOST.get(name, fields[name]):
            raise InputError(f"{where} {text!r}: {name} is at most {MOST[name]}")
    if fields.keys() & FIXED_SIZES:
        fields.setdefault("explore", 0)
    return default._replace(**fields)


SIZES = "DDLRUN_DDL_TUNING"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a group.

    sizes, links: the texts of DDLRUN_DDL_TUNING and DDLRUN_DDL_LINKS. is_part: the group has some of the job's ranks.
    """

    sizes: str = ""
    links: str = ""
    is_part: bool = False

    def tuning(self, default: Tuning) -> Tuning:
        """Return the sizes, with defaults for what is not set. Raises InputError."""
        return parse_tuning(self.sizes, default)

    def sets(self, name: str) -> bool:
        """Return True if a size, which may not be 0, is set."""
        unset: dict[str, Any] = {name: 0}
        return bool(getattr(self.tuning(BETWEEN_HOSTS._replace(**unset)), name))

    @property
    def mode(self) -> str:
        """The mode of a group without options: p if trial reductions are allowed by name, else ring."""
        return "p" if self.sets("explore") else "r"

    def layout(self, hosts: HostGroups) -> HostLayout | None:
        """Return the layout of unequal hosts or links, None if all are equal. Raises InputError."""
        return make_layout(self.links, hosts, is_part=self.is_part)


def publish(store: Any) -> None:  # noqa: ANN401 - a Store of torch.distributed
    """Pass the settings of this rank, which is rank 0, to the others through a store."""
    for variable in (SIZES, LINKS):
        store.set(variable, os.environ.get(variable, ""))


def read_published(store: Any, *, is_part: bool) -> GroupSettings:  # noqa: ANN401
    """Return the settings that rank 0 passes; wait for it."""
    sizes, links = (str(store.get(variable).decode()) for variable in (SIZES, LINKS))
    return GroupSettings(sizes, links, is_part)


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
