"""A job on hosts whose file systems share nothing, from an empty cache to the first step.

    python -m tests.bench.apart

Only the first host has the code, the environment and ddlrun; the others have an empty tmpfs in these places, and all
have a tmpfs for shipped files. Hosts are in two racks, with links of 1 Gbit/s. Each has a rank, whose first step is one
of DistributedDataParallel. Times are those of the slowest rank.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.imports import make_environment
from tests.bench.measure import DDLRUN
from tests.bench.options import bench_parser, cannot_run
from tests.cluster.cluster import PATIENCE, Cluster, why_not

REPOSITORY = Path(__file__).parents[2]
# For `ddlrun check`, which ships the environment of its own Python.
MODULES = f"{REPOSITORY}:{sysconfig.get_path('purelib')}"
RATE = "1gbit"
# The steps of a rank; --smoke has a module in place of torch.
TORCH_STEP = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 1024)).sum().backward()
optimizer.step()
"""
STEPS = {"torch": TORCH_STEP, "yaml": "yaml.safe_load('[1]')\n"}
SCRIPT = """
import time
times = [time.monotonic()]
import {module}
times.append(time.monotonic())
{step}
print("times", *times, time.monotonic(), flush=True)
"""
PARTS = ("check", "ship", "start", "import", "first step")


def main() -> int:
    """Print the table; return the exit code."""
    parser = bench_parser(__doc__)
    options = parser.parse_args()
    if why_not():
        cannot_run(why_not())
    module, racks = ("yaml", 1) if options.smoke else ("torch", 2)
    with (
        tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as folder,
        Cluster(2, racks, uplink=RATE, nic=RATE) as hosts,
    ):
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        job = Job(hosts, Path(folder), module)
        print(f"import {module} and a step on {2 * racks} hosts, in seconds")
        print(f"  {'':12} | {' | '.join(PARTS)}")
        for name in ("empty cache",) if options.smoke else ("empty cache", "next launch"):
            print(f"  {name:12} | {' | '.join(f'{part:.1f}' for part in job.launch())}", flush=True)
    return 0


class Job:
    """A project with an environment on the first host, and hosts that have neither."""

    def __init__(self, cluster: Cluster, folder: Path, module: str) -> None:
        """Write the project, and take it and the repository of ddlrun from the other hosts."""
        self._cluster, self._project, self._disk = cluster, folder / "project", folder / "disk"
        self._runs = 0
        for path in (self._project, self._disk):
            path.mkdir()
        make_environment(self._project / ".venv", module)
        (self._project / "train.py").write_text(SCRIPT.format(module=module, step=STEPS[module]))
        names = [host.name for host in cluster.hosts]
        self._names = ",".join(names)
        hidden = [(name, path) for name in names[1:] for path in (self._project, REPOSITORY)]
        for name, path in [*hidden, *((name, self._disk) for name in names)]:
            cluster.administer(name, ["mount", "-t", "tmpfs", "-o", f"mode=700,uid={os.geteuid()}", "tmpfs", str(path)])
        self._hosts = ",".join(f"{name}:1" for name in names)

    def launch(self) -> tuple[float, ...]:
        """Check and launch; return the seconds of each part."""
        self._runs += 1
        ship = ["--ship", "code,env", "--ship-dir", str(self._disk)]
        python = str(self._project / ".venv/bin/python")
        begin = time.monotonic()
        self._run([python, "-m", "ddlrun", "check", self._names, *ship, "--checks", "ssh"], PYTHONPATH=MODULES)
        check = time.monotonic() - begin
        begin = time.monotonic()
        words = ["--process-manager", "ddlrun", "--allow-run-as-root", "-H", self._hosts, "--machine", "local"]
        words += ["--run-dir", f"{self._disk}/run.{self._runs}", "--start-timeout", str(PATIENCE)]
        done = self._run([*DDLRUN, "launch", *words, "--output", "no-tag", *ship, python, "train.py"])
        ranks = [tuple(map(float, line.split()[1:])) for line in done.stdout.splitlines() if line.startswith("times")]
        assert len(ranks) == len(self._cluster.hosts), done.stdout
        started, imported, stepped = map(max, zip(*ranks, strict=True))
        shipped = re.search(r"shipped in ([0-9.]+) s", done.stderr)
        seconds = float(shipped[1]) if shipped else 0.0
        return check, seconds, started - begin - seconds, imported - started, stepped - imported

    def _run(self, argv: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        done = self._cluster.run("h1", argv, cwd=self._project, env=environment, timeout=None)
        assert done.returncode == 0, done.stdout + done.stderr
        return done


if __name__ == "__main__":
    sys.exit(main())
