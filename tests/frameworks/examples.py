"""The examples of docs/examples on two ranks; run as a module, write their table into docs/how-to/frameworks.md."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.cluster.cluster import Cluster
from tests.conftest import MPIRUNS, launch_line, need_horovod

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples"
PAGE = ROOT / "docs" / "how-to" / "frameworks.md"
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"
# Where `make test-all` installs TensorFlow and JAX.
APART = Path(sys.prefix, "frameworks", "bin", "python")
EPOCHS = ("--epochs", "15")


class Example(NamedTuple):
    """A script with its arguments, the framework that it is launched for, and the Open MPI of its run over hosts."""

    script: str
    framework: str
    over_hosts: int
    ranks: int = 2  # over two hosts

    @property
    def why_not(self) -> str:
        """Say why it cannot run here; empty where it can."""
        if self.framework in ("tensorflow", "jax"):
            return "" if APART.exists() else f"no {self.framework}: make test-all"
        return ""

    @property
    def command(self) -> list[str]:
        """Return what is launched."""
        script, *arguments = self.script.split()
        python = APART if self.framework in ("tensorflow", "jax") else sys.executable
        return [str(python), str(FOLDER / script), *arguments, *EPOCHS]


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


def launch(example: Example, mpirun: str, folder: Path, cluster: Cluster | None = None) -> Learned:
    """Train on two ranks of this host, or on as many as the example wants of the cluster's two."""
    if example.framework == "horovod":
        need_horovod()
    argv = [*launch_line(mpirun, folder, "--no-tag-output"), "--framework", example.framework]
    argv += ["--env", "OMPI_MCA_mpi_yield_when_idle=1"]  # a rank that waits leaves the core to others
    if cluster is None:
        argv += ["-np", "2", *example.command]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    else:
        each = example.ranks // 2
        # The two hosts share this machine's cores, though each has them all for its rank's threads.
        argv += ["-H", f"h1:{each},h2:{each}", "--env", "OMP_NUM_THREADS=1", *example.command]
        done = cluster.run("h1", argv, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return parse(done.stdout)


def cell(example: Example, major: int, cluster: Cluster | None) -> str:
    """Run an example; return its accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        learned = launch(example, MPIRUNS[major], Path(folder), cluster)
    shown = f"{learned.accuracy} %"
    print(f"{example.script}, Open MPI {major}, {'two hosts' if cluster else 'one host'}: {shown}", flush=True)
    return shown


def table() -> str:
    """Run everything under both majors on one host and on two; return a Markdown table."""
    lines = [
        "| gradients averaged by | example | 4.1, one host | 4.1, two hosts | 5.0, one host | 5.0, two hosts |",
        "|---|---|---|---|---|---|",
    ]
    with Cluster(hosts_per_rack=2, racks=1) as two:
        for title, example in EXAMPLES.items():
            name, _, option = example.script.partition(" ")
            link = f"[{name}](../examples/{name}){option and f' `{option}`'}"
            cells = [example.why_not or cell(example, major, where) for major in MPIRUNS for where in (None, two)]
            lines.append(f"| {' | '.join((title, link, *cells))} |")
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Write the page's table anew."""
    os.environ.update(dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
