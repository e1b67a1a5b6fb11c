"""Run the suites of other projects; with --write, replace their rows in the table of docs/how-to/frameworks.md.

    python -m tests.clients [--write] [--all] [--install] [--column TITLE]... [NAME...]

Without --all and without names, only the quick suites. Without --all and without columns, only one host.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.clients.run import folder_of, install, run
from tests.clients.suites import COLUMNS, SUITES, Column, Suite
from tests.clients.table import NOT_RUN, NOWHERE, replace_rows
from tests.cluster.two_hosts import TwoHosts

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md"


def main() -> None:
    """Run the suites and print their results."""
    options = parse()
    suites = {
        name: suite
        for name, suite in SUITES.items()
        if (name in options.names if options.names else suite.quick or options.all)
    }
    install(suites.values())
    if options.install:
        return
    titles = options.column or [title for title, column in COLUMNS.items() if options.all or not column.two_hosts]
    failed = []
    for name, suite in suites.items():
        if not folder_of(suite).exists():
            print(f"{name}: not run: no clone of {suite.repository}, version {suite.version}, in {folder_of(suite)}")
            continue
        row = [cell(name, title, wanted=title in titles) for title in COLUMNS]
        if options.write:
            PAGE.write_text(replace_rows(PAGE.read_text(), {name: [suite.version, *row]}))
        failed += [name] if any(map(is_failure, row)) else []
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Run the test suites of other projects under ddlrun.")
    parser.add_argument("--write", action="store_true", help="replace the rows of the page")
    parser.add_argument("--all", action="store_true", help="also the slow suites, and two hosts")
    parser.add_argument("--install", action="store_true", help="only fetch these suites")
    parser.add_argument("--column", action="append", choices=COLUMNS, help="only this column of the table")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"suites: {'; '.join(SUITES)}")
    return parser.parse_args()


def cell(name: str, title: str, *, wanted: bool) -> str:
    """Run a suite once if that is wanted, print and return the result; a failure shows the end of the output."""
    suite, column = SUITES[name], COLUMNS[title]
    if column.two_hosts and not suite.over_hosts:
        return NOWHERE
    if not wanted:
        return NOT_RUN
    with tempfile.TemporaryDirectory() as folder:
        result = _run(suite, column, Path(folder))
        print(f"{name}: {title}: {result}", flush=True)
        if is_failure(result):
            print(Path(folder, "output").read_text()[-3000:], flush=True)
    return result


def is_failure(result: str) -> bool:
    """Return True if a result is that of a suite that failed, as a whole or in part."""
    return "failed" in result or "exit code" in result


def _run(suite: Suite, column: Column, folder: Path) -> str:
    with ExitStack() as stack:
        hosts = stack.enter_context(TwoHosts()) if column.two_hosts else None
        return run(suite, column.major, folder, own=column.own, hosts=hosts)


if __name__ == "__main__":
    main()
