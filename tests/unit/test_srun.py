"""srun as the process manager: its features, and the command that starts a job."""

from pathlib import Path

import pytest

from ddlrun.errors import PreflightError
from ddlrun.hosts import parse_hosts
from ddlrun.managers import SRUN, ManagerJob
from ddlrun.managers.choice import ManagerRequest, PendingManager
from ddlrun.managers.end import EndCode, ManagerEnd, ManagerOutput
from ddlrun.managers.openmpi.end import read_end
from ddlrun.managers.slurm import SrunFeatures, choose_mpi_type, make_srun
from ddlrun.supervise.cause import EndCause, Evidence, explain

JOB = ManagerJob(
    ranks=4,
    hosts=parse_hosts("h1,h2"),
    rankfile="/run/rankfile",
    hostfile="/run/hostfile",
    root=False,
    ssh=(),
    exports=(),
    extra=("--mem=0",),
    program=("python", "start.py", "train.py"),
    rank_hosts=("h1", "h2", "h1", "h2"),
    cpus=((0, 1), (64, 65)),
    step=("--jobid=7",),
)
BOTH = SrunFeatures(frozenset(("none", "pmix", "pmi2")), "none", binds=True)


def command(job: ManagerJob, features: SrunFeatures = BOTH) -> tuple[str, ...]:
    argv = make_srun("/usr/bin/srun", "22.05.8", "", features, {}).command(job)
    return argv[argv.index("/usr/bin/srun") :]


def test_each_rank_has_its_host_and_its_cpus() -> None:
    argv = command(JOB)
    assert argv[:2] == ("/usr/bin/srun", "--jobid=7")
    assert {"--nodelist=h1,h2,h1,h2", "--distribution=arbitrary", "--nodes=2", "--ntasks=4", "--mpi=pmix"} <= {*argv}
    assert "--cpu-bind=mask_cpu:0x3,0x30000000000000000" in argv
    assert argv[-4:] == ("--mem=0", *JOB.program)


def test_variables_of_the_job_do_not_overrule_the_placement() -> None:
    argv = make_srun("/usr/bin/srun", "22.05.8", "", BOTH, {}).command(JOB)
    removed = argv[1 : argv.index("/usr/bin/srun")]
    assert argv[0] == "env"
    assert {*removed[::2]} == {"-u"}
    assert {"SLURM_HOSTFILE", "SLURM_NTASKS_PER_NODE", "SLURM_CPU_BIND"} <= {*removed[1::2]}


@pytest.mark.parametrize(
    ("features", "environ", "mpi_type"),
    [
        (BOTH, {}, "pmix"),
        (BOTH, {"SLURM_MPI_TYPE": "none"}, "pmix"),
        (BOTH, {"SLURM_MPI_TYPE": "pmi2"}, None),
        (BOTH, {"MPI4PY_LIBMPI": "/opt/lib/libmpi.so.12"}, "pmi2"),
        (BOTH, {"MPI4PY_LIBMPI": "/opt/lib/libmpi.so.40"}, "pmix"),
        (BOTH._replace(default_type="cray_shasta"), {}, None),
        (BOTH._replace(mpi_types=frozenset(("none", "pmi2"))), {}, "pmi2"),
        (BOTH._replace(mpi_types=frozenset()), {}, "none"),
    ],
)
def test_the_plugin_that_connects_the_ranks(
    features: SrunFeatures, environ: dict[str, str], mpi_type: str | None
) -> None:
    assert choose_mpi_type(features, environ) == mpi_type


def test_srun_starts_nothing_outside_of_a_job() -> None:
    with pytest.raises(PreflightError, match="of one Slurm job"):
        command(JOB._replace(step=()))


def test_a_list_of_hosts_that_no_command_line_takes() -> None:
    with pytest.raises(PreflightError, match="use mpirun"):
        command(JOB._replace(ranks=20_000, rank_hosts=("host-1234",) * 20_000))


def test_the_option_takes_the_srun_of_this_machine(tmp_path: Path) -> None:
    for name in ("srun", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\n[ $1 = --version ] && echo slurm 24.05.1 || printf '\\tpmi2\\n'\n")
        (tmp_path / name).chmod(0o755)
    chosen = PendingManager(ManagerRequest(SRUN), {"PATH": str(tmp_path)}).result()
    assert (chosen.path, chosen.version, chosen.reason) == (f"{tmp_path}/srun", "24.05.1", "--process-manager srun")
    assert chosen.name == "srun"
    argv = chosen.command(JOB)
    assert "--mpi=pmi2" in argv


def test_a_machine_without_srun(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="srun does not exist or cannot be run; load"):
        PendingManager(ManagerRequest(SRUN), {"PATH": str(tmp_path)})
    printed = PendingManager(ManagerRequest(SRUN, dry_run=True), {"PATH": str(tmp_path)}).result()
    assert printed.version == "not installed here"
    assert printed.command(JOB)[-3:] == JOB.program


CANCELLED = """slurmstepd-h1: error: *** STEP 1.2 ON h1 CANCELLED AT 2026-11-27T04:38:57 ***
srun: error: h2: tasks 2-3: Killed
srun: error: h1: tasks 0-1: Killed
"""
NODE_FAILED = """srun: error: Node failure on h2
slurmstepd-h1: error: *** STEP 3.2 ON h1 CANCELLED AT 2026-11-27T04:39:11 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***
"""
NOT_LAUNCHED = """srun: error: Task launch for StepId=4.2 failed on node h2: Invalid job credential
srun: error: Application launch failed: Invalid job credential
"""
NO_STEP = "srun: error: Unable to create step for job 3: Invalid generic resource (gres) specification\n"


@pytest.mark.parametrize(
    ("text", "reason", "lost"),
    [
        (CANCELLED, "srun's step 1.2 was cancelled", None),
        (NODE_FAILED, "srun lost host h2: Slurm reports that its node has failed", "h2"),
        (NODE_FAILED.partition("\n")[2], "srun's step 3.2 was cancelled DUE TO NODE FAILURE, SEE SLURMCTLD LOG", None),
        (NOT_LAUNCHED, "srun's step could not start on h2: Invalid job credential", "h2"),
        (NO_STEP, "srun could not start a step: Invalid generic resource (gres) specification", None),
    ],
)
def test_the_end_of_a_step(text: str, reason: str, lost: str | None) -> None:
    """srun's own words say why, also where the step is that of mpirun's daemons."""
    for read in (make_srun("", "", "", BOTH, {}).read_end, read_end):
        end = ManagerEnd(137, read(ManagerOutput(137, text)))
        explained = explain(Evidence(None, end, {}, running=True))
        assert (explained.text, explained.lost_host) == (reason, lost)
        closed = EndCause.CLOSED_CONNECTION.reason(label="rank 2 on h2", rank=2)
        if text is not NOT_LAUNCHED and text is not NO_STEP:
            assert explain(Evidence(closed, end, {})).text == reason


def test_the_first_failed_task_is_a_rank() -> None:
    tasks = "srun: error: h2: tasks 2-3: Killed\nsrun: error: h1: task 0: Exited with exit code 3\n"
    killed, exited = make_srun("", "", "", BOTH, {}).read_end(ManagerOutput(137, tasks))
    assert (killed.code, killed.host, killed.rank) == (EndCode.KILLED_RANK, "h2", 2)
    assert (exited.code, exited.host, exited.rank, exited.number) == (EndCode.EXITED_RANK, "h1", 0, 3)
    unreached = explain(Evidence(None, ManagerEnd(3, [exited]), {}, running=True))
    assert unreached.text == "rank 0 on h1 cannot reach ddlrun"
    assert not read_end(ManagerOutput(137, tasks)), "the tasks are mpirun's daemons"
