"""The PUs that a real mpirun gives a slot text, on machines that do not exist."""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddlrun.ranges import parse_ranges
from tests.support.oracle import OPTIONS, OracleError, environment

Pus = frozenset[int]

# Open MPI 4 displays PUs with the oracle's shim; Open MPI 5 displays cores, and logs PUs.
_PUS = {4: r"(?m)Binding: (\d[\d,-]*)$", 5: r"convert slots from <[^>]*> to <([^>]*)>"}
_LOG = {4: (), 5: ("--prtemca", "rmaps_base_verbose", "5")}
_PUS[6], _LOG[6] = _PUS[5], _LOG[5]


def map_slots(major: int, slots: Sequence[str], machine: str, *, mpirun: str) -> list[Pus] | None:
    """Return the PUs of each slot text, each on a host of its own, where every host is a `machine` (hwloc's XML).

    None: mpirun refuses one of the texts.
    """
    hosts = [f"h{number}" for number in range(len(slots))]
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        lines = (f"rank {rank}={host} slot={slots[rank]}\n" for rank, host in enumerate(hosts))
        Path(folder, "ranks").write_text("".join(lines))
        Path(folder, "hosts").write_text("".join(f"{host} slots=1\n" for host in hosts))
        Path(folder, "machine.xml").write_text(machine, encoding="utf-8")
        argv = [mpirun, "--allow-run-as-root", "-np", str(len(slots)), *OPTIONS[major].split(), *_LOG[major], "true"]
        environ = environment(major, folder)
        done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, check=False, encoding="utf-8")
    pus = [parse_ranges(text) for text in re.findall(_PUS[major], done.stdout + done.stderr)]
    if pus and len(pus) < len(slots) and not done.returncode:
        raise OracleError(mpirun, done.stdout + done.stderr, done.returncode)
    return pus if len(pus) == len(slots) and "Data for" in done.stdout else None
