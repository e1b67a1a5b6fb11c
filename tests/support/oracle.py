"""Mappings of rank files by a real mpirun, on machines that do not exist.

Nothing is launched. Needs Open MPI 4.1 or 5.0, lstopo (hwloc), gcc and hwloc's header.

    python tests/support/oracle.py {4|5} RANKFILE MACHINE

prints a line per rank, `rank host package:cores ...`, with cores counted inside their package. MACHINE is in hwloc's
synthetic notation ("pack:2 core:10 pu:8") or a file of `lstopo --of xml`. mpirun is that of MPIRUN4 or MPIRUN5, or
of PATH.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

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

HOST_OF_RANK = re.compile(r"^[ \t]*rank[ \t]*\d+[ \t]*=[ \t]*(\S+)", re.MULTILINE)
MAP_LINE = re.compile(
    r"""Data\ for\ node:\ (?P<host>\S+)
    | Data\ for\ proc:\ \[.*,(?P<rank>\d+)\]
    | Binding:\ (?P<pus>\d[\d,-]*)$""",
    re.MULTILINE | re.VERBOSE,
)


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

    `mpirun` is that of Open MPI `major` (4 or 5). Host names are not cut at a dot.
    Raises OracleError with mpirun's output and return code if it makes no map.
    """
    xml = _machine_xml(machine)
    with tempfile.TemporaryDirectory(dir=_folder()) as folder:
        Path(folder, "machine.xml").write_text(xml, encoding="utf-8")
        Path(folder, "ranks").write_bytes(os.fsencode(rankfile))
        hosts = Counter(HOST_OF_RANK.findall(rankfile))
        Path(folder, "hosts").write_text("".join(f"{host} slots={ranks}\n" for host, ranks in hosts.items()))
        argv = [mpirun, "--allow-run-as-root", "-np", str(hosts.total()), *OPTIONS[major].split(), "true"]
        done = _run(argv, cwd=folder, env=_environment(folder), seconds=seconds)
    place = dict(_parse_map(done.stdout, _cores_of_pus(xml)))
    if not place:
        raise OracleError(mpirun, done.stdout + done.stderr, done.returncode)
    return place


def _run(
    argv: list[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None, seconds: float = TIME_LIMIT
) -> subprocess.CompletedProcess[str]:
    """Run a command with a time limit; its return code is not checked."""
    try:
        return subprocess.run(
            argv, cwd=cwd, env=env, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds,
            encoding="utf-8", errors="surrogateescape",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise OracleError(argv[0], f"killed after {seconds:g} s", None) from error


def _run_checked(argv: list[str]) -> str:
    """Run a command and return its standard output. Raises OracleError if it fails."""
    done = _run(argv)
    if done.returncode:
        raise OracleError(argv[0], done.stdout + done.stderr, done.returncode)
    return done.stdout


@cache
def _folder() -> str:
    """Return this process's own folder with the compiled shim; it is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="oracle-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _run_checked(["gcc", "-shared", "-fPIC", "-o", f"{folder}/shim.so", str(SHIM)])
    return folder


def _environment(folder: str) -> dict[str, str]:
    """Return mpirun's environment: no scheduler, no settings of the user, session files inside `folder`."""
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "OPAL_PREFIX") if name in os.environ}
    return {**inherited, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C", "LD_PRELOAD": "../shim.so"}


def _machine_xml(machine: str) -> str:
    """Return the machine in hwloc's XML: the PUs that a process may use, one per core where the notation has none."""
    source = machine if Path(machine).is_file() or "pu:" in machine else f"{machine} pu:1"
    return _run_checked(["lstopo", "--input", source, "--of", "xml", "-"])


def _cores_of_pus(xml: str) -> dict[int, tuple[int, int]]:
    """Return the OS index of each PU -> (package, core inside it)."""
    return {
        int(pu.attrib["os_index"]): (package_index, core_index)
        for package_index, package in enumerate(_objects(ET.fromstring(xml), "Package"))
        for core_index, core in enumerate(_objects(package, "Core"))
        for pu in _objects(core, "PU")
    }


def _objects(inside: ET.Element, kind: str) -> Iterator[ET.Element]:
    """Yield hwloc's objects of one type, in logical order."""
    return inside.iterfind(f".//object[@type='{kind}']")


def _parse_map(text: str, cores_of_pus: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, tuple[str, Cores]]]:
    """Yield (rank, (host, cores)) from the map that mpirun displays."""
    host, rank = "", -1
    for line in MAP_LINE.finditer(text):
        if line["host"]:
            host = line["host"]
        elif line["rank"]:
            rank = int(line["rank"])
        else:
            yield rank, (host, _by_package(cores_of_pus[pu] for pu in _parse_list(line["pus"])))


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
    mapping = map_ranks(int(major_argument), text, machine_argument, mpirun=launcher)
    for number, (name, packages) in sorted(mapping.items()):
        print(number, name, *(f"{package}:{','.join(map(str, inside))}" for package, inside in packages.items()))
