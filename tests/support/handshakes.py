"""Both ends of a handshake, without a connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ddlrun.wire.authentication import Secret, accept_at, connect_as
from ddlrun.wire.frames import Agreement

if TYPE_CHECKING:
    from ddlrun.wire.authentication import Handshake


def welcome_all(_nonce: bytes, _claim: bytes) -> None:
    """Refuse no greeting."""


def shake_hands(
    connecting: "Handshake", accepting: "Handshake", alter: Callable[[bytes], bytes] = bytes
) -> list[Agreement]:
    """Return what both ends agree on; `alter` changes what they send."""
    _, size = next(accepting)
    greeting, reply_size = next(connecting)
    assert len(greeting) == size
    reply, size = accepting.send(alter(greeting))
    assert len(reply) == reply_size
    confirmation, _ = connecting.send(alter(reply))
    assert len(confirmation) == size
    agreements = []
    for steps, data in ((connecting, b""), (accepting, alter(confirmation))):
        with pytest.raises(StopIteration) as end:
            steps.send(data)
        agreements.append(end.value.value)
    return agreements


def agree(*, encrypted: bool = False, claim: bytes = bytes(4)) -> list[Agreement]:
    """Return what two ends with a new secret agree on: the one that connects, and the one that accepts."""
    secret = Secret.draw(encrypted=encrypted)
    return shake_hands(connect_as(secret, claim), accept_at(secret, len(claim), welcome_all))
