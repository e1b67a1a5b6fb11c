"""Errors of the backend, which scripts for PyTorch catch as RuntimeError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed as torch_distributed

from ddlrun.ddl.transports.communicators import WrongLengthError
from ddlrun.errors import InputError, LostRankError

if TYPE_CHECKING:
    from ddlrun.ddl.transports.tcp.address_exchange import Membership

DistBackendError: Any = torch_distributed.DistBackendError


class ArgumentError(InputError, RuntimeError):
    """A call has wrong arguments. The group remains usable."""


class GroupError(LostRankError, DistBackendError):  # type: ignore[misc]
    """A rank is lost or late, or the group has ended. The group is not usable any more."""


def as_group_error(error: Exception, job: Membership, call: str) -> Exception:
    """Return the error that the works of a group raise after an exception in its thread, in a call."""
    if isinstance(error, LostRankError):
        return GroupError(*error.problems)
    if isinstance(error, WrongLengthError):
        return WrongLengthError(
            f"{job}: {call}: rank {error.peer} is in another call, or its tensor has another size; all ranks must make "
            "the same calls, with tensors of the same size and type",
            error.peer,
        )
    if isinstance(error, RuntimeError):
        return error
    if isinstance(error, InputError):
        return ArgumentError(*error.problems)
    failure = GroupError(f"{job}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
