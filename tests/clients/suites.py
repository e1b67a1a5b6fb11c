"""Test suites of other projects, each with its command for mpiexec, its own launcher, and its result."""

import re
from typing import NamedTuple

TORCH = "torch==2.13.0"
# The number of tests that passed, as pytest prints it, and the tests of unittest, of which some may be skipped.
PYTEST = r"^(?:(?P<failed>\d+) failed, )?(?P<passed>\d+) passed"
UNITTEST = r"Ran (?P<ran>\d+) tests? in [\s\S]*?^OK(?: \(skipped=(?P<skipped>\d+)\))?$"
# The end of a result whose failures plain mpirun shows, too.
AS_MPIRUN = ", as with mpirun"
# A test that failed, as pytest's summary and unittest name it; not a file that cannot be imported, as its tests did not
# run.
FAILURE = r"^(?:FAILED |ERROR |FAIL: |ERROR: )(\S+\.py::\S+|\S+ \((?!unittest\.loader\.)\S+\))"
# A test that misses the text of MPI_Abort, and mpirun 4.1's error as it lost that text: one thread frees the message
# while another copies it (orte_rml_oob_send_buffer_nb; Open MPI's issue 8356). Plain mpirun loses about one in 60.
LOST = r"expecting MPI_Abort\(\) message[\s\S]*Data unpack would read past end of buffer in file \S*show_help\.c"
# The line before each report of unittest.
RULE = r"(?m)^={70}$"
# What launchers write before the lines of a rank: ddlrun's [0@host], Open MPI's [1,0]<stdout>:
RANK = r"(?m)^\[\d+(?:@[\w.-]+\] ?|,\d+\]<std\w+>: ?)"


class Result(NamedTuple):
    """The result of a run, and the tests that failed, where the suite names them."""

    text: str
    failures: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    """Those of them in which mpirun lost a message, and said so."""

    @property
    def failed(self) -> bool:
        """Whether the suite failed, as a whole or in part, and not as with mpirun."""
        return ("failed" in self.text or "exit code" in self.text) and not self.text.endswith(AS_MPIRUN)

    def beside(self, plain: "Result") -> "Result":
        """Return the result with a note if each test that failed is named, and fails with plain mpirun or by it."""
        same = self.failures and self.failures <= plain.failures | self.lost
        return self._replace(text=f"{self.text}{AS_MPIRUN}") if same else self


class Suite(NamedTuple):
    """A suite: its distribution on PyPI, where its files are, and how it is run."""

    distribution: str
    version: str
    command: str
    """The command line in the folder; mpiexec is ddlrun or Open MPI's, and the names in braces are those of `run`."""
    pattern: str = PYTEST
    own: str = ""
    """The same with the project's own launcher; empty: it is mpiexec, too."""
    own_major: int = 5
    """The major version of Open MPI for the project's own launcher."""
    also: str = ""
    """What else the suite needs: requirements for pip, or packages of Debian."""
    folder: str = ""
    """The folder of the suite in the source distribution; empty: `package` has it."""
    package: str = ""
    """The folder of the suite in site-packages."""
    repository: str = ""
    """The repository that has the suite, where the source distribution lacks it; the user clones it.

    Without folder, package and repository, the suite is in the folder of the programs here.
    """
    debian: bool = False
    """Whether the distribution is a package of Debian 12, not one of PyPI."""
    quick: bool = True
    """Whether it takes less than some minutes on two quiet cores."""

    @property
    def requirement(self) -> str:
        """The distribution with its version, for pip."""
        return f"{self.distribution}=={self.version}"

    @property
    def requirements(self) -> tuple[str, ...]:
        """All requirements for pip. A repository has its package, too, and Horovod is built by `make horovod`."""
        own = () if self.repository else (self.requirement,)
        return (*own, *self.also.split())

    @property
    def over_hosts(self) -> bool:
        """Whether it can run over several hosts."""
        return "{hosts}" in self.command

    def result(self, output: str, code: int) -> Result:
        """Return the result of a run from its output and exit code, and the tests that it names as failed."""
        output = re.sub(RANK, "", output)
        failures = frozenset(re.findall(FAILURE, output, re.MULTILINE))
        reports = [report for report in re.split(RULE, output) if re.search(LOST, report)]
        lost = frozenset(name for report in reports for name in re.findall(FAILURE, report, re.MULTILINE))
        text = self._text(output, code)
        return Result(f"{len(failures)} failed" if failures and text.startswith("exit code") else text, failures, lost)

    def _text(self, output: str, code: int) -> str:
        """Return the number of tests that passed, also beside failures, `passed` for a script, or the exit code."""
        match = re.search(self.pattern, output, re.MULTILINE)
        numbers = {} if match is None else match.groupdict()
        if numbers.get("failed"):
            return f"{numbers['failed']} failed, {numbers['passed']} passed"
        if code or match is None:
            return f"exit code {code}"
        if "ran" in numbers:
            return f"{int(numbers['ran']) - int(numbers['skipped'] or 0)} passed"
        return f"{numbers['passed']} passed" if "passed" in numbers else "passed"


class Column(NamedTuple):
    """A column of the table: how the suites are run."""

    major: int
    """The major version of Open MPI."""
    launcher: str = "ddlrun"
    """What starts the ranks: `ddlrun`, `own` for the project's own launcher, or `mpirun`."""
    two_hosts: bool = False


COLUMNS = {
    "own launcher": Column(5, "own"),
    "4.1, one host": Column(4),
    "5.0, one host": Column(5),
    "4.1, two hosts": Column(4, two_hosts=True),
    "5.0, two hosts": Column(5, two_hosts=True),
}
# Examples that need no file beside their input.
LAMMPS = """passed=0; cd {folder}
for name in melt min indent nemd; do
  mpiexec {hosts} -n 2 lmp -in {debian}/usr/share/lammps/examples/$name/in.$name || exit 1
  passed=$((passed + 1))
done; echo $passed passed"""
# A matrix of 1000 rows on 2x2 ranks.
HPCC = """cd {folder} && cp {debian}/usr/share/doc/hpcc/examples/_hpccinf.txt hpccinf.txt &&
mpiexec {hosts} -n 4 hpcc && cat hpccoutf.txt"""
PYTEST_COMMAND = "{python} -m pytest -q"
# Horovod as it is installed, and not the one of its repository, which is not built. Its ranks are not bound, as under
# horovodrun: two of their threads wait by sched_yield, and on one busy core each holds up the other.
TEST_TORCH = "{python} -P -m pytest -q test/parallel/test_torch.py"
TRAINER = (
    "lightning_cli.py fit --trainer.accelerator cpu --trainer.strategy ddp --trainer.max_epochs 1 "
    "--trainer.limit_train_batches 4 --trainer.limit_val_batches 2 "
    "--trainer.logger false --trainer.enable_checkpointing false --trainer.devices {local} --trainer.num_nodes {nodes} "
    "--trainer.default_root_dir {folder}"
)
SUITES = {
    "mpi-pytest": Suite("mpi-pytest", "2026.0", f"{PYTEST_COMMAND} tests", folder="mpi_pytest-2026.0"),
    "mpi4py, demo/test-run": Suite(
        "mpi4py", "4.1.2", "env MPIEXEC=mpiexec {python} demo/test-run/test_run.py", UNITTEST, folder="mpi4py-4.1.2"
    ),
    "mpi4py, test": Suite(
        "mpi4py", "4.1.2", "mpiexec {hosts} -n 2 {python} test/main.py -q -e spawn -e util_pool -e dynproc", UNITTEST,
        folder="mpi4py-4.1.2", quick=False,
    ),
    "mpi4py, test, spawned ranks": Suite(
        "mpi4py", "4.1.2",
        "env DDLRUN_SPAWN_SLOTS=8 mpiexec -n 2 {python} test/main.py -q -i spawn -i util_pool -i dynproc", UNITTEST,
        folder="mpi4py-4.1.2", quick=False,
    ),
    "dask-mpi": Suite(
        "dask-mpi", "2026.3.0", f"{PYTEST_COMMAND} test_execute.py test_initialize.py", package="dask_mpi/tests"
    ),
    "accelerate, test_script": Suite(
        "accelerate", "1.15.0", "mpiexec {hosts} -n 2 -x ACCELERATE_USE_CPU=true {python} test_script.py", "",
        own="accelerate launch --cpu --num_processes 2 test_script.py", package="accelerate/test_utils/scripts",
    ),
    "Horovod, test_torch": Suite(
        "horovod", "0.28.1", f"mpiexec --bind-to none {{hosts}} -n 2 {TEST_TORCH}", quick=False,
        own=f"horovodrun -np 2 {TEST_TORCH}", own_major=4,  # to 5.0, it passes options that 5.0 does not have
        repository="https://github.com/horovod/horovod", also="mock==5.2.0",
    ),
    "heat, test_communication": Suite(
        "heat", "1.8.0", f"mpiexec {{hosts}} -n 2 -x PYTHONPATH={{programs}} {PYTEST_COMMAND} -p torchvision_stand_in "
        "tests/core/test_communication.py", quick=False,
        repository="https://github.com/helmholtz-analytics/heat",
    ),
    "Lightning, LightningCLI": Suite(
        "lightning", "2.6.6", f"mpiexec {{hosts}} -n 2 {{python}} {TRAINER}", "`max_epochs=1` reached",
        own=f"{{python}} {TRAINER}", also="jsonargparse[signatures]==4.53.0", quick=False,
    ),
    "Transformers, Trainer": Suite(
        "transformers", "5.23.0", "mpiexec {hosts} -n 2 {python} transformers_trainer.py 2 {folder}", "trained",
        own="{python} -m torch.distributed.run --nproc-per-node 2 transformers_trainer.py 2 {folder}", quick=False,
    ),
    "DeepSpeed, ZeRO": Suite(
        "deepspeed", "0.19.8", "mpiexec {hosts} -n 2 {python} deepspeed_zero.py", "trained by 2",
        own="deepspeed --num_accelerators 2 deepspeed_zero.py", quick=False,
    ),
    "JAX, distributed": Suite(
        "jax", "0.10.2", "mpiexec {hosts} -n 2 {python} jax_processes.py", "gathered from 2",
        own="mpiexec -n 2 {python} jax_processes.py mpi4py", quick=False,
    ),
    "LAMMPS, examples": Suite(
        "lammps", "20220106", f"sh -c '{LAMMPS}'", debian=True, quick=False,
        also="liblammps0 lammps-examples libfftw3-double3 libvoro++1 libkim-api2",
    ),
    "hpcc": Suite("hpcc", "1.5.0", f"sh -c '{HPCC}'", r"(?m)^Success=1$", also="libblas3", debian=True, quick=False),
}  # fmt: skip
