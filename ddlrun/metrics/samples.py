"""Samples: the use of resources by ranks and hosts in a short time, parsed from the reports of keepers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddlrun.keeper.protocol import ProtocolError, parse_number
from ddlrun.keeper.usage.gpus import MOST_GPUS
from ddlrun.keeper.usage.host import HOST_FIELDS, MOST_PEERS, NIC_FIELDS, PEER_FIELDS
from ddlrun.keeper.usage.rank import LONGEST_FUNCTION, USAGE_FIELDS
from ddlrun.metrics.gpu_samples import GpuSample, parse_gpu_sample

KIB = 1024
MOST = 1 << 63
MOST_NICS = 64


@dataclass(frozen=True, slots=True)
class RankSample:
    """The use of resources by a rank, or the sums over several ranks of a host."""

    time: float
    """Seconds since 1970 at the end of the sample."""
    seconds: float
    """The time that the sample covers."""
    ranks: str
    """The rank, or a list such as 0-7 of the ranks of a host."""
    size: int
    """The number of these ranks."""
    host: str
    age: float
    """Seconds since the start of the rank's program."""
    cores: int
    """CPUs that the rank may use."""
    cpu: float
    """The number of CPUs that were busy with the rank's processes."""
    system: float
    """The part of `cpu` that was spent in the kernel."""
    queue: float
    """The number of threads that were ready to run, and had no CPU."""
    switches: float
    """Times per second that a thread got a CPU."""
    processes: int
    threads: int
    running: int
    """Threads that ran at the end of the sample."""
    blocked: int
    """Threads that waited for input or output in the kernel at the end of the sample."""
    rss: int
    """Bytes of memory; what processes share counts for each."""
    anonymous: int
    """The part of `rss` without files and shared memory."""
    faults: float
    """Page faults per second that had to wait for storage."""
    input: float
    """Bytes per second that system calls have read, also from pipes and cached files."""
    read: float
    """Bytes per second from storage."""
    written: float
    """Bytes per second to storage."""
    throttled: float
    """The share of the periods of the CPU quota in which it was used up."""
    reclaims: float
    """Times per second that memory was taken back, as the limit of a cgroup was reached."""
    state: str
    """The state of the main thread, as ps shows it."""
    function: str
    """The kernel function in which the main thread waited; - if it ran, or this is not known."""


@dataclass(frozen=True, slots=True)
class NicSample:
    """The use of a network interface."""

    name: str
    speed: int
    """Mbit/s; 0 if unknown."""
    received: float
    """Bytes per second."""
    sent: float
    """Bytes per second."""
    errors: float
    """Errors and dropped packets per second."""


@dataclass(frozen=True, slots=True)
class PeerSample:
    """The traffic over TCP to another host to which much was sent."""

    address: str
    """That of this host."""
    peer: str
    """The address of the other host."""
    sent: float
    """Bytes per second."""
    busy: float
    """The share of the time in which data was on its way."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """The use of a host by all its processes."""

    time: float
    """Seconds since 1970 at the end of the sample."""
    seconds: float
    """The time that the sample covers."""
    host: str
    cores: int
    """CPUs of the host."""
    cpu: float
    """The number of CPUs that were busy."""
    memory: int
    """Bytes of memory."""
    available: int
    """Bytes of memory that programs can still get."""
    swapped_in: float
    """Bytes per second that were read from swap space."""
    retransmitted: float
    """TCP segments per second that were sent again."""
    nics: tuple[NicSample, ...]
    """Network interfaces that are in use."""
    peers: tuple[PeerSample, ...] = ()
    """Other hosts, those to which most was sent."""
    gpus: tuple[GpuSample, ...] = ()
    """NVIDIA GPUs, where nvidia-smi is installed."""


def parse_rank_sample(text: str, rank: int, host: str, now: float) -> RankSample:
    """Parse a report of a rank's use. Raises ProtocolError."""
    words = text.split(" ")
    if len(words) != len(USAGE_FIELDS) + 2 or len(words[-2]) != 1 or len(words[-1]) > LONGEST_FUNCTION:
        raise ProtocolError("its report of its use of resources cannot be read")
    use = dict(zip(USAGE_FIELDS, (parse_number(word, MOST) for word in words[:-2]), strict=True))
    seconds = use["ms"] / 1000
    rate = 1 / seconds if seconds else 0.0
    return RankSample(
        time=round(now, 3),
        seconds=seconds,
        ranks=str(rank),
        size=1,
        host=host,
        age=use["age_ms"] / 1000,
        cores=use["cores"],
        cpu=_round((use["user_ms"] + use["system_ms"]) / 1000 * rate),
        system=_round(use["system_ms"] / 1000 * rate),
        queue=_round(use["wait_ms"] / 1000 * rate),
        switches=_round(use["switches"] * rate),
        processes=use["processes"],
        threads=use["threads"],
        running=use["running"],
        blocked=use["blocked"],
        rss=use["rss_kib"] * KIB,
        anonymous=use["anonymous_kib"] * KIB,
        faults=_round(use["major_faults"] * rate),
        input=round(use["input_bytes"] * rate),
        read=round(use["read_bytes"] * rate),
        written=round(use["written_bytes"] * rate),
        throttled=_round(use["throttled"] / use["periods"]) if use["periods"] else 0.0,
        reclaims=_round(use["reclaims"] * rate),
        state=words[-2],
        function=words[-1],
    )


def parse_host_sample(text: str, host: str, now: float) -> HostSample:
    """Parse a report of a host's use. Raises ProtocolError."""
    line, *gpus = text.split("\n")
    words = line.split(" ")
    numbers, rest = words[: len(HOST_FIELDS)], words[len(HOST_FIELDS) :]
    nics, peers = ([word for word in rest if word.startswith("@") == is_peer] for is_peer in (False, True))
    too_many = len(nics) > MOST_NICS or len(peers) > MOST_PEERS or len(gpus) > MOST_GPUS
    if len(numbers) != len(HOST_FIELDS) or too_many:
        raise ProtocolError("its report of its host's use cannot be read")
    use = dict(zip(HOST_FIELDS, (parse_number(word, MOST) for word in numbers), strict=True))
    seconds = use["ms"] / 1000
    rate = 1 / seconds if seconds else 0.0
    return HostSample(
        time=round(now, 3),
        seconds=seconds,
        host=host,
        cores=use["cpus"],
        cpu=_round(use["busy_ms"] / 1000 * rate),
        memory=use["memory_kib"] * KIB,
        available=use["available_kib"] * KIB,
        swapped_in=round(use["swapped_in_bytes"] * rate),
        retransmitted=_round(use["retransmitted"] * rate),
        nics=tuple(_parse_nic(word, rate) for word in nics),
        peers=tuple(_parse_peer(word, rate) for word in peers),
        gpus=tuple(parse_gpu_sample(line) for line in gpus),
    )


def _parse_nic(word: str, rate: float) -> NicSample:
    name, *values = word.rsplit(":", len(NIC_FIELDS))
    if len(values) != len(NIC_FIELDS):
        raise ProtocolError("its report of a network interface cannot be read")
    use = dict(zip(NIC_FIELDS, (parse_number(value, MOST) for value in values), strict=True))
    return NicSample(
        name=name,
        speed=use["speed"],
        received=round(use["received_bytes"] * rate),
        sent=round(use["sent_bytes"] * rate),
        errors=_round((use["receive_errors"] + use["send_errors"]) * rate),
    )


def _parse_peer(word: str, rate: float) -> PeerSample:
    pair, *values = word.removeprefix("@").rsplit(":", len(PEER_FIELDS))
    address, arrow, peer = pair.partition(">")
    if len(values) != len(PEER_FIELDS) or not arrow:
        raise ProtocolError("its report of the traffic to a host cannot be read")
    sent, busy = (parse_number(value, MOST) for value in values)
    return PeerSample(address, peer, sent=round(sent * rate), busy=_round(busy / 1000 * rate))


def add_samples(samples: Sequence[RankSample], ranks: str) -> RankSample:
    """Return the sums over the listed ranks of a host; the state is that of the rank that uses the CPU least."""
    least = min(samples, key=lambda sample: sample.cpu)
    sums: dict[str, Any] = {name: _round(sum(getattr(sample, name) for sample in samples)) for name in SUMMED}
    most = {name: max(getattr(sample, name) for sample in samples) for name in ("throttled", "reclaims")}
    return replace(least, **sums, **most, ranks=ranks)


SUMMED = (
    "size", "cores", "cpu", "system", "queue", "switches", "processes", "threads", "running", "blocked", "rss",
    "anonymous", "faults", "input", "read", "written",
)  # fmt: skip


def _round(value: float) -> float:
    return round(value, 3)
