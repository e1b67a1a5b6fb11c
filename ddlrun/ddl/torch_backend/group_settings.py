"""The settings of a process group, which rank 0 passes to the others through the store."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ddlrun.ddl.tuning_parameters import parse_tuning
from ddlrun.ddl.unequal_links import make_group_layout

if TYPE_CHECKING:
    from ddlrun.allreduce_algorithms import Tuning
    from ddlrun.ddl.unequal_links import HostGroups
    from ddlrun.ddl.weighted_schedule import HostLayout

VARIABLES = ("DDLRUN_DDL_LINKS", "DDLRUN_DDL_TUNING")


class GroupSettings:
    """The settings of a group, which are variables of its rank 0."""

    def __init__(self, store: Any, *, is_part: bool) -> None:  # noqa: ANN401 - a Store
        self._store, self._is_part = store, is_part

    def publish(self) -> None:
        """Pass the variables of this rank, which is rank 0, to the others."""
        for variable in VARIABLES:
            self._store.set(variable, os.environ.get(variable, ""))

    def layout(self, hosts: HostGroups) -> HostLayout | None:
        """Return the layout of unequal hosts or links, None if all are equal. Raises InputError."""
        return make_group_layout(self._read("DDLRUN_DDL_LINKS"), hosts, is_part=self._is_part)

    @property
    def may_measure(self) -> bool:
        """True if the rates of links are not given, and the group is that of the whole job."""
        return not self._is_part and not self._read("DDLRUN_DDL_LINKS")

    def tuning(self, default: Tuning) -> Tuning:
        """Return the sizes, with defaults for what the variable does not set. Raises InputError."""
        return parse_tuning(self._tuning_text, default)

    @cached_property
    def _tuning_text(self) -> str:
        return self._read("DDLRUN_DDL_TUNING")

    def _read(self, variable: str) -> str:
        return str(self._store.get(variable).decode())
