"""The process group of the backend "ddl": the methods that torch.distributed calls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed as torch_distributed

from ddlrun.ddl.engine import Engine
from ddlrun.ddl.tcp.communicator import TcpCommunicator, TcpTransport
from ddlrun.ddl.torch_backend.collectives import Blocks, GroupCollectives
from ddlrun.ddl.torch_backend.messages import AnySource, MessageStarter
from ddlrun.ddl.torch_backend.operators import read_operation
from ddlrun.ddl.torch_backend.progress_thread import ProgressThread
from ddlrun.ddl.torch_backend.tensor_bytes import TensorBytes, only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from ddlrun.ddl.operation import Chunk
    from ddlrun.ddl.tcp.endpoint import Endpoint
    from ddlrun.ddl.torch_backend.progress_thread import Start

    Tensors = list[torch.Tensor]

distributed: Any = torch_distributed  # its stubs differ from the methods that it calls
C10D: Any = torch._C._distributed_c10d  # noqa: SLF001 - the class of works is not public

NAME = "ddl"


class DdlProcessGroup(distributed.ProcessGroup):  # type: ignore[misc]
    """A process group over an endpoint of its own. All members create it together.

    Works are started in the order of their calls, by the thread, which also completes them.
    """

    def __init__(self, endpoint: Endpoint, timeout: timedelta) -> None:
        super().__init__(endpoint.rank, endpoint.size)
        members = TcpCommunicator(endpoint, range(endpoint.size), 1)
        self._messages = MessageStarter(members.Dup())
        transport: TcpTransport[Chunk] = TcpTransport(members.Dup())
        engine = Engine(transport, endpoint.rank)
        self._collectives = GroupCollectives(endpoint, engine)
        self._thread = ProgressThread(endpoint, engine, timeout.total_seconds())

    def getBackendName(self) -> str:  # noqa: N802 - torch's names, as all below
        """Return the name of the backend."""
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The name of the group in torch's table of groups."""
        return str(distributed.distributed_c10d._world.pg_names[self])  # noqa: SLF001

    @property
    def pg_name(self) -> str:
        """The name of the group in torch's table of groups."""
        return self.group_name

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Reduce a tensor in place over all members."""
        memory = TensorBytes(only(tensors))
        op = read_operation(opts)
        return self._submit(tensors, partial(self._collectives.allreduce, memory, op), memory.write_back)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Reduce tensors in place, one after the other."""
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return works[-1]

    def reduce(self, tensors: Tensors, opts: Any) -> Any:  # noqa: ANN401
        """Reduce a tensor over all members; the result is in that of the root."""
        tensor = only(tensors)
        memory = TensorBytes(tensor.detach().clone())

        def done() -> None:
            if self.rank() == opts.rootRank:
                memory.write_back()
                tensor.detach().copy_(memory._whole.reshape(tensor.shape))  # noqa: SLF001

        return self._submit(tensors, partial(self._collectives.allreduce, memory, read_operation(opts)), done)

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:  # noqa: ANN401
        """Fill a tensor with that of the root."""
        memory = TensorBytes(only(tensors))
        return self._submit(tensors, partial(self._collectives.broadcast, memory, opts.rootRank), memory.write_back)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Copy the tensor of each member to all of them."""
        mine = TensorBytes(only(inputs))
        rows = np.empty((self.size(), mine.bytes.size), np.uint8)
        rows[self.rank()] = mine.bytes
        targets = [TensorBytes(tensor) for tensor in outputs[0]]

        def done() -> None:
            for target, row in zip(targets, rows, strict=True):
                target.bytes[:] = row
                target.write_back()

        return self._submit(outputs, partial(self._collectives.allgather, rows.reshape(-1)), done)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Fill a tensor with those of all members, one after the other."""
        memory, mine = TensorBytes(output), TensorBytes(source)
        memory.bytes.reshape(self.size(), -1)[self.rank()] = mine.bytes
        return self._submit(output, partial(self._collectives.allgather, memory.bytes), memory.write_back)

    _allgather_base = all_gather_single

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Any:  # noqa: ANN401
        """Reduce a tensor per member, each for its member."""
        whole = torch.cat([tensor.detach().reshape(-1) for tensor in inputs[0]])
        return self._reduce_scatter(only(outputs), whole, opts)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> Any:  # noqa: ANN401
        """Reduce a tensor; each member gets its block."""
        return self._reduce_scatter(output, source.detach().reshape(-1).clone(), opts)

    _reduce_scatter_base = reduce_scatter_single

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Any:  # noqa: ANN401
        """Copy the tensor of each member to the root."""
        at_root = self.rank() == opts.rootRank
        sends: list[Any] = [None] * self.size()
        sends[opts.rootRank] = only(inputs)
        return self._exchange(sends, outputs[0] if at_root else [None] * self.size(), outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Any:  # noqa: ANN401
        """Copy a tensor per member from the root to its member."""
        at_root = self.rank() == opts.rootRank
        receives: list[Any] = [None] * self.size()
        receives[opts.rootRank] = only(outputs)
        return self._exchange(inputs[0] if at_root else [None] * self.size(), receives, outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Send a tensor to each member, and receive one from each."""
        return self._exchange(inputs, outputs, outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,  # noqa: ANN401, ARG002
    ) -> Any:  # noqa: ANN401
        """Send a part of a tensor to each member, and receive a part from each; no sizes: equal parts."""
        ways = [
            tensor.split(sizes or tensor.shape[0] // self.size())
            for tensor, sizes in ((output, output_sizes), (source, input_sizes))
        ]
        return self._exchange(list(ways[1]), list(ways[0]), output)

    def barrier(self, opts: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Complete when all members have called it."""
        return self.allreduce([torch.zeros(1, dtype=torch.uint8)])

    def send(self, tensors: Tensors, peer: int, tag: int) -> Any:  # noqa: ANN401
        """Send a tensor to a member."""
        memory = TensorBytes(only(tensors))
        return self._submit(tensors, partial(self._messages.send, memory, peer, tag), _nothing)

    def recv(self, tensors: Tensors, peer: int, tag: int) -> Any:  # noqa: ANN401
        """Receive a tensor from a member."""
        memory = TensorBytes(only(tensors))
        return self._submit(tensors, partial(self._messages.receive, memory, peer, tag), memory.write_back)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:  # noqa: ANN401
        """Receive a tensor from the member whose message is here first."""
        memory = TensorBytes(only(tensors))
        start = AnySource(self._messages, memory, tag)
        return AnySourceWork(self._thread.submit(start, memory.write_back, tensors), start)

    def shutdown(self) -> None:
        """Complete what is in progress and close the connections."""
        self._thread.end()

    def abort(self) -> None:
        """Let all works fail, and close the connections."""
        self._thread.abort()

    def _reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> Any:  # noqa: ANN401
        memory, size = TensorBytes(whole), output.numel()

        def done() -> None:
            block = whole[self.rank() * size :][:size]
            output.detach().copy_(block.reshape(output.shape))

        return self._submit(output, partial(self._collectives.reduce_scatter, memory, read_operation(opts)), done)

    def _exchange(self, sends: Sequence[Any], receives: Sequence[Any], result: Any) -> Any:  # noqa: ANN401
        """Send a tensor to each member and receive one from each; None: nothing."""
        parts = [np.empty(0, np.uint8) if tensor is None else TensorBytes(tensor).bytes for tensor in sends]
        targets = [None if tensor is None else TensorBytes(tensor) for tensor in receives]
        blocks = Blocks(parts, [0 if target is None else target.bytes.size for target in targets])

        def done() -> None:
            for member, target in enumerate(targets):
                if target is not None:
                    target.bytes[:] = blocks.received(member, self.rank())
                    target.write_back()

        return self._submit(result, partial(self._collectives.exchange, blocks), done)

    def _submit(self, result: Any, start: Start, done: Callable[[], None]) -> Any:  # noqa: ANN401
        """Hand a work to the thread; return what torch waits for."""
        return FutureWork(self._thread.submit(start, done, result))


class FutureWork(C10D.Work):  # type: ignore[misc]
    """A work with a future. Unlike that of torch's own class, its `wait` raises the error of the future."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, _timeout: Any = None) -> bool:  # noqa: ANN401
        """Return when the work is complete. Raises the error of the group."""
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Return True if the work is complete, or has failed."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of the tensors."""
        return self._future


class AnySourceWork(FutureWork):
    """A message from any member."""

    def __init__(self, future: torch.futures.Future[Any], start: AnySource) -> None:
        super().__init__(future)
        self._start = start

    def _source_rank(self) -> int:
        return self._start.source

    source_rank = _source_rank


def _nothing() -> None:
    """Finish a work without a result."""
