"""Errors of the backend, which scripts for PyTorch catch as RuntimeError."""

from __future__ import annotations

from typing import Any

from torch import distributed as torch_distributed

from ddlrun.errors import InputError, LostRankError

DistBackendError: Any = torch_distributed.DistBackendError


class ArgumentError(InputError, RuntimeError):
    """A call has wrong arguments. The group remains usable."""


class GroupError(LostRankError, DistBackendError):  # type: ignore[misc]
    """A rank is lost or late, or the group has ended. The group is not usable any more."""


def as_group_error(error: Exception) -> Exception:
    """Return the error that the works of a group raise for an error of its endpoint, or of a variable."""
    if isinstance(error, LostRankError):
        return GroupError(*error.problems)
    if isinstance(error, InputError) and not isinstance(error, RuntimeError):
        return ArgumentError(*error.problems)
    return error
