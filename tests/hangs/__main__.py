"""Print a table of hangs and verdicts: python -m tests.hangs [HANG...], or --healthy N for runs without a hang.

Each hang is a job of its own, which --stall-timeout ends.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import MPIRUNS, launch_line
from tests.hangs.expected import GUILTY, HANGS, SCRIPT, expected_lines, seen_verdict

HEAD = "| hang | guilty rank and line named | seconds after the timeout | verdict |"
HEALTHY = Path(__file__).with_name("healthy.py")
RANKS, STALL_SECONDS = 3, 5.0
ENVIRONMENT = {
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}  # fmt: skip


class SeenHang(NamedTuple):
    """The end of a job that hangs."""

    named: bool
    """Whether the verdict named the rank and the lines."""
    seconds: float
    """From the time of --stall-timeout after the last output until the verdict."""
    text: str


def run_hang(hang: str) -> SeenHang:
    """Run a job that hangs, until ddlrun ends it."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("-np", str(RANKS), "--stall-timeout", f"{STALL_SECONDS:g}", "--grace", "1")
        argv = [*launch_line(MPIRUNS[5], Path(folder), *options), str(SCRIPT), folder, hang]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT})
        printed = max(path.stat().st_mtime for path in Path(folder).glob(f"{hang}.*"))
        record: dict[str, Any] = json.loads(Path(folder, "run", "examination.json").read_text())
        seen = seen_verdict(record, hang)
        named = seen.hangs and seen.guilty == [GUILTY[hang]] and seen.lines and done.returncode == 123
        return SeenHang(named, record["time"] - printed - STALL_SECONDS, str(record["verdict"]["text"]))


def render_row(hang: str, seen: SeenHang) -> str:
    """Return a row of the table; a wrong verdict has the expected places."""
    named = "yes" if seen.named else f"no: {', '.join(expected_lines(hang))}"
    return f"| {HANGS[hang]} | {named} | {seen.seconds:.1f} | {seen.text} |"


def run_healthy(number: int) -> str | None:
    """Examine a healthy job while it runs; return the sentence if that is a hang, None otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [*launch_line(MPIRUNS[5], Path(folder), "-np", str(RANKS)), str(HEALTHY), str(number)]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}
        ) as job:
            if job.stdout is not None:
                job.stdout.readline()
            doctor = [sys.executable, "-m", "ddlrun", "doctor", "--json", f"{folder}/run"]
            done = subprocess.run(doctor, capture_output=True, text=True, check=True)
            job.terminate()
        record = json.loads(done.stdout)
        print(number, record["sentence"], flush=True)
        return str(record["sentence"]) if record["verdict"]["hangs"] else None


def main() -> None:
    """Print the table, or examine healthy jobs."""
    parser = argparse.ArgumentParser(prog="python -m tests.hangs", description="Print a table of hangs and verdicts.")
    parser.add_argument("--healthy", type=int, metavar="N", help="examine N healthy jobs instead")
    parser.add_argument("hangs", nargs="*", metavar="HANG", help=f"only print these rows: {', '.join(HANGS)}")
    options = parser.parse_args()
    if unknown := set(options.hangs).difference(HANGS):
        parser.error(f"no such hang: {', '.join(sorted(unknown))}")
    if options.healthy is not None:
        wrong = [sentence for sentence in map(run_healthy, range(options.healthy)) if sentence is not None]
        print(f"{options.healthy} healthy runs, {len(wrong)} with a hang")
        return
    print(HEAD)
    for hang in options.hangs or HANGS:
        print(render_row(hang, run_hang(hang)), flush=True)


if __name__ == "__main__":
    main()
