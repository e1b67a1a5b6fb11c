"""Fuzz the parsers, guided by coverage: `python -m tests.fuzz [PARSER [SECONDS]]`. Needs atheris, which no test needs.

Each parser takes any text and returns a value or raises a DdlrunError; anything else is printed with its input.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

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

from tests.machines.facts import NAMES, Facts, load
from tests.machines.render_hwloc import render_hwloc
from tests.machines.render_lscpu import render_summary, render_table
from tests.machines.render_numactl import render_numactl
from tests.machines.render_nvidia_smi import render_query, render_topo
from tests.machines.render_ppc64_cpu import render_ppc64_cpu

# Parser -> renderer of the outputs that it begins with, one per described machine.
SEEDS: dict[str, Callable[[Facts], str]] = {
    "hwloc": render_hwloc,
    "lscpu": render_table,
    "lscpu-summary": render_summary,
    "numactl": render_numactl,
    "ppc64_cpu": render_ppc64_cpu,
    "nvidia-topo": render_topo,
    "nvidia-query": render_query,
}
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


def fuzz(name: str, seconds: int) -> None:
    """Feed one parser in this process until the time is over; the process then ends."""

    def one(data: bytes) -> None:
        try:
            PARSERS[name](data.decode(errors="replace"))
        except DdlrunError as error:
            assert all("\n" not in problem for problem in error.problems)

    with tempfile.TemporaryDirectory() as found:
        for machine in NAMES if name in SEEDS else ():
            Path(found, machine).write_text(SEEDS[name](load(machine)))
        limits = [f"-max_total_time={seconds}", "-max_len=20000", f"-artifact_prefix={tempfile.gettempdir()}/"]
        atheris.Setup(["fuzz", *limits, found], one)
        atheris.Fuzz()


def main() -> None:
    """Fuzz the named parser, or all of them in turn, each in a process of its own."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the parsers.")
    options.add_argument("parser", nargs="?", choices=PARSERS, help="fuzz only this one (default: all in turn)")
    options.add_argument("seconds", nargs="?", type=int, default=60, help="seconds for that parser (default: 60)")
    chosen = options.parse_args()
    if chosen.parser is not None:
        fuzz(chosen.parser, chosen.seconds)
    failed = False
    for parser in PARSERS:
        argv = [sys.executable, "-m", "tests.fuzz", parser, os.environ.get("SECONDS_EACH", "5")]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            failed = True
            print(done.stdout.decode(errors="replace"))
        print(f"{parser}: {f'ended with {done.returncode}' if done.returncode else 'clean'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
