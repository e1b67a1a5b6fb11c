"""Run the suites of other projects; with --write, replace their rows in the table of docs/reference/tested.md.

    python -m tests.clients [--write] [--all] [--install] [--column TITLE]... [NAME...]

Without --all and without names, only the quick suites. Without --all and without columns, only one host.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.clients.run import folder_of, install, run
from tests.clients.suites import COLUMNS, SUITES, Column, Result, Suite
from tests.clients.table import NOT_RUN, NOWHERE, replace_rows
from tests.cluster.two_hosts import TwoHosts

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "tested.md"


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
            texts = [result.text for result in row]
            PAGE.write_text(replace_rows(PAGE.read_text(), {name: [suite.version, *texts]}))
        judged = [result for result, column in zip(row, COLUMNS.values(), strict=True) if column.launcher == "ddlrun"]
        failed += [name] if any(result.failed for result in judged) else []
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


def cell(name: str, title: str, *, wanted: bool) -> Result:
    """Run a suite if that is wanted, and print and return the result; one that fails runs with plain mpirun, too."""
    suite, column = SUITES[name], COLUMNS[title]
    if column.two_hosts and not suite.over_hosts:
        return Result(NOWHERE)
    if not wanted:
        return Result(NOT_RUN)
    result, output = _run(suite, column)
    if result.failed:
        print(output[-3000:], flush=True)
    if result.failed and column.launcher == "ddlrun":
        plain, output = _run(suite, column._replace(launcher="mpirun"))
        print(f"{name}: {title}, plain mpirun: {plain.text}", flush=True)
        result = result.beside(plain)
        if result.failed:
            print(output[-3000:], flush=True)
            print(*sorted(result.failures - plain.failures), sep="\n", flush=True)
    print(f"{name}: {title}: {result.text}", flush=True)
    return result


def _run(suite: Suite, column: Column) -> tuple[Result, str]:
    """Run a suite once; return its result and its output."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(TwoHosts()) if column.two_hosts else None
        return run(suite, column, folder, hosts=hosts), (folder / "output").read_text()


if __name__ == "__main__":
    main()
