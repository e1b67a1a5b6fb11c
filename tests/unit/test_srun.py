"""srun as the process manager: its features, and the command that starts a job."""

from pathlib import Path

import pytest

from ddlrun.errors import PreflightError
from ddlrun.hosts import parse_hosts
from ddlrun.managers import SRUN, ManagerJob
from ddlrun.managers.choice import ManagerRequest, PendingManager
from ddlrun.managers.slurm import SrunFeatures, choose_mpi_type, make_srun

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
