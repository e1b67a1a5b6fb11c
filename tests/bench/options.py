"""The option --smoke and the exit codes, which all benchmarks share.

Each program in this folder is a benchmark; those that a benchmark starts are in the folder `programs`. The exit code
is 0 where all was measured, whatever the result; 77 where this machine cannot run the benchmark; otherwise 1.
"""

import argparse
import sys
from typing import NoReturn

CANNOT_RUN = 77


def bench_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option --smoke, and with the description as it is written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="run each part once with the smallest sizes")
    return parser


def cannot_run(reason: str) -> NoReturn:
    """End a benchmark that this machine cannot run; the reason has the form of those in tests.support.needs."""
    sys.stderr.write(f"{reason}\n")
    sys.exit(CANNOT_RUN)
