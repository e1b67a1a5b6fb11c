"""Allreduce algorithms: the modes, sizes and candidates that `ddl` runs and `network` models."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KIB, MIB, GIB = 2**10, 2**20, 2**30

ALGORITHMS = {"r": "ring", "b": "ring", "n": "ring", "c": "halving"}
# All modes: m uses the MPI library's collectives, p searches for the fastest algorithm.
MODES = (*ALGORITHMS, "m", "p")
# Modes that leave small messages to MPI_Allreduce. The others name one algorithm, so they use it for all sizes.
FLAT_MODES = "bnp"
# Learners of a dimension up to which direct exchange is the default of mode p.
MAX_DIRECT = 4
# The algorithms of an allreduce whose blocks are sized by the rates of the links: a single one, for all dimensions.
WEIGHTED = ("weighted",)
# Wires that it does not support. It divides averages at the end alone, when sums may have left the range of float16,
# and its blocks do not begin with a group of int8.
NOT_WEIGHTED = ("float16", "int8")
# The algorithm of an allreduce that takes the ranks of a late host last. It has one wire, float32: with others the late
# host and the rest would round different sums.
LATE = ("late",)
# Its chunks: shares of the array, between limits, and chunks in flight. Those in flight are a sixteenth of the array:
# when the late host has sent all, the others still have to pass these on.
LATE_CHUNKS, SMALLEST_LATE_CHUNK, LARGEST_LATE_CHUNK, LATE_DEPTH = 64, 64 * KIB, 512 * KIB, 4
# Candidates of the search: bytes of a chunk, most promising first, and chunks in flight.
CHUNKS = [kib * 1024 for kib in (96, 32, 64, 128, 256, 512, 1024, 4096)]
DEPTHS = (2, 4, 16)
# Connections to a rank of another host, where networks limit the rate of each connection.
CONNECTIONS, MOST_CONNECTIONS = (4,), 16


class Tuning(NamedTuple):
    """The sizes that an allreduce works with.

    chunk: bytes of a chunk, as sent. depth: chunks in flight. flat: bytes up to which MPI_Allreduce is used. bucket:
    bytes of a bucket. explore: trial reductions that mode p may spend per message class; 0: none, it uses the sizes
    above. wire: the type that float32 is sent as, in the format of `wire_compression.parse_wire`; messages of up to
    `flat` bytes are sent as float32. measure: bytes that mode p reduces between two measurements of the NICs, if it
    explores; 0: it measures none, and takes no late host last. connections: connections to each rank of another host,
    over TCP without MPI.
    """

    chunk: int = 96 * KIB
    depth: int = 8
    flat: int = 64 * KIB
    bucket: int = 4 * MIB
    explore: int = 40
    wire: str = ""
    # A measurement sends up to 128 MiB per NIC, 0.4 % of what these reductions send.
    measure: int = 32 * GIB
    connections: int = 1


# Measured. Between hosts, small chunks keep all links busy, and half a chunk of 96 KiB is still sent eagerly over TCP
# (up to 64 KiB). In a host's shared memory there is a single link and each chunk has a cost, and MPI's own allreduce is
# faster as long as its temporary memory is cheap.
BETWEEN_HOSTS = Tuning()
ONE_HOST = Tuning(chunk=512 * KIB, depth=4, flat=16 * MIB)
# Over TCP sockets of our own every message costs CPU time, so chunks grow with the array: to an eighth of it, up to
# 1 MiB. With more than 3 in flight, links are idle at the end: they reduce-scatter late chunks before they allgather
# early ones. Blocks sized by the links pass through more ranks one after the other, and need shorter chunks.
TCP_CHUNKS, WEIGHTED_CHUNKS, LARGEST_TCP_CHUNK, TCP_DEPTH = 8, 32, MIB, 3
# On one host ranks copy long messages from each other's memory. There is a single link, so that several chunks only
# cost. Bytes per rank:
LARGEST_LOCAL_CHUNK = 2 * MIB
# Over TCP, ranks of a host exchange parts of an array that are longer than chunks, with fewer messages: at most a
# quarter of it, so that the links between hosts do not wait long. Arrays of up to 10 chunks have no parts, which would
# delay them.
HOST_PARTS, MOST_WITHOUT_PARTS = 4, 10


def host_part(size: int, chunk: int, host_ranks: int) -> int:
    """Return the bytes of a part of an array that ranks of a host exchange; 0 if parts are not used.

    Args:
        size: Bytes of the array.
        chunk: Bytes of a chunk.
        host_ranks: The number of ranks of the host.
    """
    part = min(size // HOST_PARTS, LARGEST_LOCAL_CHUNK * host_ranks)
    return part if host_ranks > 1 and size > MOST_WITHOUT_PARTS * chunk and part > chunk else 0


@lru_cache(maxsize=64)
def grow_chunks(tuning: Tuning, size: int, *, local_ranks: int, weighted: bool) -> Tuning:
    """Return the sizes for an array that is reduced over TCP.

    Args:
        tuning: The sizes for small arrays.
        size: Bytes of the array.
        local_ranks: The number of ranks if they are on one host, otherwise 0.
        weighted: Blocks are sized by the links.
    """
    chunk = min(size // (WEIGHTED_CHUNKS if weighted else TCP_CHUNKS), LARGEST_TCP_CHUNK)
    if local_ranks:
        chunk = min(size, LARGEST_LOCAL_CHUNK * local_ranks)
    return tuning._replace(chunk=max(tuning.chunk, chunk))


class AllreduceAlgorithm(NamedTuple):
    """How an array is reduced.

    method: "flat" is a single MPI_Allreduce, "native" is MPI's Reduce_scatter and Allgatherv in each dimension,
    "chunks" is the engine's own messages. For "chunks" alone: algorithms, the algorithm of each dimension, LATE or
    WEIGHTED; chunk, the bytes of a chunk as sent; depth, the chunks in flight; wire, the type that float32 is sent as
    and its dimensions ("bfloat16:YZ"), "" for float32; connections, those to each rank of another host over TCP.
    """

    method: Literal["flat", "native", "chunks"]
    algorithms: tuple[str, ...] = ()
    chunk: int = 0
    depth: int = 0
    wire: str = ""
    connections: int = 1

    def __str__(self) -> str:
        if self.method == "chunks":
            chunks = f"{'/'.join(self.algorithms)} in chunks of {self.chunk // 1024}K, {self.depth} at a time"
            chunks += f", over {self.connections} connections" if self.connections > 1 else ""
            return f"{chunks}, by {self.wire}" if self.wire else chunks
        return {"flat": "MPI's allreduce", "native": "MPI's collectives by dimension"}[self.method]


class MessageClass(NamedTuple):
    """The properties of an allreduce that its algorithm depends on.

    size: bytes. whole: it covers the whole grid. blocking: the caller waits for it. wire: as in `AllreduceAlgorithm`.
    weighted: the links of the job are unequal. division: when an average divides, as in `ReduceOp`.
    """

    size: int
    dtype: str
    whole: bool
    blocking: bool
    wire: str = ""
    weighted: bool = False
    division: str = ""


def dimension_algorithm(mode: str, learners: int) -> str:
    """Return the default algorithm of a mode in a dimension of `learners` learners, before any measurement."""
    return ALGORITHMS.get(mode) or ("direct" if learners <= MAX_DIRECT else "ring")


def can_weigh(message: MessageClass) -> bool:
    """Return True if an allreduce may have blocks that are sized by the links."""
    return message.whole and message.division != "each" and not message.wire.startswith(NOT_WEIGHTED)


def default_algorithm(mode: str, tuning: Tuning, learners: Sequence[int], message: MessageClass) -> AllreduceAlgorithm:
    """Return the algorithm of a mode before any measurement; `learners` has the size of each dimension."""
    if message.whole and message.blocking and mode in FLAT_MODES and message.size <= tuning.flat:
        return AllreduceAlgorithm("flat")
    if mode == "m":
        return AllreduceAlgorithm("native")
    weighted = message.weighted and can_weigh(message)
    return AllreduceAlgorithm(
        method="chunks",
        algorithms=WEIGHTED if weighted else tuple(dimension_algorithm(mode, size) for size in learners),
        chunk=tuning.chunk,
        depth=tuning.depth,
        wire=message.wire,
        connections=tuning.connections,
    )


def size_blocks(algorithm: AllreduceAlgorithm, tuning: Tuning, size: int) -> AllreduceAlgorithm:
    """Return the algorithm with blocks sized by the links, and chunks of at most a 32nd of the array."""
    if algorithm.method != "chunks":
        return AllreduceAlgorithm("chunks", WEIGHTED, tuning.chunk, tuning.depth, connections=tuning.connections)
    longest = max(tuning.chunk, size // WEIGHTED_CHUNKS)
    return algorithm._replace(algorithms=WEIGHTED, chunk=min(algorithm.chunk, longest))


def wait_for_late_host(size: int) -> AllreduceAlgorithm:
    """Return the algorithm for an array of `size` bytes with a late host."""
    chunk = min(max(size // LATE_CHUNKS, SMALLEST_LATE_CHUNK), LARGEST_LATE_CHUNK)
    return AllreduceAlgorithm("chunks", LATE, chunk, LATE_DEPTH)


class AlgorithmSpace(NamedTuple):
    """The algorithms to search for one message class.

    default: the algorithm without a search. chunked: the default in chunks. learners: the size of each dimension.
    size: bytes of the message. blocking: the caller waits for it. connections: other numbers of connections to a rank.
    """

    default: AllreduceAlgorithm
    chunked: AllreduceAlgorithm
    learners: tuple[int, ...]
    size: int
    blocking: bool
    connections: tuple[int, ...] = ()


def first_candidates(space: AlgorithmSpace) -> Iterator[AllreduceAlgorithm]:
    """Yield the default, MPI's own algorithms if the caller waits, float32 on the wire, connections and chunk sizes."""
    yield space.default
    if space.blocking:
        yield AllreduceAlgorithm("flat")
        yield AllreduceAlgorithm("native")
    if space.chunked.wire:
        yield space.chunked._replace(wire="")  # on fast links the conversions cost more than they save
    for number in space.connections:
        # A chunk uses one connection.
        yield space.chunked._replace(connections=number, depth=max(space.chunked.depth, number))
    largest = next((chunk for chunk in sorted(CHUNKS) if chunk >= space.size), max(CHUNKS))
    yield from (space.chunked._replace(chunk=chunk) for chunk in CHUNKS if chunk <= largest)


def neighbours(best: AllreduceAlgorithm, space: AlgorithmSpace) -> Iterator[AllreduceAlgorithm]:
    """Yield variants of `best` with another depth, or another algorithm in one dimension; none of MPI's own."""
    if best.method != "chunks":
        return
    chunks = -(-space.size // best.chunk)
    yield from (best._replace(depth=depth) for depth in DEPTHS if min(depth, chunks) != min(best.depth, chunks))
    for place, count in enumerate(space.learners if best.algorithms != WEIGHTED else ()):
        # Two learners exchange halves under every algorithm.
        for name in ("ring", "halving", "direct") if count > 2 else ():
            if name != best.algorithms[place]:
                yield best._replace(algorithms=(*best.algorithms[:place], name, *best.algorithms[place + 1 :]))
