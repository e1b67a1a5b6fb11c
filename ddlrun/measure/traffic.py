"""Traffic between pairs of ranks, directed by rank 0."""

import ast
import math
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ddlrun.measure.pair_rates import Pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Seconds before the measurement, in which shapers empty their buckets and TCP finds its rate; and seconds measured.
LEAD, SECONDS = 0.1, 0.2
# The duration of an exchange: short enough to keep pairs in step, long enough for its overhead not to count.
EXCHANGE_SECONDS = 0.005
SMALLEST, LARGEST = 1 << 14, 1 << 24
# Exchanges under way: while a busy core lets a rank wait, the next one keeps the link busy.
DEPTH = 2
# Exchanges that are measured at least: those that arrived while a rank waited for a core count as one more.
LEAST_EXCHANGES = 20
PINGS = 8
MOST_TRIES = 4
# Below this rate, in bytes/s, a rank sleeps between two polls and leaves its core to others.
SLOW_LINK = 1e9
NAP = 1e-4


class Traffic:
    """Traffic of all ranks: rank 0 calls it, the others `serve` until rank 0 calls `end`."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._chunk = 2 * SMALLEST
        self._nap = NAP
        self.latencies: dict[Pair, float] = {}
        """Pair -> the least seconds of a message of one byte."""

    def __call__(self, pairs: Sequence[Pair]) -> list[float]:
        """Let pairs of ranks exchange data at the same time; return the bytes/s of each pair, one direction."""
        rates, latencies = self._round(pairs)
        for pair, latency in zip(pairs, latencies, strict=True):
            key = (min(pair), max(pair))
            self.latencies[key] = min(latency, self.latencies.get(key, latency))
        return rates

    def warm_up(self, pairs: Sequence[Pair]) -> None:
        """Find the bytes of an exchange that takes EXCHANGE_SECONDS between these pairs."""
        self._chunk, self._nap = 2 * SMALLEST, NAP
        for _ in range(MOST_TRIES):
            rate = float(np.median(self._round(pairs)[0]))
            before = self._chunk
            self._nap = NAP if rate < SLOW_LINK else 0.0
            self._chunk = int(min(max(rate * EXCHANGE_SECONDS, SMALLEST), LARGEST))
            if self._chunk < 2 * before:
                break

    def serve(self) -> None:
        """Take part in the rounds of rank 0 until it ends."""
        while (order := self._broadcast(None)) is not None:
            self._take_part(*order)

    def end(self) -> None:
        """Let the other ranks return from `serve`."""
        self._broadcast(None)

    def _round(self, pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
        """Run one round; return the rate and the latency of each pair, the lower ones of its two ranks."""
        order = self._broadcast((list(pairs), self._chunk, self._nap))
        results = self._take_part(*order)
        ends = [(results[rank], results[other]) for rank, other in pairs]
        return [min(a[0], b[0]) for a, b in ends], [min(a[1], b[1]) for a, b in ends]

    def _broadcast(self, order: Any) -> Any:  # noqa: ANN401 - a tuple, or None
        """Broadcast an order of rank 0; the other ranks sleep while they wait for it."""
        size = np.zeros(1, np.int64)
        text = repr(order).encode() if self._comm.rank == 0 else b""
        size[0] = len(text)
        self._await(self._comm.Ibcast(size))
        buffer = bytearray(text or bytes(int(size[0])))
        self._await(self._comm.Ibcast(buffer))
        return ast.literal_eval(buffer.decode())

    def _await(self, *requests: MPI.Request) -> None:
        while not MPI.Request.Testall(list(requests)):
            if self._nap:
                time.sleep(self._nap)
            else:
                os.sched_yield()

    def _take_part(self, pairs: Sequence[Pair], chunk: int, nap: float) -> list[tuple[float, float]]:
        self._nap = nap
        own = next((pair for pair in pairs if self._comm.rank in pair), None)
        peer = None
        if own is not None:
            peer = own[1] if own[0] == self._comm.rank else own[0]
        latency = self._ping(peer) if peer is not None else 0.0
        self._await(self._comm.Ibarrier())
        rate = self._exchange(peer, chunk) if peer is not None else 0.0
        results = np.empty((self._comm.size, 2))
        self._await(self._comm.Igather(np.array([rate, latency]), results))
        return [(float(rate), float(latency)) for rate, latency in results]

    def _ping(self, peer: int) -> float:
        """Return the least seconds of a message; the first one opens the connection."""
        times = []
        byte, back = bytearray(1), bytearray(1)
        for _ in range(PINGS):
            start = time.perf_counter()
            if self._comm.rank < peer:
                self._comm.Send(byte, peer)
                self._comm.Recv(back, peer)
            else:
                self._comm.Recv(back, peer)
                self._comm.Send(byte, peer)
            times.append((time.perf_counter() - start) / 2)
        return min(times)

    def _exchange(self, peer: int, chunk: int) -> float:
        """Return the bytes/s of chunks exchanged in step; the first byte is 0 when a rank is done."""
        buffers = [(np.zeros(chunk, np.uint8), np.empty(chunk, np.uint8)) for _ in range(DEPTH)]
        under_way: deque[tuple[NDArray[np.uint8], NDArray[np.uint8], list[MPI.Request]]] = deque()
        count, going = 0, True
        begin = mark = math.inf  # the first exchange has ended: both ranks are here; the measurement has begun
        now = time.perf_counter()
        while going or under_way:
            while going and len(under_way) < DEPTH:
                out, back = buffers[0]
                buffers.reverse()
                out[0] = count < LEAST_EXCHANGES or now < mark + SECONDS
                under_way.append((out, back, [self._comm.Irecv(back, peer), self._comm.Isend(out, peer)]))
            out, back, requests = under_way.popleft()
            self._await(*requests)
            now = time.perf_counter()
            begin = min(begin, now)
            if mark < math.inf:
                count += 1
            elif now >= begin + LEAD:
                mark = now
            going = going and bool(out[0] or back[0])
        return count * chunk / (now - mark)
