"""Works: the handles of operations in progress, which torch.distributed waits for."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from ddlrun.ddl.torch.backend.errors import GroupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from torch.futures import Future

    from ddlrun.ddl.group.operation import Operation

    # Starts a collective or message; returns a function that returns whether it is complete.
    Starter = Callable[[], Callable[[], bool]]

Method = TypeVar("Method", bound="Callable[..., Any]")

FRAMES: Any = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]  # noqa: SLF001 - see `uncompiled`


def uncompiled(method: Method) -> Method:
    """Exclude a method, and what it calls, from torch.compile.

    `torch.compiler.disable` would import the compiler, which takes seconds. Before PyTorch 2.7 this does nothing.
    """
    if hasattr(FRAMES, "set_code_exec_strategy"):
        skip = FRAMES._FrameAction.SKIP  # noqa: SLF001
        FRAMES.set_code_exec_strategy(method.__code__, FRAMES._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return method


C10D: Any = torch._C._distributed_c10d  # noqa: SLF001 - the class of works is not public

# The name of threads that run callbacks.
CALLBACKS = "ddl callbacks"
# The longest wait for a thread at the end of the process, in seconds: a callback may never return.
LONGEST_LEAVE = 5.0


class Call(NamedTuple):
    """A collective or message as a script called it."""

    name: str
    result: Any
    """The value of the future, once the call is complete."""
    seconds: float | None = None
    """The time limit; None: that of the group."""
    missing: str = ""
    """The reason why a message is late, such as "no message of rank 2"; "" for a collective."""
    peer: int | None = None
    """The rank to which a message goes, or from which it comes; None: there is none, or any."""
    tag: int = 0


class Work:
    """A collective or message: first it waits to be started, then it is in progress.

    Args:
        call: The call of the script.
        start: Begins it; returns a function that returns whether it is complete.
        done: Finishes it; None: nothing is left to do.
        seconds: Its time limit.
    """

    def __init__(self, call: Call, start: Starter, done: Callable[[], None] | None, seconds: float) -> None:
        self.call, self.start, self._done = call, start, done
        self.seconds, self.until = seconds, time.monotonic() + seconds
        self.number = 0
        """The number of a collective, from 1; 0: a message."""
        self.future: Future[Any] = torch.futures.Future()
        """The later result of the call."""
        self.is_complete: Callable[[], bool] = bool
        """Returns whether it is complete; before the start, False."""

    def finish(self) -> None:
        """Hand the result over, or the error of this work alone: all of its messages are complete."""
        try:
            if self._done is not None:
                self._done()
        except Exception as error:  # noqa: BLE001 - whatever it is: callers wait for the thread alone
            self.future.set_exception(error)
        else:
            self.future.set_result(self.call.result)


class MeasuringAllreduce:
    """An allreduce before which measurements are made: a collective in progress, as Starter returns it.

    They need the thread for themselves, and begin when all members have called it: until then, a member may wait for a
    message of another one. It is first called when the collectives before it are complete.
    """

    over = False
    """True once the collectives after it may begin."""

    def __init__(
        self,
        measurements: Sequence[Callable[[], None]],
        barrier: Operation | None,
        start: Callable[[], Operation | None],
    ) -> None:
        """Take a barrier, which is complete once all members have begun it, and the start of the allreduce."""
        self._measurements, self._start = measurements, start
        self._has_begun = False
        self._operation = barrier

    def __call__(self) -> bool:
        """Measure, then begin the allreduce; return whether it is complete.

        It may wait for messages of other ranks. Raises TimeoutError if a work has run out of time.
        """
        if not self._has_begun and self._is_complete():
            self._has_begun = True  # and never again if a work runs out of time meanwhile
            for measure in self._measurements:
                measure()
            self._operation = self._start()
            self.over = True
        return self.over and self._is_complete()

    def _is_complete(self) -> bool:
        return self._operation is None or not self._operation.left


class FutureWork(C10D.Work):  # type: ignore[misc]
    """A work with a future. Unlike that of torch's own class, its `wait` raises the error of the future."""

    def __init__(self, future: Future[Any], result: Any, source: Callable[[], int] | None = None) -> None:  # noqa: ANN401
        """Wrap a future and its later value. `source` returns the sender of a received message, -1 if unknown."""
        super().__init__()
        self._future, self._result, self._source = future, result, source
        self._given = future
        """The future that the script has, which is complete when `wait` returns."""

    @uncompiled
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the work is complete.

        Raises GroupError if that takes longer than the timeout, after which the work goes on, and the error of the
        group.
        """
        seconds = 0.0 if timeout is None else timeout.total_seconds()
        if seconds > 0 and not self._is_done_within(seconds):
            raise GroupError(f"wait() timed out after {seconds:g} s: the operation was not complete")
        self._future.wait()
        self._given.wait()
        return True

    @uncompiled
    def is_completed(self) -> bool:
        """Return True if the work is complete, or has failed."""
        return self._given.done()

    @uncompiled
    def is_success(self) -> bool:
        """Return True if the work is complete and has not failed."""
        return self._future.done() and self.exception() is None

    @uncompiled
    def exception(self) -> Exception | None:
        """Return the error of a work that is complete, or None."""
        try:
            self._future.value()
        except Exception as error:  # noqa: BLE001 - any error of the group
            return error
        return None

    @uncompiled
    def synchronize(self) -> None:
        """Return when the work is complete."""
        self._future.wait()

    @uncompiled
    def result(self) -> Any:  # noqa: ANN401
        """Return the tensors of a work that is complete."""
        return self._future.value()

    @uncompiled
    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of the tensors.

        It fails as C++ code expects. The error of `self._future` is a value, which DistributedDataParallel would take
        for tensors. Its callbacks run in a thread of their own: those of torch's hook for PowerSGD wait for other
        works, which the progress thread must move on.
        """
        complete: torch.futures.Future[None] = torch.futures.Future()

        def run_callbacks(_future: torch.futures.Future[Any]) -> None:
            threading.Thread(target=complete.set_result, args=(None,), name=CALLBACKS, daemon=True).start()

        if self._future.done():
            complete.set_result(None)
        else:
            self._future.add_done_callback(run_callbacks)
        future: torch.futures.Future[Any] = complete.then(lambda _complete: self._future.value())
        # DDP's own hook for float16 is C++, which cannot use a Python list as a value.
        is_from_python = "get_future" in sys._getframe(1).f_code.co_names  # noqa: SLF001
        if not is_from_python and _is_one_half(self._result):
            future = _list_future()(future, self._result)
        self._given = future
        return future

    @uncompiled
    def _source_rank(self) -> int:
        return int(super()._source_rank()) if self._source is None else self._source()

    source_rank = _source_rank

    def _is_done_within(self, seconds: float) -> bool:
        done = threading.Event()
        self._future.add_done_callback(lambda _future: done.set())
        return done.wait(seconds)


def _is_one_half(result: Any) -> bool:  # noqa: ANN401
    return isinstance(result, list) and len(result) == 1 and getattr(result[0], "dtype", None) is torch.float16


@cache
def _list_future() -> Any:  # noqa: ANN401
    """Return a function that makes a C++ future of a list of tensors, completed after another future.

    Callbacks of such a future run in torch's pool of threads, where they must not wait for other works.
    """
    return torch.jit.CompilationUnit("""
        def value(complete: Future[int], result: List[Tensor]):
            torch.jit.wait(complete)
            return result

        def start(complete: Future[int], result: List[Tensor]):
            return torch.jit.fork(value, complete, result)
    """).start


@atexit.register
def _await_callbacks() -> None:
    """Wait until no callback runs: Python would kill its thread in C++ code, which aborts the process.

    The thread of a callback may outlive its group, which ends once the work is complete.
    """
    for thread in threading.enumerate():
        if thread.name == CALLBACKS:
            thread.join(LONGEST_LEAVE)
