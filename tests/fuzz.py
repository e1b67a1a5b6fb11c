"""Fuzz the parsers, guided by coverage: `python tests/fuzz.py [PARSER [SECONDS]]`. Needs atheris, which no test needs.

Each parser takes any text and returns a value or raises a DdlrunError; anything else is printed with its input.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["ddlrun"]):
    from ddlrun.errors import DdlrunError
    from ddlrun.hosts import parse_hostfile
    from ddlrun.machine.hwloc import parse_hwloc
    from ddlrun.machine.lscpu import parse_lscpu, parse_lscpu_summary
    from ddlrun.machine.numactl import parse_numactl
    from ddlrun.machine.nvidia_smi import parse_query, parse_topo
    from ddlrun.machine.ppc64_cpu import parse_ppc64_cpu
    from ddlrun.machine.probe_reply import parse_answer
    from ddlrun.machine.sysfs import parse_sysfs
    from ddlrun.mapping.rankfile_lint import fix

CAPTURES = os.environ.get("DDLRUN_CAPTURES", f"{os.path.dirname(__file__)}/../../shared/captures")
# Parser -> the captured outputs that it begins with.
SEEDS = {
    "hwloc": "hwloc-xml", "lscpu": "lscpu", "lscpu-summary": "lscpu", "numactl": "numactl", "ppc64_cpu": "ppc64_cpu",
    "nvidia-topo": "nvidia-smi", "lint": "mpi-rankfile",
}  # fmt: skip
PARSERS: dict[str, Callable[[str], object]] = {
    "hwloc": lambda text: parse_hwloc(text, "h"),
    "sysfs": lambda text: parse_sysfs(text, "h"),
    "lscpu": lambda text: parse_lscpu(text, "h"),
    "lscpu-summary": lambda text: parse_lscpu_summary(text, "h"),
    "numactl": lambda text: parse_numactl(text, "h"),
    "ppc64_cpu": lambda text: parse_ppc64_cpu(text, "h"),
    "nvidia-topo": lambda text: parse_topo(text, "h"),
    "nvidia-query": lambda text: parse_query(text, "h"),
    "answer": lambda text: parse_answer(text, "h"),
    "hostfile": lambda text: parse_hostfile(text, "h"),
    "lint": fix,
}


def fuzz(name: str, seconds: str) -> None:
    """Feed one parser in this process until the time is over; the process then ends."""

    def one(data: bytes) -> None:
        try:
            PARSERS[name](data.decode(errors="replace"))
        except DdlrunError as error:
            assert all("\n" not in problem for problem in error.problems)

    with tempfile.TemporaryDirectory() as found:
        seeds = f"{CAPTURES}/{SEEDS.get(name, 'none')}"
        folders = [found, *([seeds] if os.path.isdir(seeds) else [])]
        limits = [f"-max_total_time={seconds}", "-max_len=20000", f"-artifact_prefix={tempfile.gettempdir()}/"]
        atheris.Setup(["fuzz", *limits, *folders], one)
        atheris.Fuzz()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fuzz(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60")
    for parser in PARSERS:
        done = subprocess.run([sys.executable, __file__, parser, os.environ.get("SECONDS_EACH", "20")], check=False)
        print(f"{parser}: {'clean' if done.returncode == 0 else f'ended with {done.returncode}'}")
