"""The examples of docs/examples learn on two ranks what one process learns, whoever averages."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MPIRUNS, launch_line
from tests.frameworks.examples import (
    EPOCHS,
    EXAMPLES,
    FOLDER,
    PAGE,
    Example,
    Learned,
    launch,
    parse,
    read_cells,
    render,
)
from tests.support import needs
from tests.support.managers import INTEL_MPI, MANAGERS, MPICH, MPIRUN, WITHOUT_MPI, Manager


def alone(*words: str) -> Learned:
    done = subprocess.run([sys.executable, *words, *EPOCHS], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return parse(done.stdout)


@pytest.fixture(scope="module")
def plain() -> Learned:
    """Return what one process learns, from the same batches as all but digits.py."""
    return alone("hybrid_parallel.py")


@pytest.fixture(scope="module")
def digits() -> Learned:
    return alone("digits.py")


def same(learned: Learned, plain: Learned, digits: Learned, example: Example) -> None:
    assert learned.accuracy >= 95
    assert abs(learned.accuracy - digits.accuracy) <= 1
    # The same batches and the same first weights: the same network, but for the order of additions.
    if example.framework != "mpi":
        assert learned.loss == pytest.approx(plain.loss, abs=0.002)


# What ranks without MPI calls do differs little by the mpirun: under one major here, under the other over hosts. Over
# hosts alone run JAX, TensorFlow (tests/mpi/test_unequal_hosts.py has several workers on a host), ddlrun's optimizer,
# which one host has without mpirun, and DistributedDataParallel, which one host has from a checkpoint.
OVER_HOSTS = (
    "JAX", "TensorFlow, MultiWorkerMirroredStrategy", "PyTorch, ddlrun's optimizer", "PyTorch, DistributedDataParallel",
)  # fmt: skip
CASES = [
    (name, major)
    for name, example in EXAMPLES.items() for major in MPIRUNS
    if name not in OVER_HOSTS and (example.framework == "mpi" or major != example.over_hosts)
]  # fmt: skip


@pytest.mark.parametrize(("name", "major"), CASES, indirect=["major"])
@pytest.mark.usefixtures("mpirun")
def test_two_ranks_learn_the_same(name: str, major: int, tmp_path: Path, plain: Learned, digits: Learned) -> None:
    example = EXAMPLES[name]
    if example.why_not:
        pytest.skip(example.why_not)
    learned = launch(example, MPIRUN[major], tmp_path)
    assert learned.ranks == 2
    same(learned, plain, digits, example)


@pytest.mark.parametrize(
    ("name", "manager"),
    [
        ("PyTorch, ddlrun's optimizer", WITHOUT_MPI),
        ("ddlrun.ddl, model parallel along X", MPICH),
        ("mpi4py", INTEL_MPI),
    ],
)
def test_two_ranks_learn_the_same_without_mpirun(
    name: str, manager: Manager, tmp_path: Path, plain: Learned, digits: Learned
) -> None:
    if manager.package and not manager.library.exists():
        needs.skip(f"no {manager.package}", "make mpis")
    example = EXAMPLES[name]
    learned = launch(example, manager, tmp_path)
    assert learned.ranks == 2
    same(learned, plain, digits, example)


@pytest.mark.parametrize("major", [5], indirect=True)
def test_training_goes_on_from_a_checkpoint_with_more_ranks(mpirun: str, tmp_path: Path, plain: Learned) -> None:
    command = [
        sys.executable,
        str(FOLDER / "digits_torch_ddp.py"),
        "--checkpoint",
        str(tmp_path / "net.pt"),
        "--epochs",
    ]
    first = subprocess.run([*command, "8"], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), "--framework", "torch", "-np", "2", *command, "15"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    learned = parse(done.stdout)
    assert learned.ranks == 2
    assert learned.loss == pytest.approx(plain.loss, abs=0.002)


def test_every_example_is_run() -> None:
    assert {example.script.split()[0] for example in EXAMPLES.values()} == {path.name for path in FOLDER.glob("*.py")}


def test_the_table_of_the_page_is_read_as_it_is_written() -> None:
    page = PAGE.read_text()
    assert len(read_cells(page)) == len(EXAMPLES) * len(MANAGERS)
    assert render(read_cells(page)) in page
