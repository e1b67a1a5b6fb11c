"""Run the suites of other projects; with --write, replace their table in docs/how-to/frameworks.md.

    python -m tests.clients [--write] [--all] [--install] [NAME...]

Without --all, only the quick suites and one host.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.clients.run import install, run
from tests.clients.suites import SUITES, Suite
from tests.cluster.two_hosts import TwoHosts
from tests.conftest import MPIRUNS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md"
BEGIN, END = "<!-- suites -->\n", "<!-- end of suites -->\n"
HEADER = (
    "| suite | version | own launcher | 4.1, one host | 5.0, one host | 4.1, two hosts | 5.0, two hosts |",
    "|---|---|---|---|---|---|---|",
)


def main() -> None:
    """Run the suites and print their results."""
    parser = argparse.ArgumentParser(description="Run the test suites of other projects under ddlrun.")
    parser.add_argument("--write", action="store_true", help="replace the table of the page")
    parser.add_argument("--all", action="store_true", help="also the slow suites, and two hosts")
    parser.add_argument("--install", action="store_true", help="only fetch the suites")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"suites: {'; '.join(SUITES)}")
    options = parser.parse_args()
    install()
    if options.install:
        return
    chosen = {
        name: suite for name, suite in SUITES.items()
        if (name in options.names if options.names else suite.quick or options.all)
    }  # fmt: skip
    rows = {name: cells(name, suite, over_hosts=options.all) for name, suite in chosen.items()}
    if options.write:
        write(rows)
    failed = [name for name, row in rows.items() if any("exit code" in cell for cell in row[1:])]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def cells(name: str, suite: Suite, *, over_hosts: bool) -> list[str]:
    """Return the results of a suite: with its own launcher, and with ddlrun on one host and on two."""
    row = [cell(name, suite, 5, own=True), *(cell(name, suite, major) for major in sorted(MPIRUNS))]
    if not (over_hosts and suite.over_hosts):
        reason = "not run" if suite.over_hosts else "-"
        return [*row, reason, reason]
    with TwoHosts() as hosts:
        return [*row, *(cell(name, suite, major, hosts=hosts) for major in sorted(MPIRUNS))]


def cell(name: str, suite: Suite, major: int, *, own: bool = False, hosts: TwoHosts | None = None) -> str:
    """Run a suite once, print and return the result; a failure shows the end of the output."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(suite, major, Path(folder), own=own, hosts=hosts)
        launcher = "own launcher" if own else "ddlrun"
        print(f"{name}: {launcher}, Open MPI {major}, {'two hosts' if hosts else 'one host'}: {result}", flush=True)
        if "exit code" in result:
            print(Path(folder, "output").read_text()[-3000:], flush=True)
    return result


def write(rows: dict[str, list[str]]) -> None:
    """Replace the rows of these suites in the page, and keep the others."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    known = {line.split(" | ")[0].removeprefix("| "): line for line in table.splitlines() if line.startswith("| ")}
    for name, row in rows.items():
        known[name] = f"| {' | '.join((name, SUITES[name].version, *row))} |"
    lines = [*HEADER, *(known[name] for name in SUITES if name in known)]
    text = "".join(f"{line}\n" for line in lines)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
