"""Base of the test clusters with a scheduler: its programs, and daemons that end with the cluster.

The programs are Debian's, unpacked beside the tests' Python and never installed: their installation
starts a daemon (munged), creates users, and installs a mail server.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.namespaces import ClusterError
from tests.support.waiting import PATIENCE, pause

UNPACKED = Path(sys.prefix, "schedulers")

# Debian's programs have the paths of their plugins built in, so they must be in their real places.
# A read-only overlay puts them there, in the mount namespaces of the hosts only.
OVERLAY = ["-t", "overlay", "overlay", "-o", f"lowerdir={UNPACKED}/usr:/usr", "/usr"]


def missing(scheduler: str, *programs: str) -> str:
    """Return what a scheduler's cluster lacks, root or programs (full paths), and the remedy; empty if nothing."""
    if os.geteuid():
        return f"{scheduler} needs root: sudo make test-all"
    absent = [name for name in programs if not Path(f"{UNPACKED}{name}").exists()]
    return f"no {scheduler}: make schedulers" if absent else ""


class SchedulerCluster(Cluster):
    """A cluster with daemons; /usr of its hosts has the schedulers' programs and is read-only."""

    def __init__(self, hosts_per_rack: int, racks: int, *, link: str | None = None, nic: str | None = None) -> None:
        """Prepare the cluster; `link` is the rate of uplinks; without `nic` also of NICs, with short bursts."""
        super().__init__(hosts_per_rack, racks, uplink=link, nic=nic or link, bucket="512kb" if nic else "32kb")
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def down(self) -> None:
        """Remove the cluster with all jobs; harmless at any time, even twice."""
        for name in tuple(self._daemons):
            self.kill(name)
        super().down()

    def kill(self, daemon: str) -> None:
        """Kill one of the scheduler's daemons; the processes that it started go on."""
        process = self._daemons.pop(daemon)
        process.kill()
        process.wait()

    def launch(self, daemon: str, host: str, command: Sequence[str]) -> None:
        """Start a daemon that stays in the foreground; its output goes to <daemon>.log in the cluster's folder."""
        with (self.folder / f"{daemon}.log").open("a") as log:
            self._daemons[daemon] = subprocess.Popen(
                self.argv(host, command, cwd=Path("/")),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def settle(self, ready: Callable[[], bool]) -> None:
        """Wait until the scheduler is ready. Raises ClusterError with the log of a daemon that ends or is too slow."""
        begin = time.monotonic()
        while not ready():
            ended = [name for name, process in self._daemons.items() if process.poll() is not None]
            if ended or time.monotonic() > begin + PATIENCE:
                logs = (f"{name}: {(self.folder / f'{name}.log').read_text()}" for name in ended or self._daemons)
                raise ClusterError("\n".join(logs))
            pause(begin)

    def _up(self) -> None:
        super()._up()
        for host in self.hosts:
            self.administer(host.name, ["mount", *OVERLAY])
