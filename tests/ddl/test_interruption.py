"""The guard around calls that exchange messages."""

from contextlib import suppress

import pytest

from ddlrun.ddl.transports.communicators import WrongLengthError
from ddlrun.ddl.transports.interruption import InterruptionGuard
from ddlrun.errors import InputError, LostRankError


class Rank:
    """A rank that may be alone, and its guard."""

    def __init__(self, *, alone: bool = False) -> None:
        self.abandoned: list[str] = []
        self.guard = InterruptionGuard(
            "rank 1 of 2", None if alone else lambda error: self.abandoned.append(str(error))
        )

    def call(self, error: BaseException | None = None, *, sends: bool = True) -> None:
        with self.guard:
            if sends:
                self.guard.begin_messages()
            if error is not None:
                raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("CUDA error: 2\nhint"), SystemExit(3)])
def test_after_an_interrupted_call_all_calls_raise_an_error(error: BaseException) -> None:
    rank = Rank()
    with pytest.raises(type(error)):
        rank.call(error)
    for _ in range(2):
        with pytest.raises(LostRankError) as raised:
            rank.call(sends=False)
    what = {"RuntimeError": "RuntimeError: CUDA error: 2", "SystemExit": "SystemExit: 3"}
    name = type(error).__name__
    assert str(raised.value) == (
        f"rank 1 of 2: an earlier call was interrupted ({what.get(name, name)}) and cannot be completed; let this "
        "error end the process"
    )
    assert set(rank.abandoned) == {str(raised.value)}


def test_errors_that_leave_no_messages_behind_are_no_interruption() -> None:
    for rank, error, sends in (
        (Rank(), MemoryError(), False),
        (Rank(), InputError("dtype bool"), True),
        (Rank(), WrongLengthError("9 bytes instead of 8"), True),
        (Rank(alone=True), KeyboardInterrupt(), True),
    ):
        with pytest.raises(type(error)):
            rank.call(error, sends=sends)
        rank.call()
        assert not rank.abandoned


def test_a_call_may_be_made_in_another_one() -> None:
    rank = Rank()
    with rank.guard:
        rank.guard.begin_messages()
        rank.call()
    rank.call()
    with suppress(KeyboardInterrupt), rank.guard:
        rank.guard.begin_messages()
        rank.call()
        raise KeyboardInterrupt
    with pytest.raises(LostRankError):
        rank.call()
