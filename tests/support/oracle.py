"""Mappings of rank files by a real mpirun, on machines that do not exist.

Nothing is launched. Open MPI 4 needs gcc for a small library that is loaded into it; Open MPI 5 needs nothing.

    python -m tests.support.oracle {4|5} RANKFILE MACHINE

prints a line per rank, `rank host package:cores ...`, with cores counted inside their package. MACHINE is the name of
a machine in tests/machines, or a file of `lstopo --of xml`. mpirun is that of MPIRUN4 or MPIRUN5, or of PATH.
"""

from __future__ import annotations

import atexit
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.machines.facts import NAMES, load
from tests.machines.render_hwloc import render_hwloc
from tests.support import needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Cores = dict[int, tuple[int, ...]]
"""Logical index of a package -> ascending indexes of cores inside that package."""

SHIM = Path(__file__).with_name("oracle_shim.c")
TIME_LIMIT = 120  # seconds; 16384 ranks on 2048 hosts take 9

# Options of each major version. Files have relative names: the path of the temporary folder must not reach mpirun.
# Without if_base_do_not_resolve Open MPI 4 takes a second for each name that does not resolve.
OPTIONS = {
    4: "--do-not-launch --display-devel-map --mca hwloc_base_topo_file machine.xml --mca if_base_do_not_resolve 1 "
    "--mca orte_keep_fqdn_hostnames 1 --hostfile hosts --rankfile ranks",
    5: "--runtime-options donotlaunch --display map --prtemca hwloc_use_topo_file machine.xml "
    "--prtemca prte_keep_fqdn_hostnames 1 --hostfile hosts --map-by rankfile:file=ranks",
}
OPTIONS[6] = OPTIONS[5]

BLANK = r"[ \t\f\v]"
HOST_OF_RANK = re.compile(rf"^(?:[^\n#]*(?:{BLANK}|/))?rank{BLANK}*\d+[^=\n]*={BLANK}*(\S+)", re.MULTILINE)
# As OPTIONS, without the machine.
TREE_OPTIONS = {
    4: "--do-not-launch --display-devel-map --mca if_base_do_not_resolve 1 --hostfile hosts --rankfile ranks",
    5: "--runtime-options donotlaunch --display map --hostfile hosts --map-by rankfile:file=ranks",
}
TREE_OPTIONS[6] = TREE_OPTIONS[5]

MAP_LINE = re.compile(
    r"""Data\ for\ node:\ (?P<host>\S+)
    | Data\ for\ proc:\ \[.*,(?P<rank>\d+)\]
    | Binding:\ (?P<pus>\d[\d,-]*)$
    | Binding:\ (?P<cores>package\[.*)$""",
    re.MULTILINE | re.VERBOSE,
)


# A package and its cores as Open MPI 5 displays them.
PACKAGE_CORES = re.compile(r"package\[(\d+)\]\[core:L?([\d,-]+)\]")


class OracleError(Exception):
    """A command failed: its output, and its return code (None: it was killed at the time limit)."""

    def __init__(self, program: str, output: str, returncode: int | None) -> None:
        """Keep the output and the return code, and put both into the message."""
        super().__init__(f"{program}: no answer, return code {returncode}\n{output}")
        self.output = output
        self.returncode = returncode


def map_ranks(
    major: int, rankfile: str, machine: str, *, mpirun: str, seconds: float = TIME_LIMIT
) -> dict[int, tuple[str, Cores]]:
    """Return the host and the cores of each rank of the text `rankfile`, where every host is a `machine`.

    `machine` is hwloc's XML. `mpirun` is that of Open MPI `major` (4 or 5). Host names are not cut at a dot.
    Raises OracleError with mpirun's output and return code if it makes no map.
    """
    hosts = Counter(HOST_OF_RANK.findall(rankfile))
    argv = [mpirun, "--allow-run-as-root", "-np", str(hosts.total()), *OPTIONS[major].split(), "true"]
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        Path(folder, "machine.xml").write_text(machine, encoding="utf-8")
        Path(folder, "ranks").write_bytes(os.fsencode(rankfile))
        Path(folder, "hosts").write_text("".join(f"{host} slots={ranks}\n" for host, ranks in hosts.items()))
        done = _run(argv, cwd=folder, env=environment(major, folder), seconds=seconds)
    place = parse_map(done.stdout, machine)
    if not place:
        raise OracleError(mpirun, done.stdout + done.stderr, done.returncode)
    return place


def map_pus(
    major: int, rankfile: str, machine: Path, *, mpirun: str, overload: bool = False
) -> dict[int, tuple[str, str]]:
    """Return the host and the PUs (a list such as `0-3,8`) of each rank, where every host is `machine`.

    `machine` is a folder with /proc and /sys, or a file of hwloc's XML. With `overload` ranks may share cores.
    Raises OracleError with mpirun's output and return code if it makes no map.
    """
    hosts = Counter(HOST_OF_RANK.findall(rankfile))
    shared = ["--bind-to", "core:overload-allowed"] if overload else []
    options = TREE_OPTIONS[major] if machine.is_dir() else OPTIONS[major]
    argv = [mpirun, "--allow-run-as-root", "-np", str(hosts.total()), *shared, *options.split(), "true"]
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        Path(folder, "ranks").write_text(rankfile)
        Path(folder, "hosts").write_text("".join(f"{host} slots={ranks}\n" for host, ranks in hosts.items()))
        environ = environment(major, folder) | {"LD_PRELOAD": _shim()}
        if machine.is_dir():  # hwloc's component x86 would add what it finds in this computer's CPUs
            environ |= {"HWLOC_FSROOT": str(machine), "HWLOC_COMPONENTS": "linux,stop"}
        else:
            Path(folder, "machine.xml").symlink_to(machine.absolute())
        done = _run(argv, cwd=folder, env=environ)
    ranks = {rank: (host, line["pus"]) for rank, host, line in _bindings(done.stdout) if line["pus"]}
    if not ranks:
        raise OracleError(mpirun, done.stdout + done.stderr, done.returncode)
    return ranks


def _bindings(text: str) -> Iterator[tuple[int, str, re.Match[str]]]:
    """Yield each rank, its host, and the line with its binding, of a map that mpirun displays."""
    host, rank = "", -1
    for line in MAP_LINE.finditer(text):
        if line["host"]:
            host = line["host"]
        elif line["rank"]:
            rank = int(line["rank"])
        else:
            yield rank, host, line


def _run(
    argv: list[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None, seconds: float = TIME_LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a command with a time limit; its return code is not checked."""
    process = subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip
    with process:
        # Open MPI 4.1.8 may loop indefinitely. The kernel ends it also if this process is killed.
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (TIME_LIMIT, TIME_LIMIT))
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise OracleError(argv[0], f"killed after {seconds:g} s", None) from error
        finally:
            process.kill()
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


@cache
def _shim() -> str:
    """Return the path of the compiled shim in a folder of this process; it is removed when the process ends."""
    compiler = needs.program("gcc", "gcc libc6-dev")
    folder = tempfile.mkdtemp(prefix="oracle-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    done = _run([compiler, "-shared", "-fPIC", "-o", f"{folder}/shim.so", str(SHIM)])
    if done.returncode:
        raise OracleError(compiler, done.stdout + done.stderr, done.returncode)
    return f"{folder}/shim.so"


def environment(major: int, folder: str) -> dict[str, str]:
    """Return mpirun's environment: no scheduler, no settings of the user, session files inside `folder`."""
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "OPAL_PREFIX") if name in os.environ}
    shim = {"LD_PRELOAD": _shim()} if major == 4 else {}
    return {**inherited, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C", **shim}


def parse_map(text: str, machine: str) -> dict[int, tuple[str, Cores]]:
    """Return each rank's host and cores from the map that mpirun displays, for a machine in hwloc's XML."""
    cores = _cores(machine)
    core_of_pu = {pu: place for place, pus in cores.items() for pu in pus}
    # Open MPI 5 numbers the cores of a machine without SMT by their OS indexes, although it prints an L.
    smt = len(core_of_pu) > len(cores)
    displayed = dict(enumerate(cores)) if smt else core_of_pu
    ranks: dict[int, tuple[str, Cores]] = {}
    for rank, host, line in _bindings(text):
        if line["pus"]:
            ranks[rank] = host, _by_package(core_of_pu[pu] for pu in _parse_list(line["pus"]))
        else:
            numbers = (number for _, listed in PACKAGE_CORES.findall(line["cores"]) for number in _parse_list(listed))
            ranks[rank] = host, _by_package(displayed[number] for number in numbers)
    return ranks


def _cores(xml: str) -> dict[tuple[int, int], list[int]]:
    """Return (package, core inside it) -> the PUs that may be used, in logical order.

    A package whose memory alone may be used is counted, too.
    """
    root = ET.fromstring(xml)
    top = next(iter(root))
    allowed = _parse_mask(top.get("allowed_cpuset", top.attrib["cpuset"]))
    nodes = _parse_mask(top.get("allowed_nodeset", "-1"))
    packages = [
        cores
        for package in _objects(root, "Package")
        if (cores := _cores_inside(package, allowed)) or _has_node(package, nodes)
    ]
    return {(package, core): pus for package, cores in enumerate(packages) for core, pus in enumerate(cores)}


def _has_node(package: ET.Element, allowed: int) -> bool:
    """Check if the memory of a NUMA node of a package may be used."""
    return any(allowed >> int(node.attrib["os_index"]) & 1 for node in _objects(package, "NUMANode"))


def _cores_inside(package: ET.Element, allowed: int) -> list[list[int]]:
    """Return the PUs of each core of a package that may be used."""
    cores = ((int(pu.attrib["os_index"]) for pu in _objects(core, "PU")) for core in _objects(package, "Core"))
    return [pus for core in cores if (pus := [pu for pu in core if allowed >> pu & 1])]


def _parse_mask(text: str) -> int:
    """Return a set of hwloc's, such as `0x1,0x00000005`, as the bits of a number."""
    return int("".join(f"{int(word or '0', 16):08x}" for word in text.split(",")), 16)


def _objects(inside: ET.Element, kind: str) -> Iterator[ET.Element]:
    """Yield hwloc's objects of one type, in logical order."""
    return inside.iterfind(f".//object[@type='{kind}']")


def _parse_list(text: str) -> Iterator[int]:
    """Yield the numbers of a list such as `0-3,8`."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _by_package(cores: Iterable[tuple[int, int]]) -> Cores:
    """Gather (package, core) pairs by package."""
    gathered: dict[int, tuple[int, ...]] = {}
    for package, core in sorted(set(cores)):
        gathered[package] = (*gathered.get(package, ()), core)
    return gathered


if __name__ == "__main__":
    major_argument, path, machine_argument = sys.argv[1:]
    text = os.fsdecode(Path(path).read_bytes())
    launcher = os.environ.get(f"MPIRUN{major_argument}", "mpirun")
    xml = (
        render_hwloc(load(machine_argument)) if machine_argument in NAMES else Path(machine_argument).read_text("utf-8")
    )
    mapping = map_ranks(int(major_argument), text, xml, mpirun=launcher)
    for number, (name, packages) in sorted(mapping.items()):
        print(number, name, *(f"{package}:{','.join(map(str, inside))}" for package, inside in packages.items()))
