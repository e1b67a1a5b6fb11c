"""Hosts that talk in pairs, one rank each, as rank 0 says."""

import ast
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ddlrun.measure.pair_rates import Pair

# Seconds before what counts: shapers let some bytes pass at once, TCP finds its rate; and seconds that count.
LEAD, SECONDS = 0.1, 0.2
# An exchange of about so many seconds keeps pairs in step and costs little beside the bytes.
EXCHANGE_SECONDS = 0.005
SMALLEST, LARGEST = 1 << 15, 1 << 24
PINGS = 8
MOST_TRIES = 4
# Bytes/s; slower links leave time to sleep between two looks, to whoever shares the cores.
LEISURE = 1e9
NAP = 1e-4


class Traffic:
    """All ranks make one; rank 0 calls it, the others `serve` until rank 0 has ended."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._chunk = 2 * SMALLEST
        self._nap = NAP
        self.latencies: dict[Pair, float] = {}
        """Seconds of a message of a byte, the least of all; of pairs that have met."""

    def __call__(self, pairs: Sequence[Pair]) -> list[float]:
        """Let these pairs of ranks exchange at once; return the bytes/s of each, one direction."""
        rates, latencies = self._round(pairs)
        for pair, latency in zip(pairs, latencies, strict=True):
            key = (min(pair), max(pair))
            self.latencies[key] = min(latency, self.latencies.get(key, latency))
        return rates

    def warm_up(self, pairs: Sequence[Pair]) -> None:
        """Find how much an exchange carries in EXCHANGE_SECONDS over the links between these pairs."""
        self._chunk, self._nap = 2 * SMALLEST, NAP
        for _ in range(MOST_TRIES):
            rate = float(np.median(self._round(pairs)[0]))
            before = self._chunk
            self._nap = NAP if rate < LEISURE else 0.0
            self._chunk = int(min(max(rate * EXCHANGE_SECONDS, SMALLEST), LARGEST))
            if self._chunk < 2 * before:
                break

    def serve(self) -> None:
        """Do what rank 0 says, until it ends."""
        while (told := self._tell(None)) is not None:
            self._take_part(*told)

    def end(self) -> None:
        """Let the others return from `serve`."""
        self._tell(None)

    def _round(self, pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
        told = self._tell((list(pairs), self._chunk, self._nap))
        found = self._take_part(*told)
        ends = [(found[one], found[other]) for one, other in pairs]
        return [min(a[0], b[0]) for a, b in ends], [min(a[1], b[1]) for a, b in ends]

    def _tell(self, what: Any) -> Any:  # noqa: ANN401 - a tuple, or None
        """Send rank 0's word to all; who waits for it, sleeps."""
        size = np.zeros(1, np.int64)
        text = repr(what).encode() if self._comm.rank == 0 else b""
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
        peer = None if own is None else own[own[0] == self._comm.rank]
        latency = self._ping(peer) if peer is not None else 0.0
        self._await(self._comm.Ibarrier())
        rate = self._exchange(peer, chunk) if peer is not None else 0.0
        answers = np.empty((self._comm.size, 2))
        self._await(self._comm.Igather(np.array([rate, latency]), answers))
        return [(float(one[0]), float(one[1])) for one in answers]

    def _ping(self, peer: int) -> float:
        """Return the seconds of a message; the first one opens the connection."""
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
        """Exchange chunks in step, until one of both has seen enough; the first byte says whether it has."""
        out, back = np.zeros(chunk, np.uint8), np.empty(chunk, np.uint8)
        begin = now = mark = time.perf_counter()
        count, going = -1, True
        while going:
            out[0] = count < 2 or now < begin + LEAD + SECONDS
            self._await(self._comm.Irecv(back, peer), self._comm.Isend(out, peer))
            now = time.perf_counter()
            if count >= 0:
                count += 1
            elif now >= begin + LEAD:
                mark, count = now, 0
            going = bool(out[0]) and bool(back[0])
        return count * chunk / (now - mark) if count > 0 else chunk / (now - begin)
