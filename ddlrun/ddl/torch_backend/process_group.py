"""The backend "ddl" of torch.distributed: `torch.distributed.init_process_group("ddl")`.

Import `ddlrun.ddl.torch` first, which registers it. Each process group has a thread that moves its messages, over TCP.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import distributed as torch_distributed

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, ONE_HOST, dimension_algorithm
from ddlrun.ddl.engine import Engine
from ddlrun.ddl.flat import as_numpy
from ddlrun.ddl.group_schedules import broadcast, pairwise
from ddlrun.ddl.reduce_ops import WIDE, find_reduce_op
from ddlrun.ddl.reduce_ops import ReduceOp as Operator
from ddlrun.ddl.rendezvous import find_rendezvous_address
from ddlrun.ddl.schedule import Dimension, mirror, reduce_scatter
from ddlrun.ddl.tcp.address_exchange import Membership
from ddlrun.ddl.tcp.communicator import Messages, TcpCommunicator, TcpTransport
from ddlrun.ddl.tcp.store_exchange import join_by_store
from ddlrun.errors import DdlrunError, InputError, LostRankError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from ddlrun.ddl.operation import Chunk, Operation
    from ddlrun.ddl.schedule import ScheduleStep
    from ddlrun.ddl.tcp.endpoint import Endpoint

    Tensors = list[torch.Tensor]

distributed: Any = torch_distributed  # its stubs differ from the methods that it calls
ReduceOp: Any = distributed.ReduceOp
C10D: Any = torch._C._distributed_c10d  # noqa: SLF001 - there is no public way to create a work

NAME = "ddl"
NAMES = {
    ReduceOp.SUM: "sum", ReduceOp.AVG: "avg", ReduceOp.MAX: "max", ReduceOp.MIN: "min", ReduceOp.PRODUCT: "prod",
}  # fmt: skip
BITWISE = {ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or, ReduceOp.BXOR: np.bitwise_xor}
BYTES = find_reduce_op("uint8", "sum")
# Seconds after which the thread looks for works that have run out of time.
CHECK = 1.0


def register() -> None:
    """Register the backend for tensors on the CPU. A second call does nothing."""
    if not hasattr(distributed.Backend, NAME.upper()):
        distributed.Backend.register_backend(NAME, _make_group, devices=["cpu"])


def _make_group(store: Any, rank: int, size: int, timeout: timedelta) -> DdlProcessGroup:  # noqa: ANN401
    address = os.environ.get("MASTER_ADDR") or find_rendezvous_address({}, one_host=False)
    job = Membership(
        rank=rank,
        size=size,
        address=address,
        port=0,
        secret=os.environ.get("DDLRUN_DDL_SECRET", "").encode(),
        seconds=timeout.total_seconds(),
    )
    return DdlProcessGroup(join_by_store(job, store), timeout)


class _Memory:
    """The bytes of a tensor, contiguous: its own, or a copy of them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu":
            raise InputError(f"backend ddl: a tensor on {tensor.device}; it reduces tensors on the CPU")
        self._tensor = tensor.detach()
        self._whole = self._tensor.contiguous()

    @property
    def bytes(self) -> Any:  # noqa: ANN401 - a numpy array of uint8
        return self._whole.reshape(-1).view(torch.uint8).numpy()

    @property
    def elements(self) -> tuple[Any, str]:
        """The elements as a flat numpy array, and the name of their dtype."""
        return as_numpy(self._whole.reshape(-1))

    def write_back(self) -> None:
        """Copy the bytes to the tensor if they are a copy."""
        if self._whole.data_ptr() != self._tensor.data_ptr():
            self._tensor.copy_(self._whole)


class _Work(NamedTuple):
    """A collective or message in progress. `done` finishes it, `until` is its limit (time.monotonic)."""

    is_complete: Callable[[], bool]
    done: Callable[[], None]
    future: torch.futures.Future[Any]
    until: float


class DdlProcessGroup(distributed.ProcessGroup):  # type: ignore[misc]
    """A process group over an endpoint of its own. All members create it together.

    Works are started in the order of their calls, by the thread, which also completes them.
    """

    def __init__(self, endpoint: Endpoint, timeout: timedelta) -> None:
        super().__init__(endpoint.rank, endpoint.size)
        self._endpoint, self._timeout = endpoint, timeout.total_seconds()
        self._members = TcpCommunicator(endpoint, range(endpoint.size), 1)
        self._pairs = self._members.Dup()
        transport: TcpTransport[Chunk] = TcpTransport(self._members.Dup())
        self._engine = Engine(transport, endpoint.rank)
        self._dimensions: list[Dimension] | None = None
        self._commands: deque[Callable[[], None]] = deque()
        self._works: list[_Work] = []
        self._failure: Exception | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="ddl process group", daemon=True)
        self._thread.start()

    # -- what torch calls

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
        memory = _Memory(_only(tensors))
        op = _operation(opts)
        return self._submit(tensors, partial(self._start_allreduce, memory, op), memory.write_back)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:  # noqa: ANN401
        """Reduce tensors in place, one after the other."""
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return works[-1]

    def reduce(self, tensors: Tensors, opts: Any) -> Any:  # noqa: ANN401
        """Reduce a tensor over all members; the result is in that of the root."""
        tensor = _only(tensors)
        memory = _Memory(tensor.detach().clone())

        def done() -> None:
            if self.rank() == opts.rootRank:
                memory.write_back()
                tensor.detach().copy_(memory._whole.reshape(tensor.shape))  # noqa: SLF001

        return self._submit(tensors, partial(self._start_allreduce, memory, _operation(opts)), done)

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:  # noqa: ANN401
        """Fill a tensor with that of the root."""
        memory = _Memory(_only(tensors))
        steps = partial(_broadcast, self.rank(), self.size(), opts.rootRank)
        return self._submit(tensors, lambda: self._chunks(memory.bytes, BYTES, steps), memory.write_back)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Copy the tensor of each member to all of them."""
        mine = _Memory(_only(inputs))
        rows = np.empty((self.size(), mine.bytes.size), np.uint8)
        rows[self.rank()] = mine.bytes
        targets = [_Memory(tensor) for tensor in outputs[0]]

        def done() -> None:
            for target, row in zip(targets, rows, strict=True):
                target.bytes[:] = row
                target.write_back()

        return self._submit(outputs, lambda: self._whole(rows.reshape(-1), BYTES, self._gather_steps), done)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:  # noqa: ANN401, ARG002
        """Fill a tensor with those of all members, one after the other."""
        memory, mine = _Memory(output), _Memory(source)
        memory.bytes.reshape(self.size(), -1)[self.rank()] = mine.bytes
        return self._submit(output, lambda: self._whole(memory.bytes, BYTES, self._gather_steps), memory.write_back)

    _allgather_base = all_gather_single

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Any:  # noqa: ANN401
        """Reduce a tensor per member, each for its member."""
        whole = torch.cat([tensor.detach().reshape(-1) for tensor in inputs[0]])
        return self._reduce_scatter(_only(outputs), whole, opts)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> Any:  # noqa: ANN401
        """Reduce a tensor; each member gets its block."""
        return self._reduce_scatter(output, source.detach().reshape(-1).clone(), opts)

    _reduce_scatter_base = reduce_scatter_single

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> Any:  # noqa: ANN401
        """Copy the tensor of each member to the root."""
        at_root = self.rank() == opts.rootRank
        sends: list[Any] = [None] * self.size()
        sends[opts.rootRank] = _only(inputs)
        return self._exchange(sends, outputs[0] if at_root else [None] * self.size(), outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> Any:  # noqa: ANN401
        """Copy a tensor per member from the root to its member."""
        at_root = self.rank() == opts.rootRank
        receives: list[Any] = [None] * self.size()
        receives[opts.rootRank] = _only(outputs)
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
        memory, messages = _Memory(_only(tensors)), Messages(self._pairs)
        start = partial(messages.send, memory.bytes, peer, tag)
        return self._submit(tensors, lambda: _after(start, messages), lambda: None)

    def recv(self, tensors: Tensors, peer: int, tag: int) -> Any:  # noqa: ANN401
        """Receive a tensor from a member."""
        memory, messages = _Memory(_only(tensors)), Messages(self._pairs)
        start = partial(messages.receive, memory.bytes, peer, tag)
        return self._submit(tensors, lambda: _after(start, messages), memory.write_back)

    def shutdown(self) -> None:
        """Complete what is in progress and close the connections."""
        self._ends = True
        self._endpoint.wake()
        self._thread.join()

    def abort(self) -> None:
        """Let all works fail, and close the connections."""
        self._failure = LostRankError("the process group was aborted")
        self.shutdown()

    # -- how collectives are carried out

    def _reduce_scatter(self, output: torch.Tensor, whole: torch.Tensor, opts: Any) -> Any:  # noqa: ANN401
        memory, size = _Memory(whole), output.numel()
        operator = partial(_find_operator, _operation(opts))

        def start() -> Callable[[], bool]:
            elements, dtype = memory.elements
            operation = operator(dtype)
            return self._whole(elements, operation, partial(self._scatter_steps, division=operation.division))

        def done() -> None:
            block = whole[self.rank() * size :][:size]
            output.detach().copy_(block.reshape(output.shape))

        return self._submit(output, start, done)

    def _exchange(self, sends: Sequence[Any], receives: Sequence[Any], result: Any) -> Any:  # noqa: ANN401
        """Send a tensor to each member and receive one from each; None: nothing."""
        out = [np.empty(0, np.uint8) if tensor is None else _Memory(tensor).bytes for tensor in sends]
        targets = [None if tensor is None else _Memory(tensor) for tensor in receives]
        sizes = [0 if target is None else target.bytes.size for target in targets]
        begins = [0, *accumulate(part.size for part in out)]
        ends = [begins[-1], *(begins[-1] + size for size in accumulate(sizes))]
        buffer = np.empty(ends[-1], np.uint8)
        buffer[: begins[-1]] = np.concatenate(out)
        me = self.rank()
        steps = pairwise(me, begins, ends)

        def done() -> None:
            for rank, target in enumerate(targets):
                if target is not None:
                    at = begins if rank == me else ends
                    target.bytes[:] = buffer[at[rank] : at[rank + 1]]
                    target.write_back()

        return self._submit(result, lambda: self._whole(buffer, BYTES, lambda _count: steps), done)

    def _start_allreduce(self, memory: _Memory, op: ReduceOp) -> Callable[[], bool]:
        elements, dtype = memory.elements
        operator = _find_operator(op, dtype)

        def steps(count: int, division: str) -> tuple[ScheduleStep, ...]:
            scatter = reduce_scatter(self._grid(), count, division=division)
            return (*scatter, *mirror(scatter))

        return self._chunks(elements, operator, steps)

    def _scatter_steps(self, count: int, division: str = "") -> tuple[ScheduleStep, ...]:
        return tuple(reduce_scatter(self._line(), count, division=division))

    def _gather_steps(self, count: int) -> tuple[ScheduleStep, ...]:
        return tuple(mirror(reduce_scatter(self._line(), count)))

    def _chunks(self, elements: Any, operator: Operator, steps: Any) -> Callable[[], bool]:  # noqa: ANN401
        """Start an operation in chunks; return a function that returns whether it is complete."""
        tuning = ONE_HOST if len(self._grid()) == 1 else BETWEEN_HOSTS
        longest = max(tuning.chunk // elements.itemsize, 1)
        return _is_over(self._engine.start(elements, operator, steps, longest, tuning.depth))

    def _whole(self, elements: Any, operator: Operator, steps: Any) -> Callable[[], bool]:  # noqa: ANN401
        """Start an operation in one chunk."""
        longest = max(len(elements), 1)
        return _is_over(self._engine.start(elements, operator, lambda count, _division: steps(count), longest))

    def _grid(self) -> list[Dimension]:
        """Return the dimensions of an allreduce: the ranks of this host, then hosts; all ranks if hosts differ."""
        if self._dimensions is None:
            hosts = [self._endpoint.address_of(rank).host for rank in range(self.size())]
            by_host: dict[str, list[int]] = {}
            for rank, host in enumerate(hosts):
                by_host.setdefault(host, []).append(rank)
            mine = by_host[hosts[self.rank()]]
            at = mine.index(self.rank())
            if len(by_host) == 1 or len({len(ranks) for ranks in by_host.values()}) > 1:
                self._dimensions = self._line()
            else:
                across = tuple(ranks[at] for ranks in by_host.values())
                self._dimensions = [_dimension(tuple(mine), self.rank()), _dimension(across, self.rank())]
        return self._dimensions

    def _line(self) -> list[Dimension]:
        return [_dimension(tuple(range(self.size())), self.rank())]

    # -- the thread

    def _submit(self, result: Any, start: Callable[[], Callable[[], bool]], done: Callable[[], None]) -> Any:  # noqa: ANN401
        """Hand a work to the thread; return what torch waits for."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        until = time.monotonic() + self._timeout

        def command() -> _Work:
            return _Work(start(), partial(_finish, future, done, result), future, until)

        self._commands.append(partial(self._try_start, command, future))
        self._endpoint.wake()
        return C10D._create_work_from_future(future)  # noqa: SLF001

    def _try_start(self, command: Callable[[], _Work], future: torch.futures.Future[Any]) -> None:
        if self._failure is not None:
            future.set_exception(self._failure)
            return
        try:
            self._works.append(command())
        except (DdlrunError, RuntimeError, ValueError, TypeError) as error:
            future.set_exception(error)

    def _run(self) -> None:
        """Start works, move messages, and complete works, until the group ends."""
        while self._works or self._commands or not self._ends:
            while self._commands:
                self._commands.popleft()()
            self._complete()
            if self._failure is None and not self._commands:
                self._move()
            if self._failure is not None:
                self._fail()
                if not self._ends:
                    time.sleep(CHECK / 100)
        self._endpoint.close()

    def _move(self) -> None:
        try:
            self._endpoint.poll(CHECK if self._works or not self._ends else 0)
            self._engine.progress()
        except (DdlrunError, RuntimeError) as error:
            self._failure = error

    def _complete(self) -> None:
        for work in [work for work in self._works if work.is_complete()]:
            self._works.remove(work)
            work.done()
        if any(work.until < time.monotonic() for work in self._works):
            ranks = ", ".join(map(str, self._endpoint.awaited())) or "others"
            self._failure = LostRankError(
                f"rank {self.rank()} of {self.size()}: no message of rank {ranks} for {self._timeout:.0f} s"
            )

    def _fail(self) -> None:
        while self._works:
            self._works.pop().future.set_exception(self._failure)


def _broadcast(rank: int, size: int, root: int, count: int, _division: str) -> tuple[ScheduleStep, ...]:
    return broadcast(rank, size, root, count)


def _dimension(peers: tuple[int, ...], rank: int) -> Dimension:
    return Dimension(peers, peers.index(rank), dimension_algorithm("r", len(peers)))


def _operation(opts: Any) -> ReduceOp:  # noqa: ANN401
    return ReduceOp.SUM if opts is None else opts.reduceOp


def _find_operator(op: ReduceOp, dtype: str) -> Operator:
    for known, function in BITWISE.items():
        if op == known and dtype in WIDE:
            return Operator(dtype, "bitwise", partial(_combine, function))
    for known, name in NAMES.items():
        if op == known:
            return find_reduce_op(dtype, name)
    raise InputError(f"backend ddl: no operation {op} of {dtype}")


def _combine(function: np.ufunc, mine: Any, theirs: Any, _divisor: int) -> None:  # noqa: ANN401
    function(mine, theirs, out=mine)


def _only(tensors: Tensors) -> torch.Tensor:
    if len(tensors) != 1:
        raise InputError(f"backend ddl: {len(tensors)} tensors instead of one")
    return tensors[0]


def _is_over(operation: Operation) -> Callable[[], bool]:
    return lambda: not operation.left


def _after(start: Callable[[], None], messages: Messages) -> Callable[[], bool]:
    start()
    return lambda: not messages.open


def _finish(future: torch.futures.Future[Any], done: Callable[[], None], result: Any) -> None:  # noqa: ANN401
    done()
    future.set_result(result)
