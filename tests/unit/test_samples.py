"""Samples of the use of resources: measured by the keeper, parsed, collected and stored by ddlrun."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ddlrun.keeper import protocol
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.keeper.usage.host import HostUsageReader
from ddlrun.keeper.usage.rank import QuotaPeriods, UsageReporter, find_main, list_tree
from ddlrun.metrics.collector import SampleCollector
from ddlrun.metrics.metrics_file import MetricsFile, MetricsReader, parse_line, render_line
from ddlrun.metrics.samples import HostSample, NicSample, PeerSample, RankSample, parse_host_sample, parse_rank_sample
from ddlrun.plan.run_dir import RunDir
from ddlrun.supervise.keeper_connection import Hello
from ddlrun.supervise.sampling import Sampling
from tests.support.json_schemas import validate
from tests.support.keepers import serving
from tests.support.processes import wait_for
from tests.support.seeded_runs import read_samples

USAGE = "9500 1000 2 500 250 100 7 1 3 1 1 2048 1024 2 4000 3000 2000 10 4 6 D folio_wait_bit"
HOST_USAGE = "2000 8 4000 1000 400 8192 6 eth0:10000:2000000:2:4000000:0 a:b:0:0:0:0:0 @::1>::2:800000:1500"
RANK = RankSample(
    time=5.0, seconds=1.0, ranks="3", size=1, host="n1", age=9.5, cores=2, cpu=0.75, system=0.25, queue=0.1,
    switches=7.0, processes=1, threads=3, running=1, blocked=1, rss=2 << 20, anonymous=1 << 20, faults=2.0, input=4000,
    read=3000, written=2000, throttled=0.4, reclaims=6.0, state="D", function="folio_wait_bit",
)  # fmt: skip
HOST = HostSample(
    time=5.0, seconds=2.0, host="n1", cores=8, cpu=2.0, memory=1024000, available=409600, swapped_in=4096,
    retransmitted=3.0,
    nics=(NicSample("eth0", 10000, 1000000, 2000000, 1.0), NicSample("a:b", 0, 0, 0, 0.0)),
    peers=(PeerSample("::1", "::2", 400000, 0.75),),
)  # fmt: skip

BUSY = """
import threading
memory = bytearray(50_000_000)
threading.Thread(target=input).start()
while threading.active_count() > 1:
    pass
"""
THREADS = """
import threading
for _ in range(30):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
input()
"""


@contextmanager
def child(code: str) -> Iterator[int]:
    """Run a Python program below two shells, and provide the outer one: no other process is below it."""
    inner = f'"{sys.executable}" -c "$0"; true'
    argv = ["sh", "-c", 'sh -c "$1" "$0"; true', code, inner]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate()


def sample_of(reporter: UsageReporter) -> RankSample:
    (kind, text), *_ = reporter.report(time.monotonic())
    assert kind == protocol.USAGE
    return parse_rank_sample(text, 0, "n", 0.0)


def first_sample(reporter: UsageReporter, is_wanted: Callable[[RankSample], bool]) -> RankSample:
    samples = list[RankSample]()

    def arrives() -> bool:
        samples.append(sample_of(reporter))
        return is_wanted(samples[-1])

    wait_for(arrives)
    return samples[-1]


def test_reports_are_parsed() -> None:
    assert parse_rank_sample(USAGE, 3, "n1", 5.0) == RANK
    assert parse_host_sample(HOST_USAGE, "n1", 5.0) == HOST


@pytest.mark.parametrize(
    "text", ["", "1", USAGE[:-2] + " x", USAGE.replace("9500", "-1"), USAGE.replace(" D ", " DD ")]
)
def test_a_forged_report_of_a_rank_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_rank_sample(text, 0, "n", 0.0)


@pytest.mark.parametrize("text", ["", "1 2", HOST_USAGE + " x", HOST_USAGE + " e:1:2", HOST_USAGE + " e:1:2:3:4:x"])
def test_a_forged_report_of_a_host_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_host_sample(text, "n", 0.0)


def test_the_main_process_is_the_one_below_shells() -> None:
    with child("input()") as root:
        wait_for(lambda: len(list_tree(root)) == 2)
        shell, program = list_tree(root)
        wait_for(lambda: find_main([shell, program]) == program)  # it begins as a copy of the shell


def test_cpu_time_memory_and_waits_of_a_process_are_measured() -> None:
    with child(BUSY) as root:
        wait_for(lambda: find_main(list_tree(root)))
        reporter = UsageReporter(root, 0.0, time.monotonic())
        sample = first_sample(reporter, lambda sample: sample.cpu > 0 and sample.anonymous > 50_000_000)
    assert sample.threads >= 2
    assert sample.cores == len(os.sched_getaffinity(0))


def test_a_process_that_waits_for_a_pipe_shows_the_function_of_the_kernel() -> None:
    with child("input()") as root:
        wait_for(lambda: find_main(list_tree(root)))
        reporter = UsageReporter(root, 0.0, time.monotonic())
        sample = first_sample(reporter, lambda sample: sample.function.endswith("pipe_read"))
    assert sample.state == "S"


def test_a_report_that_takes_long_delays_the_next_one() -> None:
    with child(THREADS) as root:
        wait_for(lambda: find_main(list_tree(root)))
        reporter = UsageReporter(root, 0.001, time.monotonic())
        reporter.host = HostUsageReader()
        now = time.monotonic()
        before = time.thread_time()
        messages = list(reporter.report(now))
        cost = time.thread_time() - before
    assert [kind for kind, _ in messages] == [protocol.USAGE, protocol.HOST_USAGE]
    assert reporter.deadline() > now + 500 * cost


def test_this_host_is_measured() -> None:
    sample = parse_host_sample(f"1000 {HostUsageReader().take()}", "n", 0.0)
    assert sample.cores == os.cpu_count()
    assert 0 < sample.available < sample.memory


def test_the_throttling_of_a_process_without_a_quota_is_none() -> None:
    assert QuotaPeriods(os.getpid()).take()[1] == 0


def test_samples_are_stored_and_read_as_they_arrive(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(str(path))
    assert list(reader.read()) == []
    file = MetricsFile(str(path), pytest.fail)
    file.append(5.0, [RANK, HOST])
    assert list(reader.read()) == [RANK, HOST]
    file.append(6.0, [RANK])
    with path.open("ab") as other:
        other.write(b'{"time": 7.0}\n{"unfinished')
    assert list(reader.read()) == [replace(RANK, time=6.0)]
    reader.close()


def test_lines_are_valid_json_of_the_schema() -> None:
    for sample in (RANK, HOST):
        line = render_line(sample)
        assert parse_line(line.encode()) == sample
        assert line.startswith('{"time": 5.0,')
        validate(json.loads(line), "metrics")


def test_a_large_file_is_thinned_out_and_still_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file, reader = MetricsFile(str(path), pytest.fail, 50_000), MetricsReader(str(path))
    for second in range(500):
        file.append(float(second), [RANK])
        if second == 10:
            list(reader.read())
    assert path.stat().st_size <= 50_500
    *_, last = reader.read()
    assert last.time == 499.0
    reader.close()
    times = [sample.time for sample in read_samples(str(path))]
    assert times[-20:] == [float(second) for second in range(480, 500)]
    assert times[0] == 0.0


def test_a_file_that_cannot_be_written_is_given_up_with_one_message(tmp_path: Path) -> None:
    problems = list[str]()
    file = MetricsFile(str(tmp_path / "gone" / "metrics.jsonl"), problems.append)
    file.append(1.0, [RANK])
    file.append(2.0, [RANK])
    assert problems == [f"no more samples in {tmp_path}/gone/metrics.jsonl: No such file or directory"]


def test_the_samples_of_many_ranks_are_summed_per_host(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    collector = SampleCollector(str(path), 2000, pytest.fail)
    for rank in range(4):
        collector.add_rank(rank, f"n{rank // 2}", USAGE)
    collector.write()
    samples = [sample for sample in read_samples(str(path)) if isinstance(sample, RankSample)]
    assert [(sample.ranks, sample.host, sample.size, sample.cpu, sample.cores) for sample in samples] == [
        ("0-1", "n0", 2, 1.5, 4),
        ("2-3", "n1", 2, 1.5, 4),
    ]


def test_the_use_of_a_gpu_is_that_of_a_rank_if_no_other_one_shares_it(tmp_path: Path) -> None:
    """The line of nvidia-smi is an H200's."""
    use = "GPU-c030374a-e620-594c-57a9-feab3fa99abc, 00000000:00:06.0, {}, 0, 143771, 77.42, 700.00, 37, 345, 1980, 0x1"
    collector = SampleCollector(str(tmp_path / "metrics.jsonl"), 4, pytest.fail)
    gpus = (f"0 2, 0, {use.format(100)}", f"1, 1, {use.format(40)}", f", 2, {use.format(50)}")
    collector.add_host("n1", "\n".join((HOST_USAGE, *gpus)))
    assert collector.gpu_utilization == {1: 0.4}


def test_keepers_are_ordered_to_report_after_one_interval(tmp_path: Path) -> None:
    with serving() as served:
        keeper, peer = served.connect()
        peer.introduce(Hello(0, "n1", 0))
        sampling = Sampling(0.5, 1, RunDir(str(tmp_path)), pytest.fail)
        with pytest.raises(ProtocolError):
            sampling.collector.add_rank(0, "n1", USAGE)
        sampling.collect(time.monotonic() - 1, served.keepers)
        assert not (tmp_path / "metrics.jsonl").exists()
        due = sampling.deadline()
        sampling.collect(due, served.keepers)
        assert list(keeper.unseal(keeper.link.recv(1000))) == [(protocol.MEASURE, b"0.5")]
        sampling.collector.add_rank(0, "n1", USAGE)
        sampling.collector.add_host("n1", HOST_USAGE)
        sampling.collect(sampling.deadline(), served.keepers)
        keeper.close()
    samples = read_samples(str(tmp_path / "metrics.jsonl"))
    assert [type(sample) for sample in samples] == [RankSample, HostSample]


def test_no_samples_without_an_interval_and_fewer_from_many_ranks(tmp_path: Path) -> None:
    assert Sampling(0.0, 1, RunDir(str(tmp_path)), pytest.fail).deadline() == float("inf")
    now = time.monotonic()
    assert Sampling(1.0, 10_000, RunDir(str(tmp_path)), pytest.fail).deadline() >= now + 20
