"""The transfer of files to hosts in network namespaces, beside scp, rsync and Slurm's sbcast.

    python -m tests.bench.ship

Every host receives the same file from the first one. The hosts are in two racks, and the uplink of a rack is the
slowest link. The limit is the time that the uplink needs for the file alone, with the headers of its packets. Times
are those of whole transfers; that of ddlrun includes the hash of the file, and the start of Python on all hosts. That
of sbcast is without the allocation of the hosts.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.measure import DDLRUN
from tests.bench.options import bench_parser, cannot_run
from tests.cluster import slurm
from tests.cluster.cluster import Cluster, why_not

# A full packet of TCP over Ethernet, and its payload.
PACKET, PAYLOAD = 1514, 1448
RACKS = 2


class Sizes(NamedTuple):
    """The size of the file in MB, the hosts of a rack, and the rates of the links in Mbit/s."""

    megabytes: int
    hosts_per_rack: int
    uplink: int
    nic: int


FULL = Sizes(megabytes=200, hosts_per_rack=4, uplink=100, nic=1000)
SMOKE = Sizes(megabytes=1, hosts_per_rack=1, uplink=100, nic=1000)


class Figures(NamedTuple):
    """The result of a transfer: seconds, and the bytes that left and entered each rack."""

    seconds: float
    out: list[int]
    into: list[int]


def main() -> int:
    """Print the table; return the exit code."""
    parser = bench_parser(__doc__)
    parser.add_argument("--uplink", type=int, help="rate of the uplinks in Mbit/s")
    parser.add_argument("--hosts", type=int, help="hosts of a rack")
    parser.add_argument(
        "--data", type=Path, help="folder that travels, in place of random bytes that nothing compresses"
    )
    options = parser.parse_args()
    if why_not():
        cannot_run(why_not())
    sizes = SMOKE if options.smoke else FULL
    if options.uplink:
        sizes = sizes._replace(uplink=options.uplink)
    if options.hosts:
        sizes = sizes._replace(hosts_per_rack=options.hosts)
    with_slurm = not (options.smoke or slurm.why_not())
    with (
        tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as folder,
        _cluster(sizes, with_slurm=with_slurm) as cluster,
    ):
        transfers = Transfers(cluster, Path(folder), sizes, options.data)
        ways = {
            "ddlrun launch --ship": transfers.ship,
            "scp, one after the other": transfers.scp,
            "scp, at once": transfers.scp_at_once,
            **({"rsync, at once": transfers.rsync_at_once} if shutil.which("rsync") else {}),
        }
        if with_slurm and options.data is None:
            ways |= {"sbcast": transfers.sbcast, "sbcast, route/topology": transfers.sbcast_by_topology}
        _print_table(transfers, sizes, ways)
    return 0


def _cluster(sizes: Sizes, *, with_slurm: bool) -> Cluster:
    uplink, nic = f"{sizes.uplink}mbit", f"{sizes.nic}mbit"
    if with_slurm:
        return slurm.SlurmCluster(sizes.hosts_per_rack, RACKS, link=uplink, nic=nic, settings=slurm.BY_TOPOLOGY)
    return Cluster(sizes.hosts_per_rack, RACKS, uplink=uplink, nic=nic)


class Transfers:
    """The ways to put a file on all hosts, each of which has a disk of its own at the same path."""

    def __init__(self, cluster: Cluster, folder: Path, sizes: Sizes, data: Path | None) -> None:
        """Write the file, or take the data, and give each host its disk."""
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        self._cluster, self._folder = cluster, folder
        self._disk = folder / "disk"
        self._data = folder / "data"
        self._names = [host.name for host in cluster.hosts]
        for path in (self._disk, self._data, *(folder / name for name in self._names)):
            path.mkdir()
        if data is None:
            (self._data / "file").write_bytes(os.urandom(sizes.megabytes * 10**6))
        else:
            shutil.copytree(data, self._data, symlinks=True, dirs_exist_ok=True)
        self.size = sum(path.stat().st_size for path in self._data.rglob("*") if path.is_file())
        for name in self._names:
            cluster.administer(name, ["mount", "--bind", str(folder / name), str(self._disk)])

    def ship(self) -> float:
        """Ship the file with ddlrun; return the seconds that it prints."""
        hosts = ",".join(f"{name}:1" for name in self._names)
        argv = [*DDLRUN, "launch", "--allow-run-as-root", "--process-manager", "ddlrun", "-H", hosts]
        argv += ["--run-dir", str(self._folder / f"run.{time.monotonic_ns()}"), "--machine", "local"]
        argv += ["--ship", str(self._data), "--ship-dir", str(self._disk), "true"]
        done = self._cluster.run("h1", argv, cwd=self._folder, check=True)
        seconds = re.search(r"shipped in ([0-9.]+) s", done.stderr)
        assert seconds is not None, done.stderr
        return float(seconds[1])

    def scp(self) -> float:
        """Copy the file to one host after the other."""
        begin = time.monotonic()
        for argv in self._copies(["scp", "-O", "-q", "-r"]):
            subprocess.run(argv, check=True)
        return time.monotonic() - begin

    def scp_at_once(self) -> float:
        """Copy the file to all hosts at the same time with scp."""
        return self._at_once(["scp", "-O", "-q", "-r"])

    def rsync_at_once(self) -> float:
        """Copy the file to all hosts at the same time with rsync."""
        return self._at_once(["rsync", "-a", "--whole-file", f"--rsync-path={shutil.which('rsync')}"])

    def sbcast(self) -> float:
        """Copy the file to all hosts with Slurm's program, which sends it as without the setting of the topology."""
        path = self._cluster.folder / "slurm.conf"
        default = path.with_name("default.conf")
        default.write_text(path.read_text().replace(slurm.BY_TOPOLOGY, ""))
        return self._sbcast(default)

    def sbcast_by_topology(self) -> float:
        """Copy the file to all hosts with Slurm's program; Slurm's daemons pass it on from switch to switch."""
        return self._sbcast(self._cluster.folder / "slurm.conf")

    def _sbcast(self, configuration: Path) -> float:
        """Copy the file with the configuration of the sender, in an allocation of all hosts."""
        timed = f'date +%s.%N && SLURM_CONF={configuration} sbcast "$1" "$2" && date +%s.%N'
        argv = ["salloc", "--quiet", f"--nodes={len(self._names)}", "sh", "-c", timed, "sh"]
        done = self._cluster.run("h1", [*argv, f"{self._data}/file", f"{self._disk}/file"], timeout=None)
        sizes = {(self._folder / name / "file").stat().st_size for name in self._names}
        assert (done.returncode, sizes) == (0, {self.size}), done.stderr
        begin, end = map(float, done.stdout.split())
        return end - begin

    def _at_once(self, words: list[str]) -> float:
        begin = time.monotonic()
        copies = [subprocess.Popen(argv) for argv in self._copies(words)]
        codes = [copy.wait() for copy in copies]
        assert codes == [0] * len(copies)
        return time.monotonic() - begin

    def _copies(self, words: list[str]) -> Iterator[list[str]]:
        for name in self._names[1:]:
            yield self._cluster.argv("h1", [*words, str(self._data), f"{name}:{self._disk}/"])

    @contextmanager
    def clean(self) -> Iterator[None]:
        """Empty the disks afterwards."""
        yield
        for name in self._names:
            for path in (self._folder / name).iterdir():
                subprocess.run(["chmod", "-R", "u+w", str(path)], check=True)
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def measure(self, transfer: Callable[[], float]) -> Figures:
        """Return the figures of a transfer."""
        before = [self._cluster.uplink_bytes(rack) for rack in range(RACKS)]
        with self.clean():
            seconds = transfer()
        after = [self._cluster.uplink_bytes(rack) for rack in range(RACKS)]
        pairs = list(zip(before, after, strict=True))
        return Figures(seconds, [new[0] - old[0] for old, new in pairs], [new[1] - old[1] for old, new in pairs])


def _print_table(transfers: Transfers, sizes: Sizes, ways: Mapping[str, Callable[[], float]]) -> None:
    size = transfers.size
    limit = size * 8 / (sizes.uplink * 10**6) * PACKET / PAYLOAD
    print(
        f"{size / 1e6:.0f} MB to {sizes.hosts_per_rack * RACKS} hosts in {RACKS} racks, "
        f"uplinks {sizes.uplink} Mbit/s, NICs {sizes.nic} Mbit/s; the uplink needs {limit:.1f} s"
    )
    print(f"  {'':24} | seconds | to limit | uplink bytes per byte: out of rack 0 | into rack 1")
    for name, transfer in ways.items():
        figures = transfers.measure(transfer)
        bytes_out, bytes_in = figures.out[0] / size, figures.into[1] / size
        print(
            f"  {name:24} | {figures.seconds:7.1f} | {figures.seconds / limit:8.2f} | {bytes_out:.3f} | {bytes_in:.3f}"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
