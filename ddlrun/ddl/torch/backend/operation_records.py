"""Records of the operations of a process group, for `ddlrun doctor`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ddlrun.ddl.torch.backend.works import Call, Work

MOST_TENSORS, MOST_RECENT = 3, 64
FROM_ANY = "recv from any"
# As scripts call them.
SPELLINGS = (("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all"))


def describe_works(pending: Iterable[Work]) -> list[dict[str, Any]]:
    """Return the records of works: the first collective, and all messages but those from any rank."""
    records, has_collective = [], False
    for work in pending:
        call, number = work.call, work.number
        if call.name.startswith(FROM_ANY) or (number and has_collective):
            continue
        has_collective = has_collective or bool(number)
        name, data, begun = name_function(call.name), _render_tensors(call), work.until - work.seconds
        records.append(
            {"name": name, "number": number, "data": data, "peer": call.peer, "tag": call.tag, "time": begun}
        )
    return records


def name_call(pending: Sequence[Work]) -> str:
    """Return the first call in words, such as `collective 5: all_reduce (float32[3])`."""
    if not pending:
        return "after the last call"
    number, call = pending[0].number, pending[0].call
    name = f"collective {number}: {name_function(call.name)}" if number else call.name
    return f"{name} ({_render_tensors(call)})".removesuffix(" ()")


def name_function(call: str) -> str:
    """Return the name of the function that a script has called.

    >>> name_function("allreduce"), name_function("send with tag 3")
    ('all_reduce', 'send')
    """
    name, _, _ = call.partition(" ")
    for plain, spelled in SPELLINGS:
        name = name.replace(plain, spelled)
    return name


def _render_tensors(call: Call) -> str:
    return ", ".join([*islice(describe_tensors(call.result), MOST_TENSORS)])


def describe_tensors(value: Any) -> Iterator[str]:  # noqa: ANN401 - a tensor, or lists of them
    """Yield the type and size of each tensor in a value, such as `float32[4]`."""
    if isinstance(value, torch.Tensor):
        yield f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from describe_tensors(item)
