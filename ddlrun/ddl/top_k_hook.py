"""The communication hook of DistributedDataParallel that sends the largest gradients only."""

# No `from __future__ import annotations`: DistributedDataParallel compares a hook's annotations with classes.
from math import ceil
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from ddlrun.errors import InputError


class TopK:
    """The state of `top_k_hook`: the share of elements that a rank sends, and what it has not sent yet.

    Args:
        share: The part of each bucket's elements that a rank sends, above 0 and at most 1.
        process_group: The group that carries the gradients, with any backend. Default: the default group.

    Raises:
        InputError: The share is out of range.
    """

    def __init__(self, share: float = 0.01, process_group: Any = None) -> None:  # noqa: ANN401 - a ProcessGroup
        if not 0 < share <= 1:
            raise InputError(f"TopK: share {share} is not above 0 and at most 1")
        self._share, self._group = share, process_group
        # By parameter: after the first step DistributedDataParallel divides the parameters into other buckets.
        self._unsent: dict[Tensor, Tensor] = {}

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """Begin to average a bucket in place."""
        buffer, ranks = bucket.buffer(), distributed.get_world_size(self._group)
        own = self._take_largest(bucket)
        received = [torch.empty_like(own) for _ in range(ranks)]
        work: Any = distributed.all_gather(received, own, group=self._group, async_op=True)

        def add(_done: Future[Any]) -> Tensor:
            buffer.zero_()
            for part in received:  # one after the other: the same bits on all ranks
                places, values = part.chunk(2)
                buffer[places.long()] += values.view(torch.float32).to(buffer.dtype)
            return buffer.div_(ranks)

        future: Future[Tensor] = work.get_future().then(add)
        return future

    def _take_largest(self, bucket: GradBucket) -> Tensor:
        """Return the places and the float32 values of the elements to be sent; keep the others for the next step."""
        parameters, buffer = bucket.parameters(), bucket.buffer()
        for parameter in parameters:
            if parameter not in self._unsent:
                self._unsent[parameter] = buffer.new_zeros(parameter.numel())
        values = torch.cat([self._unsent[parameter] for parameter in parameters]).add_(buffer)
        places = values.abs().topk(ceil(self._share * len(values)), sorted=False).indices
        sent = values[places].float()
        values[places] -= sent.to(values.dtype)
        parts = torch.split(values, [parameter.numel() for parameter in parameters])
        self._unsent.update(zip(parameters, parts, strict=True))
        return torch.cat([places.int(), sent.view(torch.int32)])


def top_k_hook(state: TopK, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket's largest gradients: `model.register_comm_hook(TopK(), top_k_hook)`.

    Each rank sends the elements of largest magnitude, and adds the others to those of the next step (error feedback).

    Args:
        state: What is to be sent, and what is left of earlier steps.
        bucket: The bucket, as DistributedDataParallel passes it, of less than 2**31 elements.
    """
    return state.average(bucket)
