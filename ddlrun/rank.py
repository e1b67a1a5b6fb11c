"""What mpirun starts on each host: sets up one rank, then becomes the user's program.

Runs with nothing but the standard library, on hosts where ddlrun may not be installed as a package.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Mapping


def main() -> None:
    """Set up this rank and become the program in sys.argv[1:]; exit 127 or 126 where that cannot start."""
    program = sys.argv[1:]
    rank = _number("OMPI_COMM_WORLD_RANK")
    local_rank = _number("OMPI_COMM_WORLD_LOCAL_RANK")
    size = _number("OMPI_COMM_WORLD_SIZE")
    # Open MPI 4 puts the folder of its mpirun before the user's.
    os.environ["PATH"] = os.environ.pop("DDLRUN_PATH", os.environ.get("PATH", os.defpath))
    if rank == 0 and "DDLRUN_STDIN" in os.environ:
        _read_from(os.environ["DDLRUN_STDIN"])
    planned = seat(os.environ, rank, local_rank, size)
    if planned is not None:
        threads, cpus = planned
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        granted = os.sched_getaffinity(0)
        if cpus and granted != cpus:
            _say(f"rank {rank} on {os.uname().nodename} is bound to CPUs {_shown(granted)}, planned {_shown(cpus)}")
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is the point
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        _say(f"rank {rank} on {os.uname().nodename}: cannot start {program[0]!r}: {error.strerror}")
        os._exit(127 if missing else 126)


def seat(environ: Mapping[str, str], rank: int, local_rank: int, size: int) -> tuple[int, set[int]] | None:
    """Return (threads, CPUs) of a rank from DDLRUN_SEATS (see environment.py); None where it says nothing."""
    seats = environ.get("DDLRUN_SEATS")
    if not seats or min(rank, local_rank, size) < 0:
        return None
    runs = [run.partition("*") for run in seats.split("/")]
    per_host = runs[0][2].count(";") + 1
    hosts = size // per_host
    contiguous = environ["DDLRUN_RANK_ORDER"] == "host"
    host = rank // per_host if contiguous else _ddl_host(rank % hosts, environ["DDLRUN_TOPOLOGY"])
    for count, _, text in runs:
        host -= int(count)
        if host < 0:
            threads, _, cpus = text.split(";")[local_rank].partition("@")
            return int(threads), _cpu_set(cpus)
    return None


def _read_from(source: str) -> None:
    """Make `PATH@OFFSET` the standard input: Open MPI 5's mpirun never passes on that its own has ended."""
    path, _, offset = source.partition("@")
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        file = os.open(os.devnull, os.O_RDONLY)
    if offset:
        os.lseek(file, int(offset), os.SEEK_SET)
    os.dup2(file, 0)


def _ddl_host(number: int, topology: str) -> int:
    """Turn (y*Z + z)*A + a, the rank's remainder in ddl order, into the host index (a*Z + z)*Y + y."""
    sizes = [int(size) for size in topology.split("x")][1:]
    coords = []
    for axis_size in reversed(sizes):
        number, at = divmod(number, axis_size)
        coords.append((axis_size, at))
    host = 0
    for axis_size, at in coords:
        host = host * axis_size + at
    return host


def _cpu_set(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return cpus


def _shown(cpus: set[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def _number(name: str) -> int:
    return int(os.environ.get(name, "-1"))


def _say(text: str) -> None:
    sys.stderr.write(f"ddlrun: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
