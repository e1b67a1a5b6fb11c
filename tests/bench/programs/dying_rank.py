"""A rank of tests.bench.launch that fails in the first attempts at a job, and succeeds in the last one.

    dying_rank.py FOLDER ATTEMPTS [KILL_KEEPER]

Rank 0 prints the time at which it starts. In all attempts but the last, once all ranks have started, the last rank
prints the time and kills itself; with a third argument it kills its keeper the first time, and so stays behind, and all
ranks leave a file at last.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder, attempts = Path(sys.argv[1]), int(sys.argv[2])
    if rank == 0:
        print("starts", time.monotonic(), flush=True)
    attempt = 1 + len(list(folder.glob("died.*")))
    keeper = len(sys.argv) > 3
    if attempt == attempts:
        if keeper:
            Path(f"result.{rank}").touch()
        return
    (folder / f"started.{attempt}.{rank}").touch()
    if rank < size - 1:
        signal.pause()
    while len(list(folder.glob(f"started.{attempt}.*"))) < size:
        time.sleep(0.001)
    (folder / f"died.{attempt}").touch()
    print("dies", time.monotonic(), flush=True)
    if keeper and attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)


main()
