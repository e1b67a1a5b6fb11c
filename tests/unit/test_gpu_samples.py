"""Samples of GPUs: read by a keeper from a stand-in for nvidia-smi, with the ranks of each GPU, and parsed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ddlrun.keeper.protocol import ProtocolError
from ddlrun.keeper.usage.amd_gpus import AmdGpu, list_gpus
from ddlrun.keeper.usage.gpus import GPU_FIELDS, REASONS, GpuRanks, GpuUsageReader
from ddlrun.metrics.gpu_samples import ClockLimit, GpuSample, parse_gpu_sample, parse_limits
from tests.support.nvidia_smi import HOT_AND_BRAKED, StandIn, busy, install
from tests.support.processes import wait_for

PLAN = {
    "DDLRUN_TOPOLOGY": "2x2",
    "DDLRUN_RANK_ORDER": "host",
    "DDLRUN_SEATS": "2*5@@nvidia=0000:65:00.0,0001:65:00.0@;5@@nvidia=0000:65:00.0,0001:65:00.0@",
}
NO_GPUS = {**PLAN, "DDLRUN_SEATS": "2*5@@@;5@@@"}
GPU = GpuSample(
    number=1, uuid="GPU-1f", address="0001:65:00.0", ranks="2-3", utilization=0.97, memory_used=61234 << 20,
    memory=81559 << 20, power=402.13, power_limit=700.0, temperature=61.0, clock=1755e6, highest_clock=1980e6,
    limits=("heat", "power-brake"),
)  # fmt: skip


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = install(tmp_path / "smi", busy(0), busy(1))
    monkeypatch.setenv("PATH", stand_in.path)
    return stand_in


@pytest.fixture
def reader(smi: StandIn) -> Iterator[GpuUsageReader]:
    """Provide a reader of the host of ranks 2 and 3."""
    reader = GpuUsageReader(GpuRanks(PLAN, 2, 4), 1.0)
    yield reader
    reader.stop()
    wait_for(lambda: all(is_gone(pid) for pid, _ in smi.starts()))


def wait_for_lines(reader: GpuUsageReader) -> list[str]:
    wait_for(reader.take)
    return reader.take().splitlines()


def wait_for_problem(reader: GpuUsageReader) -> str:
    problems = list[str]()

    def arrives() -> bool:
        reader.take()
        problems.append(reader.take_problem())
        return problems[-1] != ""

    wait_for(arrives)
    return problems[-1]


def is_gone(pid: int) -> bool:
    """Return True if a process has ended; a child of this process is reaped, others may be zombies."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_line_is_parsed() -> None:
    assert parse_gpu_sample(f"2 3, {busy(1, HOT_AND_BRAKED)}") == GPU


def test_what_a_driver_does_not_report_is_left_out() -> None:
    sample = parse_gpu_sample(", 0, GPU-0, 00000000:01:00.0, [N/A], [N/A], 1, [Unknown Error], , 40, -5, 1e9, P0")
    assert sample == GpuSample(
        number=0, uuid="GPU-0", address="0000:01:00.0", ranks="", utilization=None, memory_used=None, memory=1 << 20,
        power=None, power_limit=None, temperature=40.0, clock=None, highest_clock=None, limits=(),
    )  # fmt: skip


@pytest.mark.parametrize("line", ["", "1, 2", f"-1, {busy(0)}", f"x, {busy(0)}", f"99999999999, {busy(0)}", busy(0)])
def test_a_forged_line_is_refused(line: str) -> None:
    with pytest.raises(ProtocolError):
        parse_gpu_sample(line)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (PLAN, [[2], [3]]),
        ({**PLAN, "DDLRUN_SEATS": "2*5@@nvidia=0001:65:00.0@;5@@nvidia=0000:65:00.0@"}, [[3], [2]]),
        ({**PLAN, "DDLRUN_SEATS": "2*5@@nvidia=1@;5@@nvidia=1@"}, [[], [2, 3]]),
        ({**PLAN, "CUDA_VISIBLE_DEVICES": "GPU-from-the-keeper"}, [[2], [3]]),
        ({**NO_GPUS, "CUDA_VISIBLE_DEVICES": "1, 0"}, [[3], [2]]),
        ({**NO_GPUS, "CUDA_VISIBLE_DEVICES": "GPU-1f"}, [[], [2, 3]]),
        ({**NO_GPUS, "CUDA_VISIBLE_DEVICES": "GPU-1"}, [[], [2, 3]]),
        ({**NO_GPUS, "CUDA_VISIBLE_DEVICES": "MIG-1f"}, [[], []]),
        (NO_GPUS, [[], []]),
        ({}, [[], []]),
    ],
)
def test_the_ranks_of_a_gpu_are_those_of_the_plan_or_of_the_user(
    environ: dict[str, str], expected: list[list[int]]
) -> None:
    ranks = GpuRanks(environ, 2, 4)
    assert [ranks.find(*busy(number).split(", ")[:3]) for number in range(2)] == expected


def test_the_latest_line_of_each_gpu_is_reported(smi: StandIn, reader: GpuUsageReader) -> None:
    wait_for(lambda: len(wait_for_lines(reader)) == 2)
    smi.show(busy(0, HOT_AND_BRAKED), busy(1))
    wait_for(lambda: "C8" in reader.take())
    lines = reader.take().splitlines()
    assert [parse_gpu_sample(line).ranks for line in lines] == ["2", "3"]
    assert all(line.count(",") == len(GPU_FIELDS) - 1 for line in lines)
    ((pid, niceness),) = smi.starts()
    assert niceness == 19
    reader.stop()
    wait_for(lambda: is_gone(pid))


def test_an_older_driver_knows_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = install(tmp_path / "smi", busy(0), unknown=REASONS[:1])
    monkeypatch.setenv("PATH", smi.path)
    reader = GpuUsageReader(GpuRanks(PLAN, 2, 4), 1.0)
    assert len(wait_for_lines(reader)) == 1
    assert len(smi.starts()) == 2
    reader.stop()
    wait_for(lambda: all(is_gone(pid) for pid, _ in smi.starts()))


def test_without_nvidia_smi_nothing_is_reported_and_nothing_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    reader = GpuUsageReader(GpuRanks(PLAN, 2, 4), 1.0)
    assert (reader.take(), reader.take(), reader.take_problem()) == ("", "", "")


def test_a_driver_that_fails_is_one_problem(smi: StandIn, reader: GpuUsageReader) -> None:
    wait_for_lines(reader)
    smi.show("Unable to determine the device handle for GPU0: failed")
    assert wait_for_problem(reader) == "nvidia-smi: Unable to determine the device handle for GPU0: failed"
    assert (reader.take(), reader.take_problem(), len(smi.starts())) == ("", "", 1)


@pytest.mark.parametrize(("environ", "problem"), [(PLAN, "nvidia-smi: NVIDIA-SMI has failed"), (NO_GPUS, "")])
def test_a_driver_that_never_works_is_a_problem_only_for_ranks_with_gpus(
    smi: StandIn, environ: dict[str, str], problem: str
) -> None:
    smi.show("NVIDIA-SMI has failed")
    reader = GpuUsageReader(GpuRanks(environ, 2, 4), 1.0)

    def ends() -> bool:
        assert reader.take() == ""
        return len(smi.starts()) == len(REASONS) and all(is_gone(pid) for pid, _ in smi.starts())

    wait_for(ends)
    assert reader.take() == ""
    assert reader.take_problem() == problem
    assert (reader.take(), len(smi.starts())) == ("", len(REASONS))


def test_nvidia_smi_that_hangs_is_ended_and_one_problem(smi: StandIn) -> None:
    smi.show()
    reader = GpuUsageReader(GpuRanks(PLAN, 2, 4), 1.0, 1.0)
    reader.take()
    wait_for(smi.starts)  # on a busy machine, later than its output is missed
    assert wait_for_problem(reader).startswith("nvidia-smi: no output for ")
    ((pid, _),) = smi.starts()
    wait_for(lambda: is_gone(pid))
    assert (reader.take(), reader.take_problem(), len(smi.starts())) == ("", "", 1)


AMD_GPUS = ("0000:43:00.0", "0001:65:00.0")
AMD_PLAN = {
    "DDLRUN_TOPOLOGY": "2x1",
    "DDLRUN_RANK_ORDER": "host",
    "DDLRUN_SEATS": "1*5@@amd=0000:43:00.0,0001:65:00.0@;5@@amd=0000:43:00.0,0001:65:00.0@",
}
# Sensors with the highest values of the format: a temperature of MI300, a power that is measured, not averaged.
SENSORS = {
    "gpu_busy_percent": "97",
    "mem_info_vram_used": f"{61234 << 20}",
    "mem_info_vram_total": f"{81559 << 20}",
    "unique_id": "1f",
    "pp_dpm_sclk": "0: 132Mhz\n1: 1980Mhz *\n",
    "hwmon/hwmon4/power1_input": "402130000",
    "hwmon/hwmon4/power1_cap": "700000000",
    "hwmon/hwmon4/temp2_input": "61000",
    "hwmon/hwmon4/freq1_input": "1755000000",
}


def write_amd_gpus(folder: Path, sensors: dict[str, str] = SENSORS) -> Path:
    for address in AMD_GPUS:
        for name, text in sensors.items():
            path = folder / address / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (folder / "bind").touch()  # as every driver has
    return folder


def write_metrics(folder: Path, content: int, *, size: int = 120, **fields: int) -> None:
    """Write gpu_metrics of the first GPU; `fields` has 32-bit numbers at their offsets, such as at_44=7."""
    table = bytearray(size)
    table[:4] = size.to_bytes(2, "little") + bytes([1, content])
    for name, value in fields.items():
        offset = int(name.removeprefix("at_"))
        table[offset : offset + 4] = value.to_bytes(4, "little")
    (folder / AMD_GPUS[0] / "gpu_metrics").write_bytes(table)


def test_the_files_of_amd_gpus_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    driver = write_amd_gpus(tmp_path / "amdgpu")
    others = psutil.Process().children()
    reader = GpuUsageReader(GpuRanks(AMD_PLAN, 0, 2), 1.0, amd_driver=str(driver))
    wait_for(lambda: len(wait_for_lines(reader)) == 2)
    samples = [parse_gpu_sample(line) for line in reader.take().splitlines()]
    (process,) = [child for child in psutil.Process().children() if child not in others]
    reader.stop()
    wait_for(lambda: is_gone(process.pid))
    assert [(sample.number, sample.address, sample.ranks) for sample in samples] == [
        (0, "0000:43:00.0", "0"),
        (1, "0001:65:00.0", "1"),
    ]
    assert samples[1] == replace(GPU, ranks="1", limits=())


def test_what_the_driver_of_amd_does_not_report_is_left_out(tmp_path: Path) -> None:
    driver = write_amd_gpus(tmp_path, {"gpu_busy_percent": "3"})
    gpu = AmdGpu(0, list_gpus(str(driver))[0])
    assert gpu.take() == "0, [N/A], 0000:43:00.0, 3.00, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]"
    assert list_gpus(str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("content", "fields", "limits"),
    [
        (3, {"at_112": 0x1}, [ClockLimit.POWER_CAP]),
        (3, {"at_114": 0x1}, [ClockLimit.POWER_CAP]),  # bit 16, a current
        (3, {"at_116": 0x10}, [ClockLimit.HEAT]),  # bit 36, the hotspot
        (3, {"at_116": 0x8000}, [ClockLimit.HARDWARE]),  # bit 47
        (3, {"at_112": 0xFFFFFFFF, "at_116": 0xFFFFFFFF}, []),  # not reported
        (4, {"at_40": 0xFF}, []),  # bits that depend on the GPU
        (2, {}, []),
    ],
)
def test_the_throttling_of_amd_gpus_is_that_of_their_status(
    tmp_path: Path, content: int, fields: dict[str, int], limits: list[ClockLimit]
) -> None:
    driver = write_amd_gpus(tmp_path)
    write_metrics(driver, content, **fields)
    *_, reasons = AmdGpu(0, str(driver / AMD_GPUS[0])).take().split(", ")
    assert parse_limits(reasons) == limits


@pytest.mark.parametrize(("content", "first"), [(6, 36), (7, 44), (8, 44)])
def test_the_throttling_of_amd_gpus_that_count_its_time_is_its_increase(
    tmp_path: Path, content: int, first: int
) -> None:
    driver = write_amd_gpus(tmp_path)
    gpu = AmdGpu(0, str(driver / AMD_GPUS[0]))
    found = []
    for counters in ((5, 6, 7, 8, 9), (5, 6, 7, 8, 9), (5, 7, 7, 8, 9), (5, 7, 7, 8, 10), (6, 7, 7, 8, 10)):
        fields = {f"at_{first + 4 * place}": counter for place, counter in enumerate(counters)}
        write_metrics(driver, content, **fields)
        found.append(parse_limits(gpu.take().split(", ")[-1]))
    assert found == [[], [], [ClockLimit.POWER_CAP], [ClockLimit.HEAT], [ClockLimit.HARDWARE]]


KEEPER = """
import time
from ddlrun.keeper.usage.gpus import GpuRanks
from ddlrun.keeper.usage.gpus import GpuUsageReader
reader = GpuUsageReader(GpuRanks({}, 0, 1), 1.0)
while True:
    reader.take()
    time.sleep(0.1)
"""


def test_nvidia_smi_ends_with_a_keeper_that_is_killed(smi: StandIn) -> None:
    smi.show()  # it does not notice by itself
    with subprocess.Popen([sys.executable, "-c", KEEPER]) as keeper:
        wait_for(smi.starts)
        keeper.send_signal(signal.SIGKILL)
    ((pid, _),) = smi.starts()
    wait_for(lambda: is_gone(pid))
