"""Functions that run from a notebook, in a real Jupyter kernel."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs
from tests.support.processes import mark, running, wait_for

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("default")]  # Jupyter has warnings of its own
SECONDS = 300

DEFINITIONS = """
import dataclasses, os, subprocess
import ddlrun

@dataclasses.dataclass
class Result:
    rank: int
    rate: float

def train(rate):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    print("training", rank)
    if rate < 0 and rank == 1:
        raise ValueError("negative rate")
    return Result(rank, rate)

def wait(seconds):
    subprocess.run(["sleep", seconds], check=True)

def run(function, *args):
    folder = os.path.abspath(f"run-{os.urandom(4).hex()}")
    return ddlrun.run(function, *args, np=2, heartbeat=300, quiet=True, mpirun=MPIRUN, run_dir=folder)

os.getpid()
"""


def execute(cells: list[str], folder: Path, after: dict[int, threading.Thread]) -> list[Any]:
    """Execute a notebook; return the outputs of its cells.

    Args:
        cells: The source of each cell.
        folder: The working folder.
        after: Threads to start when the cell with this number has been executed.
    """
    needs.package("cloudpickle")
    needs.package("nbclient", "nbclient ipykernel")
    needs.package("ipykernel", "nbclient ipykernel")
    import nbclient  # noqa: PLC0415 - not everywhere
    import nbformat  # noqa: PLC0415

    def start(cell_index: int, **_: object) -> None:
        if cell_index in after:
            after[cell_index].start()

    version: Any = nbformat.v4
    notebook = version.new_notebook(cells=list(map(version.new_code_cell, cells)))
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, startup_timeout=SECONDS, allow_errors=True, kernel_name="python3",
        resources={"metadata": {"path": str(folder)}}, on_cell_executed=start,
    )  # fmt: skip
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def texts(outputs: list[Any], kind: str, field: str) -> str:
    return "".join(output[field] for output in outputs if output.output_type == kind)


@pytest.mark.openmpi(5)
def test_functions_of_a_notebook(mpirun: str, tmp_path: Path) -> None:
    seconds = mark()

    def interrupt() -> None:
        wait_for(lambda: len(running(seconds)) == 2)
        kernel = int((tmp_path / "kernel").read_text())
        os.killpg(os.getpgid(kernel), signal.SIGINT)  # as Jupyter's button does

    interrupter = threading.Thread(target=interrupt, daemon=True)
    cells = [
        f"MPIRUN = {mpirun!r}\n{DEFINITIONS}",
        "open('kernel', 'w').write(str(os.getpid()))",
        "print(run(train, 0.5) == [Result(0, 0.5), Result(1, 0.5)])",
        "run(train, -1)",
        f"run(wait, {seconds!r})",
        "print(run(lambda: 'still here'))",
    ]
    outputs = execute(cells, tmp_path, {3: interrupter})
    interrupter.join()
    host = os.uname().nodename
    lines = [f"[{rank}@{host}] training {rank}" for rank in (0, 1)]
    assert sorted(texts(outputs[2], "stream", "text").splitlines()) == ["True", *lines]
    (error,) = [output for output in outputs[3] if output.output_type == "error"]
    assert error.ename == "JobError"
    assert 'in train\n    raise ValueError("negative rate")\nValueError: negative rate' in error.evalue
    assert texts(outputs[4], "error", "ename") == "KeyboardInterrupt"
    assert not running(seconds)
    assert texts(outputs[5], "stream", "text") == "['still here', 'still here']\n"
