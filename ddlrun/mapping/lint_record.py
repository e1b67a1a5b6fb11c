"""Record of `ddlrun lint`: the type of its JSON objects, from which their schema is generated."""

from typing import TypedDict


class LintRecord(TypedDict):
    """A problem of a rank file."""

    code: str
    """Code of the problem: cr-lf, no-slot, ..."""
    line: int | None
    """Number of the line, from 1; null for a problem of the whole file."""
    column: int | None
    """Number of the character in the line, from 1."""
    error: bool
    """Whether it is an error; otherwise it is a warning."""
    message: str
    """The problem."""
    open_mpi_4: str
    """Behaviour of Open MPI 4.1."""
    open_mpi_5: str
    """Behaviour of Open MPI 5.0."""
    remedy: str
