"""The outcome of a run and the ends of its ranks."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from ddlrun.errors import spell_options
from ddlrun.keeper.protocol import RankEnd

__all__ = ["Outcome", "RankEnd", "parse_outcome"]


class Outcome(NamedTuple):
    """How a run ended."""

    exit_code: int
    """The exit code of ddlrun."""
    signal: int | None
    """The signal that ended the run; None: none did."""
    seconds: float
    reason: str | None = None  # options of ddlrun launch stand in backticks, except in JSON
    root: RankEnd | None = None
    """The rank that failed first and made the others end."""
    ends: tuple[RankEnd, ...] = ()
    lost_ranks: tuple[str, ...] = ()
    """Ranks whose end was not observed."""
    mpirun_output: str = ""
    """The output of the process manager, if the run failed."""
    until_end: float = 0.0
    """Seconds until the job began to end."""
    requested: bool = False
    """Whether a user, the scheduler or a time limit ended it."""
    lost_hosts: tuple[str, ...] = ()
    """Hosts that were lost, by the names that the job has for them."""
    cause: str = ""
    """The code of the cause; empty for an error before the start of the job, and where a scheduler ended it."""
    unprinted_bytes: int = 0
    """The number of bytes of output that were not printed; the logs have them."""

    @property
    def code_of_program(self) -> bool:
        """Whether the exit code is that of the ranks' program, rather than one of ddlrun's own."""
        return not self.exit_code or (self.root is not None and self.root.started)

    def as_dict(self) -> "OutcomeRecord":
        """Return the outcome as JSON can carry it."""
        return {
            "schema": "urn:ddlrun:outcome:1",
            **self._asdict(),
            "reason": self.reason and spell_options(self.reason),
            "exit_code_of": "program" if self.code_of_program else "ddlrun",
            "root": self.root.as_dict() if self.root else None,
            "ends": [end.as_dict() for end in self.ends],
        }


class OutcomeSchema(TypedDict):
    """The keys that outcome.json has besides the fields of an outcome."""

    schema: Literal["urn:ddlrun:outcome:1"]
    exit_code_of: Literal["program", "ddlrun"]
    """Whether the exit code is that of the ranks' program, or one of ddlrun's own."""


class LaterKeys(TypedDict, total=False):
    """The keys that an outcome.json of the same version may lack."""

    cause: str


OutcomeRecord = Annotated[dict[str, Any], Outcome, OutcomeSchema, LaterKeys]


def parse_outcome(record: Mapping[str, Any]) -> Outcome:
    """Return the outcome of its record; keys of later versions are left out."""
    values = {name: value for name, value in record.items() if name in Outcome._fields}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    root = values.get("root")
    ends = tuple(map(_parse_end, values.get("ends", ())))
    return Outcome(**{**values, **lists, "root": None if root is None else _parse_end(root), "ends": ends})


def _parse_end(record: Mapping[str, Any]) -> RankEnd:
    return RankEnd(**{name: value for name, value in record.items() if name in RankEnd.__annotations__})
