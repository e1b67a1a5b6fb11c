"""The settings of a group, which all its ranks have in common: the variables of its rank 0."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, MOST_CONNECTIONS, Tuning
from ddlrun.ddl.selection.unequal_links import LINKS, make_layout
from ddlrun.ddl.selection.wire_compression import parse_wire
from ddlrun.errors import InputError
from ddlrun.units import parse_multiple

if TYPE_CHECKING:
    from ddlrun.ddl.schedules.weighted_schedule import HostLayout
    from ddlrun.ddl.selection.unequal_links import HostGroups

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
