"""Jobs that tests give to a real Slurm, and helpers that run and watch them."""

from collections.abc import Callable
from pathlib import Path

from tests.cluster.slurm import SlurmCluster
from tests.support.waiting import wait_until

# Each rank prints its host, its CPUs, the number of ranks and DDLRUN_RESTART.
RANK_REPORT = """
import os
from mpi4py import MPI
world, e = MPI.COMM_WORLD, os.environ
cpus = sorted(os.sched_getaffinity(0))
print(world.rank, os.uname().nodename, *cpus, world.allreduce(1), e["DDLRUN_RESTART"], flush=True)
"""
# Each rank prints the warnings that it gets, and runs until it is killed.
ENDLESS = """
import os, signal, sys, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
signal.signal(signal.SIGUSR1, lambda *_: print("warned", rank, flush=True))
print("up", rank, flush=True)
while True:
    time.sleep(0.1)
"""

Launch = Callable[..., str]
"""Function from Python code and launch's options to the line of a batch script."""


def run(slurm: SlurmCluster, folder: Path, script: str, *options: str) -> tuple[str, list[str]]:
    """Run a job to its end; return its state and the lines of its output."""
    job = slurm.submit(script, f"--output={folder}/out", *options, cwd=folder)
    return slurm.wait_for(job), (folder / "out").read_text().splitlines()


def wait_for_output(folder: Path, words: str, count: int = 1) -> None:
    """Wait until a job's output contains some words `count` times."""
    path = folder / "out"
    wait_until(lambda: path.exists() and path.read_text().count(words) >= count, path.read_text)


def leftovers(slurm: SlurmCluster, folder: Path) -> str:
    """Return the processes of the folder's script on all hosts (they share one process table)."""
    return slurm.run("h1", ["sh", "-c", f"pgrep -af '[s]cript.py' | grep -F {folder} || true"]).stdout
