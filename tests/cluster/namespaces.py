"""Network namespaces of the test cluster: claim a name, connect, limit links, remove."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.cluster.host import ClusterHost

NAMES = Path("/run/netns")
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PATIENCE = 10.0

# IPv6 sends neighbour discovery over the links; without it the byte counters show the job alone.
NO_IPV6 = "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $f ] || echo 1 >$f; done"


class ClusterError(Exception):
    """The cluster cannot be built; the text is the output of the program that failed."""


def program(name: str) -> str:
    """Return a program's path, from PATH or sbin; the bare name where it is missing."""
    return shutil.which(name, path=SYSTEM_PATH) or name


def output(command: Sequence[str], stdin: str = "", *, check: bool = True) -> str:
    """Run a program on the real machine and return its output. Raises ClusterError if it fails."""
    argv = [program(command[0]), *command[1:]]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def ip(namespace: str, lines: Iterable[str]) -> None:
    """Run ip commands inside a namespace, all in one process."""
    output(["ip", "-n", namespace, "-batch", "-"], "\n".join(lines))


def limit(namespace: str, links: Iterable[str], rate: str | None, burst: str) -> None:
    """Limit the sending rate of links to `rate`, a tc rate such as "100mbit"; None is no limit."""
    if rate:
        lines = (f"qdisc add dev {link} root tbf rate {rate} burst {burst} latency 50ms" for link in links)
        output(["tc", "-n", namespace, "-batch", "-"], "\n".join(lines))


def claim() -> Path:
    """Create a folder that no other cluster has; its name is the prefix of each namespace's name."""
    for number in itertools.count():
        folder = Path(tempfile.gettempdir(), f"ddl{os.getpid()}x{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if not _names(folder):
                return folder
            folder.rmdir()
    raise AssertionError


def leftovers() -> Iterator[Path]:
    """Yield the folders of clusters whose Python process was killed before it could clean up."""
    for folder in Path(tempfile.gettempdir()).glob("ddl*x*"):
        match = re.fullmatch(r"ddl(\d+)x\d+", folder.name)
        if match and not Path("/proc", match[1]).exists() and folder.lstat().st_uid == os.geteuid():
            yield folder


def wire(switch: str, hosts: Sequence[ClusterHost]) -> None:
    """Create the namespaces and, in `switch`, a bridge per rack, joined to `spine` by up<rack>=dn<rack>."""
    namespaces = (switch, *(host.namespace for host in hosts))
    output(["ip", "-batch", "-"], "\n".join(f"netns add {name}" for name in namespaces))
    output(["ip", "netns", "exec", switch, "sh", "-c", NO_IPV6])
    lines = ["link add spine type bridge", "link set spine up"]
    for rack in sorted({host.rack for host in hosts}):
        lines += [
            f"link add br{rack} type bridge",
            f"link add up{rack} type veth peer name dn{rack}",
            f"link set up{rack} master br{rack} up",
            f"link set dn{rack} master spine up",
            f"link set br{rack} up",
        ]
    for host in hosts:
        eth0 = f"eth0 address {host.mac} netns {host.namespace}"
        lines += [f"link add {host.name} type veth peer name {eth0}", f"link set {host.name} master br{host.rack} up"]
    ip(switch, lines)
    for host in hosts:
        ip(host.namespace, ["link set lo up", f"addr add {host.ip_arguments}", "link set eth0 up"])


def remove(folder: Path) -> None:
    """Kill all processes in the namespaces named after the folder; remove the namespaces and the folder."""
    names = _names(folder)
    deadline = time.monotonic() + PATIENCE
    while (pids := processes(names)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    for name in names:
        output(["ip", "netns", "del", name], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _names(folder: Path) -> list[str]:
    return [path.name for path in NAMES.glob(f"{folder.name}-*")]


def processes(names: Iterable[str]) -> set[int]:
    """Return the processes in network namespaces, as `ip netns pids` does, without starting a process."""
    inodes = set()
    for name in names:
        with suppress(OSError):
            inodes.add((NAMES / name).stat().st_ino)
    pids = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:
                pids.add(int(pid))
    return pids
