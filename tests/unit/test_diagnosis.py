"""The diagnosis of slow ranks: rules on recorded samples of real runs, and on samples made for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddlrun.metrics.diagnosis import diagnose, summarize
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import Sample
from ddlrun.metrics.samples import HostSample, NicSample, PeerSample, RankSample
from tests.support.seeded_runs import SAMPLES, findings_of, read_samples

RANK = RankSample(
    time=0.0, seconds=1.0, ranks="0", size=1, host="n1", age=100.0, cores=1, cpu=0.9, system=0.1, queue=0.0,
    switches=9.0, processes=1, threads=2, running=1, blocked=0, rss=10**9, anonymous=10**9, faults=0.0, input=0.0,
    read=0.0, written=0.0, throttled=0.0, reclaims=0.0, state="R", function="-",
)  # fmt: skip
HOST = HostSample(
    time=0.0, seconds=1.0, host="n1", cores=8, cpu=2.0, memory=10**10, available=10**9, swapped_in=0.0,
    retransmitted=0.0, nics=(NicSample("eth0", 10000, 1e6, 1e6, 0.0),),
)  # fmt: skip


def history_of(samples: Sequence[Sample]) -> History:
    history = History()
    history.add(samples)
    return history


def ten(sample: Sample, **changes: Any) -> list[Sample]:
    """Return ten samples in a row, with some fields changed; a function gives the value for the number of a sample."""
    rows = [
        {name: value(number) if callable(value) else value for name, value in changes.items()} for number in range(10)
    ]
    return [replace(sample, **{"time": float(number), **row}) for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("cause", "findings"),
    [
        ("throttled", {("throttled", "1")}),
        ("storage", {("storage", "1")}),
        ("leak", {("leak", "1")}),
        ("swapping", {("swapping", "1"), ("neighbour", "0")}),  # recorded on a machine that others used, too
        ("neighbour", {("neighbour", "0-1")}),
    ],
)
def test_the_slow_ranks_of_a_recorded_run_are_named(cause: str, findings: set[tuple[str, str]]) -> None:
    assert findings_of(history_of(read_samples(str(SAMPLES / f"{cause}.jsonl")))) == findings


def test_a_recorded_healthy_run_has_no_finding() -> None:
    assert findings_of(history_of(read_samples(str(SAMPLES / "healthy.jsonl")))) == set()


SLOW: dict[str, dict[str, Any]] = {
    "throttled": {"throttled": 0.4},
    "swapping": {"faults": 100.0, "cpu": 0.1},
    "storage": {"blocked": 1, "cpu": 0.1, "function": "nfs_wait_bit_killable"},
    "leak": {"anonymous": lambda number: 10**9 + number * 10**7},
    "neighbour": {"queue": 0.5, "cpu": 0.5},
}


@pytest.mark.parametrize("cause", SLOW)
def test_a_slow_rank_is_named_and_the_others_are_not(cause: str) -> None:
    swapped = 10**7 if cause == "swapping" else 0
    host = ten(HOST, swapped_in=float(swapped))
    history = history_of([*ten(RANK), *ten(RANK, ranks="1", **SLOW[cause]), *host])
    assert findings_of(history) == {(cause, "1")}


HEALTHY: dict[str, dict[str, Any]] = {
    "reads a checkpoint": {"anonymous": lambda number: 10**9 + number * 10**8, "input": 1e8},
    "starts": {"anonymous": lambda number: 10**9 + number * 10**8, "age": lambda number: 5.0 + number},
    "imports": {
        "anonymous": lambda number: 10**9 + number * 10**7,
        "rss": lambda number: 10**9 + number * 2 * 10**7,
    },
    "fills a cache up to a bound": {"anonymous": lambda number: 10**9 + min(number, 6) * 10**8},
    "grows once": {"anonymous": lambda number: 10**9 + (number > 5) * 10**9},
    "grows slowly": {"anonymous": lambda number: 10**9 + number * 10**4},
    "writes a checkpoint": {"blocked": lambda number: int(number < 3), "cpu": 0.1},
    "loads data in other processes": {"blocked": 1, "cpu": 1.5},
    "is throttled for a moment": {"throttled": lambda number: 0.9 * (number == 4)},
    "maps files": {"faults": 1000.0},
    "waits for a CPU for a moment": {"queue": lambda number: 4.0 * (number == 4)},
}


@pytest.mark.parametrize("work", HEALTHY)
def test_a_healthy_rank_has_no_finding(work: str) -> None:
    assert findings_of(history_of([*ten(RANK, **HEALTHY[work]), *ten(HOST)])) == set()


@pytest.mark.parametrize(("growing", "findings"), [("0123", set()), ("2", {("leak", "2")}), ("012", set())])
def test_memory_that_grows_at_the_start_is_a_leak_only_where_it_does_not_in_others(
    growing: str, findings: set[tuple[str, str]]
) -> None:
    changes = {"age": lambda number: 1.0 + number, "anonymous": lambda number: 10**8 + number * 10**7}
    ranks = [sample for rank in "0123" for sample in ten(RANK, ranks=rank, **(changes if rank in growing else {}))[:8]]
    assert findings_of(history_of([*ranks, *ten(HOST)[:8]])) == findings


def test_few_samples_are_not_judged() -> None:
    assert findings_of(history_of([*ten(RANK, throttled=1.0)[:4], *ten(HOST)])) == set()


def test_ranks_that_wait_for_each_others_cpus_are_overloaded() -> None:
    ranks = [sample for rank in "0123" for sample in ten(RANK, ranks=rank, cpu=0.5, queue=0.5)]
    history = history_of([*ranks, *ten(HOST, cpu=2.0)])
    assert findings_of(history) == {("overload", "0-3")}
    assert summarize(history, diagnose(history)) == (
        "ranks 0-3 on n1: waiting for a CPU 50% of the time: ranks share its CPUs"
    )


@pytest.mark.parametrize(("reclaims", "full"), [(50.0, ", as its cgroup has no more memory"), (0.0, "")])
def test_a_rank_that_reads_files_again_and_again_waits_for_storage(reclaims: float, full: str) -> None:
    history = history_of([*ten(RANK, faults=80.0, cpu=0.2, read=4e8, reclaims=reclaims), *ten(HOST)])
    (finding,) = diagnose(history)
    text = "waiting for storage 100% of the time in the kernel; 400 MB/s read, 0 B/s written"
    assert (finding.cause.value, finding.details) == ("storage", text + full)


@pytest.mark.parametrize(
    ("busy", "others"), [(1.0, ""), (4.0, "; other processes keep 3.0 CPUs of the host busy")], ids=["alone", "beside"]
)
def test_a_rank_with_more_threads_than_cpus_is_overloaded(busy: float, others: str) -> None:
    history = history_of([*ten(RANK, cpu=1.0, queue=3.0), *ten(HOST, cpu=busy)])
    text = "rank 0 on n1: waiting for a CPU 75% of the time: its threads need 4.0 CPUs, and may use 1"
    assert [finding.text for finding in diagnose(history)] == [text + others]


def test_a_job_that_needs_more_cpus_than_the_host_has_is_overloaded_beside_neighbours() -> None:
    ranks = [sample for rank in "0123" for sample in ten(RANK, ranks=rank, cores=8, cpu=1.5, queue=2.5)]
    (finding,) = diagnose(history_of([*ranks, *ten(HOST, cpu=8.0)]))
    assert (finding.cause.value, finding.ranks) == ("overload", "0-3")
    assert finding.details.endswith(
        "the ranks' threads need 16.0 CPUs, and may use 8; other processes keep 2.0 CPUs of the host busy"
    )


def test_the_host_with_the_slow_network_is_named() -> None:
    slow = (NicSample("eth0", 1000, 1e6, 1e6, 0.0),)
    hosts = [*ten(HOST), *ten(HOST, host="n2", nics=slow), *ten(HOST, host="n3")]
    (finding,) = diagnose(history_of(hosts))
    assert finding.text == "n2: its network interface has 1000 Mbit/s, others have 10000"


def traffic(host: int, rates: dict[int, float], busy: float = 0.5) -> list[Sample]:
    """Return samples of a host that sends to others: number of the host -> MB/s while data is on its way."""
    peers = tuple(
        PeerSample(f"10.0.0.{host}", f"10.0.0.{peer}", rate * 1e6 * busy, busy) for peer, rate in rates.items()
    )
    return ten(HOST, host=f"n{host}", peers=peers)


def test_a_host_whose_links_are_slow_both_ways_is_named() -> None:
    ring = [*traffic(1, {4: 5.0}), *traffic(2, {1: 5.2}), *traffic(3, {2: 2.5}), *traffic(4, {3: 2.4})]
    (finding,) = diagnose(history_of(ring))
    assert finding.text == "n3: data to and from it travels at 19.6 Mbit/s, between other hosts at 40.8 Mbit/s"


def test_the_neighbours_of_a_slow_host_are_not_named() -> None:
    """n2 sends and receives nothing but over the slow links of n3."""
    hosts = [*traffic(1, {3: 2.5, 4: 5.0}), *traffic(2, {3: 2.4}), *traffic(3, {1: 2.5, 2: 2.4}), *traffic(4, {1: 5.0})]
    assert [finding.host for finding in diagnose(history_of(hosts))] == ["n3"]


@pytest.mark.parametrize(
    "hosts",
    [
        [*traffic(1, {2: 5.0}), *traffic(2, {1: 2.0})],  # nothing to compare with
        [*traffic(1, {2: 5.0}), *traffic(2, {3: 5.0}), *traffic(3, {1: 2.0})],  # slow one way: of n3 or of n1?
        [*traffic(1, {2: 5.0}), *traffic(2, {3: 2.0}, busy=0.01), *traffic(3, {1: 2.0}, busy=0.01)],
    ],
)
def test_links_that_tell_too_little_are_no_finding(hosts: list[Sample]) -> None:
    assert diagnose(history_of(hosts)) == []


def test_the_host_that_loses_packets_is_named() -> None:
    hosts = [*ten(HOST, retransmitted=5.0), *ten(HOST, host="n2", retransmitted=300.0), *ten(HOST, host="n3")]
    (finding,) = diagnose(history_of(hosts))
    assert (finding.cause.value, finding.host) == ("slow-nic", "n2")


def test_the_sums_over_the_ranks_of_a_host_are_judged_per_rank() -> None:
    sums = ten(RANK, ranks="0-7", size=8, cpu=7.2, queue=0.4)
    assert findings_of(history_of([*sums, *ten(HOST, cpu=8.0)])) == set()
    assert findings_of(history_of([*ten(RANK, ranks="0-7", size=8, throttled=0.5), *ten(HOST)])) == {
        ("throttled", "0-7")
    }


def test_ranks_without_new_samples_have_ended() -> None:
    history = history_of(ten(RANK))
    history.add(replace(sample, time=sample.time + 20) for sample in ten(RANK, ranks="1"))
    assert list(history.ranks()) == ["1"]


IDLE = {"cpu": 0.0, "state": "S", "function": "ep_poll"}


@pytest.mark.parametrize(
    ("ranks", "summary"),
    [
        ([{}, {}], "nothing but the ranks' own work: they keep 0.90 CPUs busy each"),
        ([IDLE, IDLE], "ranks wait for events or devices, most of them in poll"),
        ([IDLE, {}], "rank 0 waits in poll, while rank 1 computes, or waits for it in MPI"),
        ([{}, IDLE, {}], "rank 1 waits in poll, while each of 2 ranks computes, or waits for it in MPI"),
        ([IDLE, {}, IDLE], "2 of 3 ranks wait, most of them in poll, while rank 1 computes"),
        ([], "no samples of running ranks"),
    ],
)
def test_a_job_without_findings_is_summarized(ranks: list[dict[str, Any]], summary: str) -> None:
    samples = [sample for number, changes in enumerate(ranks) for sample in ten(RANK, ranks=str(number), **changes)]
    history = history_of(samples)
    assert summarize(history, diagnose(history)) == summary
