"""The program of the ranks in random faults: python random_faults_rank.py FOLDER PROGRAM (as JSON).

It writes numbered lines, waits for FOLDER/go, writes the others, and ends. FOLDER/rank.R holds the number of lines
that were written, FOLDER/term.R exists once a TERM has arrived. It imports the standard library alone.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable


def line(rank: int, number: int, size: int) -> bytes:
    """Return a line of a rank without its newline."""
    text = f"line {rank} {number:06d} "
    return text.encode().ljust(size, b"x")


def main() -> None:
    """Write the lines, and end as the program says."""
    folder, program = sys.argv[1], json.loads(sys.argv[2])
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    _on_term(f"{folder}/term.{rank}", deaf=program["deaf"])
    meet = _meet() if program["mpi"] else None
    record = os.open(f"{folder}/rank.{rank}", os.O_CREAT | os.O_WRONLY, 0o600)
    before, after = program["before"], program["after"]
    _write_lines(rank, range(before), program["size"], record)
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    _write_lines(rank, range(before, before + after), program["size"], record)
    if rank == program["victim"]:
        _fail(program["how"])
    if meet is not None:
        meet()


def _meet() -> Callable[[], object]:
    """Meet the other ranks in MPI, or in gloo where ddlrun starts ranks without an MPI; return a barrier."""
    if "DDLRUN_RANK" in os.environ and "MPI4PY_LIBMPI" not in os.environ:
        import torch.distributed as dist  # noqa: PLC0415 - two seconds

        dist.init_process_group("gloo")
        return lambda: (dist.barrier(), dist.destroy_process_group())
    from mpi4py import MPI  # noqa: PLC0415 - half a second

    return MPI.COMM_WORLD.Barrier


def _on_term(path: str, *, deaf: bool) -> None:
    """Record a TERM and, unless the program is deaf to it, die of it."""

    def record(number: int, _frame: object) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        if not deaf:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, record)


def _write_lines(rank: int, numbers: range, size: int, record: int) -> None:
    for number in numbers:
        data = line(rank, number, size) + b"\n"
        while data:
            data = data[os.write(1, data) :]
        os.pwrite(record, b"%09d" % (number + 1), 0)


def _fail(how: str) -> None:
    """End by an exit code, a signal's name, or `exception`; `0` returns."""
    if how == "exception":
        raise ValueError("no such thing")
    if how == "SIGSEGV":
        ctypes.string_at(0)
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    if how != "0":
        sys.exit(int(how))


if __name__ == "__main__":
    main()
