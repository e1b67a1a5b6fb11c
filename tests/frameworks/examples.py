"""The examples of docs/examples on two ranks; run as a module, write their table into docs/reference/tested.md."""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.cluster.cluster import Cluster
from tests.conftest import OWN, launch_line, need_horovod
from tests.support.managers import MANAGERS, Manager
from tests.support.without_mpi import make_environment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples"
PAGE = ROOT / "docs" / "reference" / "tested.md"
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"
# Where `make test-all` installs TensorFlow and JAX.
APART = Path(sys.prefix, "frameworks", "bin", "python")
EPOCHS = ("--epochs", "15")
PATIENCE = 1800.0
LEGEND = (
    "The figures are those on one host / on two hosts. In the last three columns ddlrun itself started the ranks: in",
    "an environment without MPI, with MPICH, and with Intel MPI. Horovod was built with Open MPI.",
    "",
)


class Example(NamedTuple):
    """A script with its arguments, the framework that it is launched for, and the Open MPI of its run over hosts."""

    script: str
    framework: str
    over_hosts: int
    ranks: int = 2  # over two hosts

    @property
    def why_not(self) -> str:
        """The reason why it cannot run here; empty if it can."""
        if self.framework in ("tensorflow", "jax"):
            return "" if APART.exists() else f"no {self.framework}: make test-all"
        return ""

    @property
    def python(self) -> Path:
        """The Python that has the framework."""
        return APART if self.framework in ("tensorflow", "jax") else Path(sys.executable)

    def runs_under(self, manager: Manager) -> bool:
        """Return False where the example needs an MPI, or the one that Horovod was built with."""
        needs_mpi = self.framework in ("mpi", "horovod")
        return not (needs_mpi and manager.without_mpi) and (self.framework != "horovod" or manager.mpirun != OWN)


EXAMPLES = {
    "mpi4py": Example("digits.py", "mpi", 4),
    "Horovod with PyTorch": Example("digits_horovod.py", "horovod", 4),
    "PyTorch, DistributedDataParallel": Example("digits_torch_ddp.py", "torch", 5),
    "PyTorch, ddlrun's optimizer": Example("digits_torch.py", "ddl", 5),
    "PyTorch, ddlrun's hook": Example("digits_torch.py --hook", "ddl", 4),
    "TensorFlow, MultiWorkerMirroredStrategy": Example("digits_tensorflow.py", "tensorflow", 4),
    "JAX": Example("digits_jax.py", "jax", 5),
    "ddlrun.ddl, model parallel along X": Example("hybrid_parallel.py", "ddl", 5, ranks=4),
}


class Learned(NamedTuple):
    """What an example tells in its last lines."""

    loss: float
    accuracy: float
    speed: str
    ranks: int


def parse(text: str) -> Learned:
    """Read what an example printed."""
    loss = re.findall(r"^epoch 15: loss ([\d.]+)", text, re.MULTILINE)
    done = re.findall(
        r"^done: accuracy ([\d.]+) % on 360 held-out images, ([\d,]+) images/s, (\d+) ranks?$", text, re.MULTILINE
    )
    assert len(loss) == len(done) == 1, text
    return Learned(float(loss[0]), float(done[0][0]), done[0][1], int(done[0][2]))


def launch(example: Example, manager: Manager, folder: Path, cluster: Cluster | None = None) -> Learned:
    """Train on two ranks of this host, or on as many as the example wants of the cluster's two."""
    if example.framework == "horovod":
        need_horovod()
    python = make_environment(example.python, folder / "venv") if manager.without_mpi else example.python
    script, *arguments = example.script.split()
    program = [str(python), str(FOLDER / script), *arguments, *EPOCHS]
    argv = [*launch_line(manager.mpirun, folder, "--output", "no-tag"), *manager.options]
    # ddlrun.ddl without MPI needs the variables of torch, which `auto` sets.
    argv += ["--framework", "auto" if manager.without_mpi else example.framework]
    argv += ["--env", "OMPI_MCA_mpi_yield_when_idle=1"]  # a rank that waits leaves the core to others
    if cluster is None:
        argv += ["-np", "2", *program]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    else:
        each = example.ranks // 2
        # The two hosts share this machine's cores, though each has them all for its rank's threads.
        argv += ["-H", f"h1:{each},h2:{each}", "--env", "OMP_NUM_THREADS=1", *program]
        done = cluster.run("h1", argv, cwd=folder, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return parse(done.stdout)


def cell(example: Example, manager: Manager, cluster: Cluster) -> str:
    """Run an example on one host and on two; return its accuracies."""
    if example.why_not or not example.runs_under(manager):
        return example.why_not or "-"
    accuracies = []
    for where in (None, cluster):
        with tempfile.TemporaryDirectory() as folder:
            accuracies.append(launch(example, manager, Path(folder), where).accuracy)
    print(f"{example.script}, {manager.title}: {accuracies}", flush=True)
    return f"{accuracies[0]} / {accuracies[1]} %"


def read_cells(page: str) -> dict[tuple[str, str], str]:
    """Return the cells of the page's table, by the title of an example and that of a process manager."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    titles, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {(row[0], title): text for row in rows for title, text in zip(titles[2:], row[2:], strict=True)}


def render(cells: Mapping[tuple[str, str], str]) -> str:
    """Return the table in Markdown below its legend."""
    headings = ("gradients averaged by", "example", *(manager.title for manager in MANAGERS))
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for title, example in EXAMPLES.items():
        name, _, option = example.script.partition(" ")
        link = f"[{name}](../examples/{name}){option and f' `{option}`'}"
        row = (cells[title, manager.title] for manager in MANAGERS)
        lines.append(f"| {' | '.join((title, link, *row))} |")
    return "".join(f"{line}\n" for line in (*LEGEND, *lines))


def main() -> None:
    """Run examples on one host and on two, and write the page's table anew; cells that are not run stay."""
    parser = argparse.ArgumentParser(description="Run the examples and write the table of docs/reference/tested.md.")
    titles = [manager.title for manager in MANAGERS]
    parser.add_argument("--column", action="append", choices=titles, help="only this column of the table")
    parser.add_argument("--row", action="append", choices=EXAMPLES, help="only this row of the table")
    options = parser.parse_args()
    columns, rows = options.column or titles, options.row or EXAMPLES
    os.environ.update(dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"))
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    cells = dict.fromkeys(itertools.product(EXAMPLES, titles), "not run")
    cells |= read_cells(page)
    with Cluster(hosts_per_rack=2, racks=1) as two:
        for manager in [manager for manager in MANAGERS if manager.title in columns]:
            for title in rows:
                cells[title, manager.title] = cell(EXAMPLES[title], manager, two)
                PAGE.write_text(f"{before}{BEGIN}\n{render(cells)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
