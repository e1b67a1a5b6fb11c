"""Run the fault tests and write what they saw into docs/explanation/faults.md: python -m tests.hosts.faults.

Arguments are pytest's: with `-k how` the other rows of the table stay as they are. A test that passes changes its cell
at once, so a run that is cut short loses nothing.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hosts import fault_table

TESTS = ("tests/hosts/test_faults.py", "tests/hosts/test_fault_table.py")
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"
END = "<!-- end -->\n"
LONGEST_MESSAGE = 110
Row = dict[str, Any]
Seen = dict[str, Row]


class Columns(NamedTuple):
    """The columns of a table of the page."""

    begin: str
    """The line before the table."""
    ids: tuple[str, ...]
    """The names of the mpiruns, or of what is in their place, in the names of tests."""
    quoted: str
    """The name of that whose messages are shown."""
    head: str
    """The first line of the table."""
    words: tuple[tuple[str, str], ...] = ()
    """What other process managers call what the names of rows name."""

    def rename(self, fault: str) -> str:
        """Return the name of a row in this table."""
        for old, new in self.words:
            fault = fault.replace(old, new)
        return fault


OPEN_MPI = Columns(
    begin="<!-- table -->\n",
    ids=("openmpi4", "openmpi5"),
    quoted="openmpi5",
    head="| fault | exit code, 4.1 / 5.0 | nothing left after, 4.1 / 5.0 | first message (5.0) |",
)
OWN = Columns(
    begin="<!-- own table -->\n",
    ids=("without-mpi", "mpich", "impi-rt"),
    quoted="without-mpi",
    head="| fault | exit code, no MPI / MPICH / Intel MPI | nothing left after | first message (no MPI) |",
    words=(
        ("mpirun's daemon", "the agent"), ("mpirun starts its daemons", "agents are started"),
        ("what the agent sends to mpirun", "what the agent and the keepers send to ddlrun"),
        ("a stopped daemon", "a stopped agent"), ("mpirun", "the process manager"),
        ("a rank calls MPI_Comm_spawn, and the job has no free slot", "a rank calls MPI_Comm_spawn"),
        ("are in MPI_Init", "are in MPI_Init, or in init_process_group"),
        ("without MPI_Finalize", "without MPI_Finalize or destroy_process_group"),
    ),
)  # fmt: skip
# Test and parameter of test_faults.py -> the row's name, in the order of the table. The rows of fault_table.py follow.
FAULTS = {
    "how a rank ends: 0": "none: all ranks exit with 0",
    "how a rank ends: 7": "a rank calls `sys.exit(7)`",
    "how a rank ends: text": 'a rank calls `sys.exit("some text")`',
    "how a rank ends: exception": "a rank raises an exception",
    "how a rank ends: abort": "a rank calls MPI_Abort(9)",
    "how a rank ends: segv": "a rank gets SIGSEGV",
    "how a rank ends: kill": "a rank sends SIGKILL to itself",
    "how a rank ends: unfinished": "a rank calls `os._exit(0)`, without MPI_Finalize",
    "kill 9: rank": "SIGKILL to a rank",
    "kill 9: keeper": "SIGKILL to a keeper",
    "a keeper that is killed before it has read everything": "SIGSTOP, then SIGKILL to a keeper",
    "a killed keeper with hidden processes": (
        "SIGKILL to a keeper while mpirun's daemon there is stopped; its program runs `env -i setsid sleep 3600`"
    ),
    "a keeper and a guard that are killed with hidden processes": (
        "SIGKILL to a keeper and its guard at once; the program runs `env -i setsid sleep 3600`"
    ),
    "a blocked port of the keepers": "a firewall drops what a host sends to the keepers' port",
    "a daemon that cannot call home": "a firewall drops what mpirun's daemon sends to mpirun, `--start-timeout 5`",
    "an agent that is stopped at its start": "the agent of a host is stopped at its start, `--start-timeout 5`",
    "a reset connection": "the connection of a keeper is reset",
    "reset connections of a host": "all TCP connections of a host are reset",
    "kill 9: daemon": "SIGKILL to mpirun's daemon on a host",
    "a daemon that hangs at the end": "mpirun's daemon on a host is stopped, then Ctrl-C",
    "a stopped process when all ranks end: h3": "mpirun's daemon on a host is stopped, then all ranks exit with 0",
    "a stopped parent of a daemon": "the parent of mpirun 5's daemon is stopped, then all ranks exit with 0",
    "a stopped process when all ranks end: h1": "mpirun is stopped, then all ranks exit with 0",
    "kill 9: mpirun": "SIGKILL to mpirun",
    "kill 9: ddlrun": "SIGKILL to ddlrun",
    "a ddlrun that is stopped": "SIGSTOP to ddlrun for longer than `--heartbeat`",
    "a killed ddlrun and guard with a stopped process: h1": "SIGKILL to ddlrun and its guard while mpirun is stopped",
    "a killed ddlrun and guard with a stopped process: h3": "the same, with a stopped daemon on a host",
    "an ssh session that dies while ranks are silent: client": "SIGKILL to ddlrun's ssh client, silent ranks",
    "an ssh session that dies while ranks are silent: server": "SIGKILL to ddlrun's sshd, silent ranks",
    "a guard that is killed": "SIGKILL to ddlrun's guard process",
    "an sshd that is killed": "SIGKILL to the sshd of a host",
    "a cut network: False": "a host's network is cut, silent ranks",
    "a cut network: True": "a host's network is cut, ranks that print all the time",
    "a host that receives nothing": "all packets to a host are lost, those from it arrive",
    "a network that is cut while mpirun starts": "a host's network is cut while mpirun starts its daemons",
    "a host that is cut off before its first keeper": (
        "a host's network is cut between the start of mpirun's daemon and that of its keeper, then Ctrl-C"
    ),
    "a keeper that is killed after its guard": (
        "SIGKILL to a keeper whose program has failed, while mpirun's daemon there is stopped"
    ),
    "ctrl c: checks": "Ctrl-C during the check",
    "ctrl c: start": "Ctrl-C during the start of mpirun",
    "ctrl c: run": "Ctrl-C while ranks run that ignore TERM",
    "ctrl c: ending": "Ctrl-C twice while ranks run that ignore TERM",
    "a time limit": "the time limit is reached (`--timeout`)",
    "a reader that stops": "nothing reads the output for 3 s",
    "a spawn without slots": "a rank calls MPI_Comm_spawn, and the job has no free slot",
    "a full disk": "the disk of the run folder is full",
    "restarts tell the script": "a rank fails, and succeeds in the second restart",
    "a spare host takes the place of a lost one": "a host is lost; restart with a spare host",
    "a host that fails its check is replaced or left out: options0": "no sshd on a host, with a spare host",
    "a host that fails its check is replaced or left out: options1": "no sshd on a host, with `--min-topology`",
}


def rows(lines: list[str]) -> dict[str, Seen]:
    """Return fault -> name of the mpirun -> what was seen."""
    found: dict[str, Seen] = {}
    for row in map(json.loads, lines):
        match = re.fullmatch(rf"test_(\w+)\[({'|'.join((*OPEN_MPI.ids, *OWN.ids))})-?(.*)\]", row["test"])
        if match:
            found.setdefault(name_of(match[1], match[3]), {})[match[2]] = row
    return found


def name_of(test: str, parameter: str) -> str:
    """Return the row's name of a test; those of the table of faults have it as their parameter."""
    if test == "fault":
        return parameter
    detail = parameter.split("-", maxsplit=1)[0]
    key = f"{test.replace('_', ' ')}: {detail}" if detail else test.replace("_", " ")
    return FAULTS.get(key, key)


def exit_code(returncode: int) -> int:
    """Return an exit code as shells show it: 128 + N for signal N."""
    return 128 - returncode if returncode < 0 else returncode


def table(columns: Columns, found: dict[str, Seen], before: list[str]) -> str:
    """Return the rows as a Markdown table; those that it had before stay where there is nothing new."""
    quoted = columns.ids.index(columns.quoted)
    names = [*FAULTS.values(), *map(str, fault_table.FAULTS), *found]
    places = {f"| {columns.rename(name)}": place for place, name in reversed([*enumerate(names)])}
    old = {line.split(" | ")[0]: line for line in before}
    lines = {name: line for name, line in old.items() if name in places}  # others have been renamed or removed
    for fault, seen in found.items():
        name = f"| {columns.rename(fault)}"
        cells = [seen.get(column, {}) for column in columns.ids]
        if any(cells):
            lines[name] = f"{name} | {merge(row_text(cells, quoted), lines.get(name, ''), quoted)}"
    ordered = sorted(lines, key=lambda name: places[name])
    return "".join(f"{line}\n" for line in (columns.head, "|---|---|---|---|", *(lines[name] for name in ordered)))


def row_text(cells: list[Row], quoted: int) -> str:
    """Return a row of a table without its name; the message is that of a column, else of the first that has one."""
    codes = " / ".join(str(exit_code(row["code"])) if row else "-" for row in cells)
    times = " / ".join(f"{row['seconds']} s" if row else "-" for row in cells)
    said = next((row["said"][0] for row in (cells[quoted], *cells) if row.get("said")), "")
    shown = re.sub(r"/\S*/", ".../", said).replace("|", "\\|")
    return f"{codes} | {times} | {textwrap.shorten(shown, LONGEST_MESSAGE, placeholder=' ...')} |"


def merge(text: str, before: str, quoted: int) -> str:
    """Return a row without its name; the cells that were not run are those of the row that was there before."""
    parts, old = text.split(" | ", 2), before.split(" | ", 3)[1:]
    if not old:
        return text
    if parts[0].split(" / ")[quoted] == "-" != old[0].split(" / ")[quoted]:
        parts[2] = old[2]
    for place in range(2):
        cells = zip(parts[place].split(" / "), old[place].split(" / "), strict=True)
        parts[place] = " / ".join(was if new == "-" else new for new, was in cells)
    return " | ".join(parts)


def replace_table(page: str, columns: Columns, found: dict[str, Seen], *, keep: bool) -> str:
    """Return the page with a new table; with `keep`, rows that were not run stay as they are."""
    before, _, rest = page.partition(columns.begin)
    old, _, after = rest.partition(END)
    kept = [line for line in old.splitlines()[3:] if line.startswith("| ")] if keep else []
    return f"{before}{columns.begin}\n{table(columns, found, kept)}\n{END}{after}"


def update_page(lines: list[str], *, keep: bool) -> None:
    """Write what tests have seen into the page, which another run may be changing, too."""
    found = rows(lines)
    with PAGE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        page = file.read()
        for columns in (OPEN_MPI, OWN):
            page = replace_table(page, columns, found, keep=keep)
        file.seek(0)
        file.truncate()
        file.write(page)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what a test has seen once it has passed: this module is a plugin of the pytest that `main` runs."""
    if report.when == "call" and report.passed:
        test = report.nodeid.partition("::")[2]
        lines = Path(os.environ["FAULT_TABLE"]).read_text().splitlines()
        update_page([line for line in lines if json.loads(line)["test"] == test], keep=True)


def main() -> int:
    """Run the tests; rows that no test has seen go if all have run and passed."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder, "rows")
        seen.touch()
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.hosts.faults", *TESTS, *sys.argv[1:]]
        variables = {"FAULT_TABLE": str(seen), "EVERY_MPI": "1"}
        code = subprocess.run(argv, env={**os.environ, **variables}, check=False).returncode
        if code == 0 and not sys.argv[1:]:
            update_page(seen.read_text().splitlines(), keep=False)
    return code


if __name__ == "__main__":
    sys.exit(main())
