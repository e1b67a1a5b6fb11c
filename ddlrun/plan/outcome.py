"""The outcome of a run and the ends of its ranks."""

from typing import NamedTuple


class RankEnd(NamedTuple):
    """How one rank's program ended: its exit code (128 + the signal, if one did it), after so many seconds."""

    rank: int
    host: str
    local_rank: int
    exit_code: int
    signal: int | None
    seconds: float
    max_rss_kib: int
    ordered: bool
    """It had been told to end."""
    why: str
    """What is known of the reason, beyond the code."""
    tail: str
    """The last of what it wrote to standard error; empty for exit code 0."""


class Outcome(NamedTuple):
    """How a run ended: ddlrun's exit code, the signal that ended it if any, how long it took, and why if known."""

    exit_code: int
    signal: int | None
    seconds: float
    reason: str | None = None
    root: RankEnd | None = None
    """The rank that failed first and made the others end."""
    ends: tuple[RankEnd, ...] = ()
    lost: tuple[str, ...] = ()
    """Ranks whose end nobody saw."""
    mpirun_said: str = ""
    until_end: float = 0.0
    """Seconds until the job began to end."""
    wanted: bool = False
    """Somebody, or a time limit, ended it."""
    dead: tuple[str, ...] = ()
    """Hosts that went away, by the names that the job has for them."""

    def as_dict(self) -> dict[str, object]:
        """Return what JSON can carry."""
        return {
            **self._asdict(),
            "root": self.root._asdict() if self.root else None,
            "ends": [end._asdict() for end in self.ends],
        }
