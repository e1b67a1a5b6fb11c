"""toyrun N PROGRAM: start the ranks of a job on this host, and wait for them."""

import os
import signal
import subprocess
import sys


def main() -> None:
    """Start the ranks and exit with the first code that is not 0."""
    if sys.argv[1:] == ["--version"]:
        print("toyrun 1.0")
        return
    size, program = int(sys.argv[1]), sys.argv[2:]
    ranks = [subprocess.Popen(program, env=os.environ | _variables(rank, size)) for rank in range(size)]

    def end(_number: int, _frame: object) -> None:
        for rank in ranks:
            rank.terminate()

    signal.signal(signal.SIGTERM, end)
    codes = [rank.wait() for rank in ranks]
    sys.exit(next((abs(code) for code in codes if code), 0))


def _variables(rank: int, size: int) -> dict[str, str]:
    return {"TOY_RANK": str(rank), "TOY_LOCAL_RANK": str(rank), "TOY_SIZE": str(size)}
