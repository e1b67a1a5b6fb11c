"""Alter a byte of what a keeper and ddlrun send each other: python -m tests.mpi.altered_bytes 0-80 120.

For each byte of both directions, a job of two ranks is run whose first keeper reaches ddlrun by way of a proxy. The job
ends with exit code 3 and names the rank; a byte that is never sent changes nothing.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from ddlrun.plan.plan import START
from tests.conftest import MPIRUNS, launch_line
from tests.support.altering_proxy import Place, altering

HEARTBEAT = 8.0
# ddlrun whose Python leads the keepers that mpirun starts to a proxy.
LAUNCH = "import sys; sys.executable = sys.argv.pop(1); from ddlrun.cli import main; main()"
PYTHON = """#!/bin/sh
if [ "$3" = {start} ]; then
    echo "$DDLRUN_CHANNEL" >{folder}/channel.part && mv {folder}/channel.part {folder}/channel
    export DDLRUN_CHANNEL=$(echo "$DDLRUN_CHANNEL" | sed 's/@[^@]*@[^@]*@/@elsewhere@127.0.0.1:{port}@/')
fi
exec {python} "$@"
"""
# Ranks stay until the byte has passed, or for a while.
PROGRAM = "echo line; until [ -e go ]; do sleep 0.1; done; echo line"
SECONDS = 12.0
NAMED = r"failed after [0-9.]+ s: (the connection of )?rank \d on (localhost|{host}) "


class Seen(NamedTuple):
    """What came of an altered byte."""

    place: Place
    altered: bool
    code: int
    lines: int
    """The lines of the ranks that were printed."""
    errors: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the job ended as it must."""
        if not self.altered:
            return (self.code, self.lines) == (0, 4)
        return self.code == 3 and re.search(NAMED.format(host=os.uname().nodename), self.errors) is not None

    def __str__(self) -> str:
        """Describe it in a line."""
        way = "to ddlrun" if self.place.to_server else "to a keeper"
        state = "" if self.altered else ", not sent"
        errors = [line for line in self.errors.splitlines() if line.startswith("ddlrun: ")]
        verdict = "right" if self.right else "WRONG"
        return f"{verdict}: {way}, byte {self.place.byte}{state}: {self.code} after {self.seconds:.1f} s, {errors}"


def run_altered(place: Place, folder: Path, *options: str) -> Seen:
    """Run a job with an altered byte, with its files in a folder."""
    channel = folder / "channel"
    with altering(place, lambda: int(channel.read_text().split("@")[2].split(",")[0].rpartition(":")[2])) as proxy:
        python = folder / "python"
        python.write_text(PYTHON.format(start=START, folder=folder, port=proxy.port, python=sys.executable))
        python.chmod(0o755)
        line = launch_line(MPIRUNS[5], folder, "--quiet", "--heartbeat", f"{HEARTBEAT:g}", "--grace", "2")
        argv = [sys.executable, "-c", LAUNCH, str(python), *line[3:], *options, "-np", "2", "sh", "-c", PROGRAM]
        begin = time.monotonic()
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as job:
            while job.poll() is None and not proxy.altered and time.monotonic() < begin + SECONDS:
                time.sleep(0.05)
            begin = time.monotonic()
            if not proxy.altered:
                (folder / "go").touch()
            out, errors = job.communicate()
    return Seen(place, proxy.altered, job.returncode, out.count("line"), errors, time.monotonic() - begin)


def main() -> int:
    """Alter each of some bytes, and print what came of it; return 1 if that was wrong."""
    os.environ |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    ranges = [word.partition("-")[::2] for word in sys.argv[1:]]
    wrong = 0
    for byte in (byte for first, last in ranges for byte in range(int(first), int(last or first) + 1)):
        for to_server in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                seen = run_altered(Place(to_server, byte), Path(folder))
            wrong += not seen.right
            print(seen, flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
