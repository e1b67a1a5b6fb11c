"""Jobs whose ranks are started by srun itself, in a real Slurm: no mpirun, no daemon."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.slurm import SlurmCluster, why_not
from tests.conftest import launch_line
from tests.support import needs
from tests.support.slurm_jobs import Launch, leftovers, run, wait_for_output
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.extra, pytest.mark.skipif(bool(why_not()), reason=why_not())]
# Each rank prints its number, its host, its CPUs and the number of ranks that MPI sees.
RANK_REPORT = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
print(world.rank, os.uname().nodename, *sorted(os.sched_getaffinity(0)), world.allreduce(1), flush=True)
sys.exit(7 if "fail" in sys.argv and world.rank == 2 else 0)
"""
# Each rank trains until it is ended.
TRAIN = "from mpi4py import MPI; import time; print(MPI.COMM_WORLD.size, flush=True); time.sleep(10000)"
ENDLESS = """
import os, signal, time
rank = os.environ["SLURM_PROCID"]
signal.signal(signal.SIGUSR1, lambda *_: print("warned", rank, flush=True))
print("up", rank, flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def srun(tmp_path: Path) -> Launch:
    """Return a function from Python code and the name of a run folder to the line that launches it by srun."""

    def line(text: str, folder: str, *options: str, arguments: str = "") -> str:
        script = tmp_path / f"{folder}-script.py"
        script.write_text(text)
        argv = launch_line("srun", tmp_path, "--output", "no-tag", "--quiet", *options, str(script))
        return " ".join(argv).replace(f"{tmp_path}/run", f"{tmp_path}/{folder}", 1) + f" {arguments}"

    return line


def planned_reports(folder: Path) -> list[str]:
    """Return what each rank prints if its host and its CPUs are those of the plan."""
    plan = json.loads((folder / "plan.json").read_text())
    size = len(plan["ranks"])
    cpus = {}  # by the number of ranks of a host
    for run_of_hosts in plan["variables"]["DDLRUN_SEATS"].split("/"):
        seats = run_of_hosts.partition("*")[2].split(";")
        cpus[len(seats)] = [seat.split("@")[1].replace("-", " ") for seat in seats]
    counts = Counter(rank["host"] for rank in plan["ranks"])
    places = [(rank["rank"], rank["host"], cpus[counts[rank["host"]]][rank["local_rank"]]) for rank in plan["ranks"]]
    return [f"{rank} {host} {seat} {size}" for rank, host, seat in places]


def test_ranks_are_where_the_plan_has_them(slurm: SlurmCluster, srun: Launch, tmp_path: Path) -> None:
    """Open MPI by PMIx in both rank orders; a rank that fails; and Open MPI where Slurm speaks PMI-2 alone."""
    lines = [
        srun(RANK_REPORT, "host"),
        srun(RANK_REPORT, "ddl", "--rank-order", "ddl"),
        srun(RANK_REPORT, "failed", arguments="fail") + "; echo code $?",
        srun(TRAIN, "alone", "--mpi-args", "--mpi=pmi2") + "; echo code $?",
    ]
    output = run(slurm, tmp_path, "\n".join([*lines, "true"]), "-N2", "--ntasks-per-node=2")[1]
    for name in ("host", "ddl"):
        reports = planned_reports(tmp_path / name)
        assert sorted(reports) == sorted(set(reports))
        assert set(reports) <= set(output), output
        binding = json.loads((tmp_path / name / "binding.json").read_text())
        assert (binding["reported"], binding["different"]) == (4, [])
    assert [line for line in output if line.startswith("code")] == ["code 7", "code 5"]
    assert json.loads((tmp_path / "failed" / "outcome.json").read_text())["root"]["rank"] == 2
    (alone,) = [line for line in output if "because: mpi4py uses Open MPI (" in line]
    text = " started it with --mpi=pmi2: it would see 1 process, the job has 4; use --mpi-args --mpi=pmix"
    assert alone.endswith(text), output


def choose_library(mpi: str) -> str:
    """Return the assignment of a shell with which mpi4py loads an MPI library; Open MPI's is its default."""
    library = Path(sys.prefix, mpi, "lib", "libmpi.so.12")
    if mpi and not library.exists():
        needs.skip(f"no {mpi}", "make mpis")
    return f"MPI4PY_LIBMPI={library} " if mpi else ""


@pytest.mark.parametrize("mpi", ["mpich", "impi-rt"])
def test_mpich_and_intel_mpi_by_pmi_2(slurm: SlurmCluster, srun: Launch, tmp_path: Path, mpi: str) -> None:
    line = f"{choose_library(mpi)}{srun(RANK_REPORT, 'run')}"
    state, output = run(slurm, tmp_path, line, "-N2", "--ntasks-per-node=2")
    assert state == "COMPLETED", output
    assert set(planned_reports(tmp_path / "run")) <= set(output), output


@pytest.mark.parametrize("mpi", ["", "mpich"], ids=["pmix", "pmi2"])
@pytest.mark.parametrize(
    ("options", "reports"),
    [
        (("--ntasks-per-node=2", "--distribution=cyclic"), ["0 h1 0 4", "1 h2 0 4", "2 h1 1 4", "3 h2 1 4"]),
        (("-n3",), ["0 h1 0 3", "1 h1 1 3", "2 h2 0 1 3"]),
    ],
    ids=["cyclic", "unequal"],
)
def test_cyclic_ranks_and_unequal_hosts(
    slurm: SlurmCluster, srun: Launch, tmp_path: Path, mpi: str, options: tuple[str, ...], reports: list[str]
) -> None:
    line = f"{choose_library(mpi)}{srun(RANK_REPORT, 'run')}"
    state, output = run(slurm, tmp_path, line, "-N2", *options)
    assert (state, sorted(output)) == ("COMPLETED", reports)
    assert sorted(planned_reports(tmp_path / "run")) == reports


def test_a_job_that_slurm_warns_and_cancels(slurm: SlurmCluster, srun: Launch, tmp_path: Path) -> None:
    job = slurm.submit(srun(ENDLESS, "run"), f"--output={tmp_path}/out", "-N2", "--ntasks-per-node=2", cwd=tmp_path)
    wait_for_output(tmp_path, "up", 4)
    slurm.run("h1", ["scancel", "--signal=USR1", job], check=True)
    wait_for_output(tmp_path, "warned", 4)
    slurm.run("h1", ["scancel", job], check=True)
    wait_for_output(tmp_path, "exit code")
    slurm.wait_for(job)
    warned = [line for line in (tmp_path / "out").read_text().splitlines() if line.startswith("warned")]
    assert sorted(warned) == [f"warned {rank}" for rank in range(4)]
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    assert (outcome["exit_code"], outcome["reason"]) == (143, f"Slurm job {job} was cancelled")
    wait_until(lambda: not leftovers(slurm, tmp_path), lambda: leftovers(slurm, tmp_path))


def test_a_step_that_slurm_ends_or_refuses(slurm: SlurmCluster, srun: Launch, tmp_path: Path) -> None:
    """The report has Slurm's own reason, not an exit code of srun."""
    lines = f"{srun(ENDLESS, 'cancelled')}\n{srun(ENDLESS, 'refused', '--mpi-args', '--gres=gpu:9')}"
    job = slurm.submit(lines, f"--output={tmp_path}/out", "-N2", "--ntasks-per-node=2", cwd=tmp_path)
    wait_for_output(tmp_path, "up", 4)
    listed = slurm.run("h1", ["squeue", "--steps", "--noheader", "--format=%i", "--jobs", job], check=True).stdout
    _agent, step = sorted(name for name in listed.split() if name.rpartition(".")[2].isdigit())
    slurm.run("h1", ["scancel", step], check=True)
    wait_for_output(tmp_path, "exit code", 2)
    slurm.wait_for(job)
    reasons = [
        json.loads((tmp_path / name / "outcome.json").read_text())["reason"] for name in ("cancelled", "refused")
    ]
    assert reasons == [
        f"srun's step {step} was cancelled",
        "srun could not start a step: Invalid generic resource (gres) specification",
    ]


def test_slurm_binds_each_rank(srun: Launch, tmp_path: Path) -> None:
    """By a mask for each local rank in either order; on unequal hosts, each rank binds itself."""
    orders = "\n".join(srun(RANK_REPORT, order, "--rank-order", order) for order in ("host", "ddl"))
    with SlurmCluster(hosts_per_rack=1, racks=2, binds=True) as slurm:
        state, output = run(slurm, tmp_path, orders, "-N2", "--ntasks-per-node=2", "--exclusive")
        unequal = srun(RANK_REPORT, "unequal")
        unequal_state, unequal_output = run(slurm, tmp_path, unequal, "-N2", "-n3", "--exclusive")
    assert (state, unequal_state) == ("COMPLETED", "COMPLETED"), output + unequal_output
    assert sorted(output) == sorted(planned_reports(tmp_path / "host") + planned_reports(tmp_path / "ddl"))
    assert sorted(unequal_output) == planned_reports(tmp_path / "unequal")
    binding = {"host": "mask_cpu:0x", "ddl": "mask_cpu:0x", "unequal": "none"}
    for name, value in binding.items():
        assert f" --cpu-bind={value}" in (tmp_path / name / "command").read_text()
