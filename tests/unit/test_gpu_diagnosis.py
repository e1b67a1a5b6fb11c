"""The diagnosis of GPUs on samples made for it, and what ddlrun top and the metrics show of GPUs."""

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ddlrun.metrics.diagnosis import diagnose, summarize
from ddlrun.metrics.gauges import GPU_GAUGES, GPU_LIMIT, list_values
from ddlrun.metrics.gpu_diagnosis import find_gpu_causes
from ddlrun.metrics.gpu_samples import GpuSample
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import parse_line, render_line
from ddlrun.metrics.openmetrics import render_openmetrics
from ddlrun.metrics.samples import HostSample, RankSample
from ddlrun.metrics.top_table import COLUMNS, render_table
from ddlrun.ranges import render_ranges
from tests.support.json_schemas import validate
from tests.support.seeded_runs import findings_of

RANK = RankSample(
    time=0.0, seconds=1.0, ranks="0", size=1, host="h1", age=1000.0, cores=1, cpu=0.4, system=0.1, queue=0.0,
    switches=9.0, processes=1, threads=2, running=1, blocked=0, rss=10**9, anonymous=10**9, faults=0.0, input=1000,
    read=0, written=0, throttled=0.0, reclaims=0.0, state="S", function="futex_wait",
)  # fmt: skip
HOST = HostSample(
    time=0.0, seconds=1.0, host="h1", cores=8, cpu=2.0, memory=10**10, available=10**9, swapped_in=0,
    retransmitted=0.0, nics=(),
)  # fmt: skip
GPU = GpuSample(
    number=0, uuid="", address="0000:17:00.0", ranks="0", utilization=0.97, memory_used=60 << 30, memory=80 << 30,
    power=402.0, power_limit=700.0, temperature=61.0, clock=1755e6, highest_clock=1980e6, limits=("power-cap",),
)  # fmt: skip
HOT: dict[str, Any] = {"limits": ("heat",), "clock": 1100e6, "temperature": 89.0}
IDLE: dict[str, Any] = {"utilization": 0.0}
READS: dict[str, Any] = {"cpu": 1.0, "input": 40_000_000}
LATEST = 60


def history_of(gpus: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]] = (), size: int = LATEST) -> History:
    """Return a history with a rank per GPU, four per host; functions give values by the number of the sample."""
    history = History()
    for second in range(size):
        rows = [_at(second, ranks[rank]) if rank < len(ranks) else {} for rank in range(len(gpus))]
        add_second(history, second, [_at(second, changes) for changes in gpus], rows)
    return history


def add_second(history: History, second: int, gpus: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]]) -> None:
    """Add the samples of a second."""
    time = float(second)
    shown = [
        replace(GPU, **{"number": rank % 4, "uuid": f"GPU-{rank}", "ranks": str(rank), **row})
        for rank, row in enumerate(gpus)
    ]
    for first in range(0, len(gpus), 4):
        history.add([replace(HOST, time=time, host=f"h{first // 4 + 1}", gpus=tuple(shown[first : first + 4]))])
    for rank, row in enumerate(ranks):
        history.add([replace(RANK, **{"time": time, "ranks": str(rank), "host": f"h{rank // 4 + 1}", **row})])


def _at(second: int, changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value(second) if callable(value) else value for name, value in changes.items()}


def texts_of(history: History) -> list[str]:
    return [finding.text for finding in diagnose(history)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (HOT, "heat: 1100 of 1980 MHz, 89 °C"),
        ({**HOT, "limits": ("power-brake", "power-cap"), "temperature": None}, "the power brake: 1100 of 1980 MHz"),
        ({**HOT, "limits": ("hardware",)}, "its hardware: 1100 of 1980 MHz, 89 °C"),
        ({**HOT, "limits": lambda second: ("heat",) if second % 4 else ()}, "heat: 1100 of 1980 MHz, 89 °C"),
    ],
)
def test_a_throttled_gpu_is_named_with_its_rank(changes: dict[str, Any], words: str) -> None:
    assert texts_of(history_of([{}, {}, {}, changes], size=10)) == [f"rank 3 on h1: GPU 3 is throttled by {words}"]


def test_throttled_gpus_of_a_host_are_one_finding() -> None:
    hotter = {**HOT, "clock": 900e6, "temperature": 92.0}
    assert texts_of(history_of([{}, HOT, hotter, {}, {}, HOT], size=10)) == [
        "ranks 1-2 on h1: GPU 2 is throttled by heat: 900 of 1980 MHz, 92 °C; the slowest of 2 such GPUs",
        "rank 5 on h2: GPU 1 is throttled by heat: 1100 of 1980 MHz, 89 °C",
    ]


def test_an_idle_gpu_is_named_while_others_compute() -> None:
    history = history_of([{}] * 5 + [IDLE] + [{}] * 2, [{}] * 5 + [READS])
    assert texts_of(history) == [
        "rank 5 on h2: GPU 1 is idle, 0% for 30 s, while the rank reads 40 MB/s; 7 of 8 GPUs compute"
    ]


@pytest.mark.parametrize(
    ("rank", "words"),
    [({"cpu": 1.0}, "uses 1.00 CPUs"), ({}, "waits in lock"), ({"function": "-"}, "waits")],
)
def test_the_work_of_the_rank_of_an_idle_gpu_is_described(rank: dict[str, Any], words: str) -> None:
    (text,) = texts_of(history_of([{}, IDLE, {}], [{}, rank]))
    assert text == f"rank 1 on h1: GPU 1 is idle, 0% for 30 s, while the rank {words}; 2 of 3 GPUs compute"


def test_of_two_gpus_the_idle_one_is_named_if_its_rank_reads() -> None:
    assert findings_of(history_of([{}, IDLE], [{}, READS])) == {("gpu-idle", "1")}
    assert findings_of(history_of([{}, IDLE])) == set()


def test_gpus_that_all_wait_for_data_are_named() -> None:
    gpus = [{"utilization": lambda second: 0.3 * (second % 10 == 0)}] * 2
    (text,) = texts_of(history_of(gpus, [{**READS, "cpu": 1.5}] * 2))
    work = "each rank uses 1.50 CPUs and reads 40 MB/s"
    assert text == f"ranks 0-1 on h1: GPUs compute 3% of the time, while {work}: the input pipeline is too slow"


STARTS = {"age": lambda second: 200.0 + second}
HEALTHY: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "computes": ([{}] * 4, []),
    "is hot for a moment": ([{}, {**HOT, "limits": lambda second: ("heat",) * (second in (55, 56))}], []),
    "is hot and fast": ([{**HOT, "clock": 1900e6}] * 2, []),
    "is limited in power": ([{}, {"limits": ("power-cap",), "clock": 1100e6}], []),
    "starts": ([{}, IDLE, {}], [STARTS] * 3),
    "starts, all of them": ([IDLE] * 3, [{**STARTS, **READS}] * 3),
    "writes a checkpoint": ([{}, IDLE, {}], [{}, {"written": 10**8}]),
    "write checkpoints": ([IDLE] * 4, [{"written": 10**8, "cpu": 1.0}] * 4),
    "waits for the validation of one": ([{}, IDLE, IDLE, IDLE], [{}, READS]),
    "is idle for 7 s": ([{}, {"utilization": lambda second: 0.9 * (second < 53)}, {}], [{}, READS]),
    "waits for 20 s": ([{}, {"utilization": lambda second: 0.9 * (second < 40)}, {}], []),
    "computes now and then": ([{}, {"utilization": lambda second: 0.5 * (second % 7 == 0)}, {}], [{}, READS]),
    "are all idle for 7 s": ([{"utilization": lambda second: 0.9 * (second < 53)}] * 2, [READS] * 2),
    "all wait for 40 s": ([{"utilization": lambda second: 0.9 * (second < 20)}] * 2, []),
    "wait without a CPU": ([IDLE] * 2, [{"cpu": 0.01}] * 2),
    "use CPUs and no GPU": ([{**IDLE, "memory_used": 4 << 20}] * 2, [READS] * 2),
    "have no rank": ([{**IDLE, "ranks": ""}, {**HOT, "ranks": ""}], []),
    "report nothing": ([{"utilization": None, "clock": None, "memory_used": None, "limits": ()}] * 3, [READS] * 3),
}  # fmt: skip


@pytest.mark.parametrize("work", HEALTHY)
def test_healthy_gpus_have_no_finding(work: str) -> None:
    assert findings_of(history_of(*HEALTHY[work])) == set()


# Seconds of a phase, and the use by GPU and rank 0, and by all others: utilization, CPUs, bytes written and read.
PHASES = {
    "start": ((30, 240), (0.0, 1.0, 0, 4e7), (0.0, 1.0, 0, 4e7)),
    "train": ((60, 300), (0.9, 1.0, 0, 2e7), (0.9, 1.0, 0, 2e7)),
    "all validate": ((20, 90), (0.4, 1.0, 0, 2e7), (0.4, 1.0, 0, 2e7)),
    "rank 0 validates": ((20, 90), (0.6, 1.0, 0, 2e7), (0.0, 0.05, 0, 0)),
    "rank 0 writes": ((5, 90), (0.0, 1.0, 5e8, 0), (1.0, 1.0, 0, 0)),
    "all write": ((5, 60), (0.0, 1.0, 5e8, 0), (0.0, 1.0, 5e8, 0)),
    "rank 0 is late": ((1, 7), (0.0, 1.0, 0, 2e7), (1.0, 1.0, 0, 0)),
    "all load data": ((5, 25), (0.02, 1.0, 0, 4e7), (0.02, 1.0, 0, 4e7)),
}


def test_an_hour_of_normal_phases_has_no_finding() -> None:
    random = Random(0)  # noqa: S311 - no secret
    history, second, phase = History(), 0, "start"
    while second < 3600:
        (least, most), first, others = PHASES[phase]
        for second in range(second, second + random.randint(least, most)):  # noqa: B020 - it goes on from there
            uses = [first, *[others] * 7]
            gpus = [
                {
                    "utilization": min(1.0, use[0] * random.uniform(0.8, 1.2)),
                    "clock": random.choice([1400e6, 1755e6, 1980e6]),
                    "limits": ("heat", "power-cap") if second % 60 < 4 else ("power-cap",),
                }
                for use in uses
            ]
            ranks = [
                {"age": float(second), "cpu": use[1], "written": use[2], "input": use[3] * random.random()}
                for use in uses
            ]
            add_second(history, second, gpus, ranks)
            if second % 5 == 0:  # a finding lasts for longer
                assert (phase, find_gpu_causes(history)) == (phase, [])
        second += 1
        phase = random.choice([name for name in PHASES if name != "start"]) if phase == "train" else "train"


SEEDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpu-idle": (IDLE, READS),
    "gpu-starved": (IDLE, READS),
    "gpu-throttled": (HOT, {}),
}


@pytest.mark.parametrize("seed", range(40))
def test_a_seeded_cause_is_named_within_ten_seconds(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - no secret
    cause = random.choice([*SEEDED])
    count, begin, moment = random.randint(3, 4), random.randint(20, 80), 0
    slow = [*range(count)] if cause == "gpu-starved" else [random.randrange(count)]
    gpu, rank = SEEDED[cause]
    history = History()
    named: set[tuple[str, str]] = set()
    while not named and moment < begin + 10:
        gpus, ranks = [], []
        for number in range(count):
            is_slow = number in slow and moment >= begin
            gpus.append({"utilization": random.uniform(0.8, 1.0), **(gpu if is_slow else {})})
            ranks.append({"cpu": random.uniform(0.9, 1.1), **(rank if is_slow else {})})
        add_second(history, moment, gpus, ranks)
        named = {(finding.cause.value, finding.ranks) for finding in find_gpu_causes(history)}
        moment += 1
    assert named == {(cause, render_ranges(slow))}
    assert moment > begin


@pytest.mark.parametrize(
    ("gpus", "summary"),
    [
        ([{}, {"utilization": 0.5}], "nothing but the work of the GPUs: they compute 74% of the time"),
        ([{}, {"utilization": 0.0}, IDLE], "ranks wait for events or devices, most of them in lock"),
        ([{}, {"ranks": ""}], "ranks wait for events or devices, most of them in lock"),
    ],
)
def test_a_job_whose_gpus_compute_is_summarized(gpus: list[dict[str, Any]], summary: str) -> None:
    history = history_of(gpus, size=10)
    assert summarize(history, diagnose(history)) == summary


def test_top_has_a_column_and_a_line_for_gpus_where_there_are_any() -> None:
    history = history_of([{}, IDLE, {"utilization": None}], [{}] * 3)
    lines = render_table(history, diagnose(history))
    assert max(map(len, lines)) <= COLUMNS
    header = next(line for line in lines if line.startswith("RANK"))
    end = header.index("GPU %") + len("GPU %")
    assert [line[end - 5 : end].strip() for line in lines if line[:1].isdigit()] == ["97", "0", "-"]
    assert lines[-1] == "h1: GPUs 193 GB of 258 GB, 1206 W, up to 61 °C, 97 0 % busy"
    without = History()
    without.add([RANK, HOST])
    assert "GPU" not in "\n".join(render_table(without, []))


def test_top_shows_as_many_lines_of_hosts_with_gpus_as_of_others() -> None:
    lines = render_table(history_of([{}] * 12, size=1), [], 5)
    hosts = lines[-lines[::-1].index("") :]
    assert [line.split(":")[0] for line in hosts] == ["h1", "h1", "h2", "h2", "... and 1 more host"]


def test_the_metrics_have_the_gpus() -> None:
    history = history_of([HOT, {"utilization": None}])
    values = {
        (value.gauge, value.labels["gpu"]): value.value
        for value in list_values(history, "toka")
        if "gpu" in value.labels
    }
    assert [values[gauge, "0"] for gauge in GPU_GAUGES] == [0.97, 60 << 30, 80 << 30, 402, 700, 89, 1100e6, 1980e6]
    assert (GPU_GAUGES[0], "1") not in values
    page = render_openmetrics(history, "toka")
    labels = 'run="toka",host="h1",gpu="0",ranks="0"'
    assert f'{GPU_LIMIT.name}{{{labels},limit="heat"}} 1.0' in page
    assert f'{GPU_LIMIT.name}{{{labels},limit="power-brake"}} 0.0' in page


def test_a_line_with_gpus_is_valid_and_read_again() -> None:
    sample = replace(HOST, gpus=(replace(GPU, **HOT), replace(GPU, utilization=None)))
    line = render_line(sample)
    assert parse_line(line.encode()) == sample
    validate(json.loads(line), "metrics")
