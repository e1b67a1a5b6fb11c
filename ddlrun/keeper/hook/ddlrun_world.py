"""Duty "world" of the start-up hook: a note where PyTorch sees one process, and the job has more.

The keeper looks for such MPI ranks from outside: see keeper/singleton.py.
"""

# ruff: noqa: INP001 - it imports nothing from the package

import os
import sys

EXIT_CODE = 5  # of a failed check, as in ddlrun.errors


def on_group() -> None:
    """Print the note; end a rank whose PyTorch has an MPI other than the one that started it."""
    torch = sys.modules["torch.distributed"]
    job_size, size = int(os.environ.get("DDLRUN_SIZE", "1")), torch.get_world_size()
    if size >= job_size or "TORCHELASTIC_USE_AGENT_STORE" in os.environ:  # torchrun makes worlds of its own
        return
    rank = os.environ.get("DDLRUN_RANK", os.environ.get("RANK", "?"))
    beginning = f"ddlrun: rank {rank}: PyTorch sees {size} of the job's {job_size} processes"
    if torch.get_backend() == "mpi":
        sys.stderr.write(f"{beginning}: build it with the MPI that starts the ranks, or take another backend\n")
        sys.exit(EXIT_CODE)
    if size == 1:
        source = "WORLD_SIZE" if os.environ.get("WORLD_SIZE") == "1" else "the script"
        sys.stderr.write(f"{beginning}: {source} says so\n")
