"""What ddlrun does about each fault: exit code and first line, in fault_results.json.

Tests compare with the exit codes; fault_page.py renders docs/reference/faults.md; faults.py runs the tests and updates
the file.
"""

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("fault_results.json")
LONGEST_LINE = 105
# What starts the ranks: of Open MPI, or ddlrun's own process manager with an MPI or without.
MANAGERS = {"openmpi4": "openmpi", "openmpi5": "openmpi", "without-mpi": "own", "mpich": "own", "impi-rt": "own"}
# Test and parameter of test_faults.py -> the row's name. The rows of fault_table.py have their own.
ROWS = {
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
    "a killed ddlrun and guard with a stopped process: h3": "SIGKILL to ddlrun and its guard, with a stopped daemon",
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


class Result(NamedTuple):
    """An exit code, None if any but 0 may come, and the first line; empty: none."""

    code: int | None
    line: str


Results = dict[str, dict[str, Result]]


def read_results() -> Results:
    """Return fault -> manager ("openmpi" or "own") -> result."""
    found = json.loads(FILE.read_text())
    return {fault: {manager: Result(*pair) for manager, pair in row.items()} for fault, row in found.items()}


def write_results(results: Results) -> None:
    """Write the file, a line per fault."""
    lines = (f"{json.dumps(fault)}: {json.dumps(row)}" for fault, row in results.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def row_of(test: str) -> tuple[str, str] | None:
    """Return the fault and the manager of a test by its name in pytest; None if it is not a row."""
    match = re.fullmatch(rf"test_(\w+)\[({'|'.join(MANAGERS)})-?(.*)\]", test)
    if match is None:
        return None
    name, manager, parameter = match[1].replace("_", " "), MANAGERS[match[2]], match[3]
    if name == "fault":
        return parameter, manager
    detail = parameter.split("-", maxsplit=1)[0]
    fault = ROWS.get(f"{name}: {detail}" if detail else name)
    return None if fault is None else (fault, manager)


def check_result(returncode: int, errors: str) -> None:
    """Compare the end of the job of the present test with its row, or note it where `make faults` runs."""
    row = row_of(os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].rpartition(" (")[0])
    if row is None:
        return
    fault, manager = row
    code = 128 - returncode if returncode < 0 else returncode  # as shells show it
    if noted := os.environ.get("FAULT_RESULTS"):
        with Path(noted).open("a") as file:
            file.write(json.dumps([fault, manager, code, first_line(errors)]) + "\n")
        return
    expected = read_results().get(fault, {}).get(manager)
    assert expected is None or expected.code in (None, code), (code, expected, errors)


def first_line(errors: str) -> str:
    """Return the first line that is not a note, without what differs between two runs and without the remedy."""
    texts = [line.removeprefix("ddlrun: ") for line in errors.splitlines() if line.startswith("ddlrun: ")]
    line = next((text for text in texts if not text.startswith(("note:", "warning:"))), "")
    for pattern, replacement in (
        (r" after \d+\.\d s: ", ": "), (r",? after \d+\.\d s$", ""), (r" \(process \d+\)", ""), (r"/\S*/", ".../"),
        (r"test_fault_\w+", "FOLDER"),
        (r"(10(\.\d+){3}):\d+", r"\1:PORT"), (r"\b\d{6,}\b", "N"), (r"; .*", ""),
    ):  # fmt: skip
        line = re.sub(pattern, replacement, line)
    return line if len(line) <= LONGEST_LINE else line.rpartition(": ")[0]
