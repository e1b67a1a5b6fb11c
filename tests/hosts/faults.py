"""Run the fault tests and write what they saw into docs/explanation/faults.md: python -m tests.hosts.faults.

Arguments are pytest's: with `-k how` the other rows of the table stay as they are.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from tests.hosts import fault_table

TESTS = ("tests/hosts/test_faults.py", "tests/hosts/test_fault_table.py")
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"
LONGEST_MESSAGE = 110
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
    "a blocked port of the keepers": "a firewall drops what a host sends to the keepers' port",
    "a daemon that cannot call home": "a firewall drops what mpirun's daemon sends to mpirun, `--start-timeout 5`",
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


def rows(lines: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return fault -> major -> what was seen."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in map(json.loads, lines):
        match = re.fullmatch(r"test_(\w+)\[openmpi(\d)-?(.*)\]", row["test"])
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


HEAD = (
    "| fault | exit code, 4.1 / 5.0 | nothing left after, 4.1 / 5.0 | first message (5.0) |",
    "|---|---|---|---|",
)


def table(found: dict[str, dict[str, dict[str, Any]]], before: list[str]) -> str:
    """Return the rows as a Markdown table; those that it had before stay where there is nothing new."""
    lines = {line.split(" | ")[0]: line for line in before}
    for fault, seen in found.items():
        both = [seen.get(major, {}) for major in ("4", "5")]
        codes = " / ".join(str(exit_code(row["code"])) if row else "-" for row in both)
        seconds = " / ".join(str(row.get("seconds", "-")) for row in both)
        said = both[1].get("said") or both[0].get("said") or [""]
        shown = re.sub(r"/\S*/", ".../", str(said[0] if isinstance(said, list) else said)).replace("|", "\\|")
        times = " / ".join(f"{part} s" for part in seconds.split(" / "))
        shown = textwrap.shorten(shown, LONGEST_MESSAGE, placeholder=" ...")
        lines[f"| {fault}"] = f"| {fault} | {codes} | {times} | {shown} |"
    names = (*FAULTS.values(), *map(str, fault_table.FAULTS))
    places = {f"| {name}": place for place, name in enumerate(names)}
    ordered = sorted(lines, key=lambda name: places.get(name, len(places)))
    return "".join(f"{line}\n" for line in (*HEAD, *(lines[name] for name in ordered)))


def main() -> int:
    """Run the tests; the page changes only if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder, "rows")
        argv = [sys.executable, "-m", "pytest", "-q", *TESTS, *sys.argv[1:]]
        variables = {"FAULT_TABLE": str(seen), "EVERY_MPI": "1"}
        code = subprocess.run(argv, env={**os.environ, **variables}, check=False).returncode
        if code == 0:
            before, _, rest = PAGE.read_text().partition(BEGIN)
            old, _, after = rest.partition(END)
            kept = [line for line in old.splitlines()[2:] if line.startswith("| ") and line not in HEAD]
            shown = table(rows(seen.read_text().splitlines()), kept if sys.argv[1:] else [])
            PAGE.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}")
    return code


if __name__ == "__main__":
    sys.exit(main())
