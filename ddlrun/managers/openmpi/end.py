"""The end of a job as mpirun prints it."""

import os
import re
from collections.abc import Iterator

from ddlrun.managers.end import EndCode, EndFinding, EndPattern, ManagerOutput, find_patterns
from ddlrun.managers.openmpi.missing_daemons import find_name
from ddlrun.managers.slurm_step import STEP

# The message of MPI_Abort: the rank and the code.
ABORT = r"MPI_ABORT was invoked on rank (?P<rank>\d+)[\s\S]*?[Ee]rror ?code:? (?P<number>-?\d+)"
_CAUSE = r"has exited due to process rank (?P<rank>\d+) with PID \d+ on\s+node (?P<host>\S+)\s+"
_CHECK = "before it had reached mpirun; try: ddlrun check"
PATTERNS = (
    *STEP,  # of its daemons in a Slurm job
    EndPattern(
        EndCode.FAILED_START,
        r"srun returned non-zero exit status \(\d+\) from launching",
        f"srun's step of mpirun's daemons ended {_CHECK}",
    ),
    EndPattern(
        EndCode.FAILED_START,
        r"An ORTE daemon has unexpectedly failed after launch and before\s+communicating back to mpirun",
        f"mpirun's daemon ended {_CHECK}",
    ),
    EndPattern(
        EndCode.FAILED_START,
        r"PRTE ERROR: Not found in file rml/oob/oob_base_stubs",
        "mpirun crashed, as Open MPI 6 needs an IPv4 address unless it was built with --enable-ipv6: give each host "
        "one, or take `--process-manager ddlrun`",
    ),
    EndPattern(EndCode.UNFINISHED_RANK, rf"{_CAUSE}exiting\s+improperly"),
    EndPattern(EndCode.ABORTING_RANK, rf'{_CAUSE}calling\s+"abort"'),
    EndPattern(
        EndCode.KILLED_RANK,
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on\s+node (?P<host>\S+)\s+exited on\s+signal 9\b",
    ),
    # The first process of those that exited with a nonzero code.
    EndPattern(EndCode.EXITED_RANK, r"Process name: \[\S+,(?P<rank>\d+)\]\s+Exit code: +(?P<number>\d+)"),
    EndPattern(EndCode.ABORT_CALL, ABORT),
    EndPattern(
        EndCode.REFUSED_SPAWN,
        r"(?m)^(?:All nodes which are allocated for this job are already filled\."
        r"|There are not enough slots available in the system to satisfy the \d+"
        r"|A rank is missing its location specification:)",  # 4.1, beyond the last line of the rank file
    ),
    # Messages of ranks name neither mpirun nor a daemon.
    EndPattern(EndCode.OTHER_FAILURE, r"\b(?:ORTE|PRTE)|\b(?:mpirun|prterun|orted|prted|daemon)\b"),
)
# A lost host. The exit code does not show it: Open MPI 5.0.11 ends with 0 when it has lost a daemon.
LOST_DAEMON = r"(?:ORTE|PRTE) has lost communication with a remote daemon\.$(?:.*\n){0,4}.*daemon: \S+ on node (\S+)"
LOST_SSH = (  # of a program that mpirun starts itself in place of ddlrun's relay
    r"(?:Connection to (\S+) closed by remote host|Connection (?:closed|reset) by (\S+) port"
    r"|[Cc]onnect to host (\S+) port \d+: .+)"
)
# A daemon that could not start: its host, and its exit code. 4.1 prints neither.
FAILED_DAEMON = (
    r"A daemon failed to report back after being spawned\.(?:.*\n){0,9}.*Remote host: +(\S+)\n.*status: (\d+)$"
)
# A session folder that mpirun or a daemon could not make.
UNWRITABLE = r"unable to create the desired directory:\s+Directory: +(.+)\s+Error: +(.+)"
CAUSES = "there was killed, the host went down, or the network failed"


def read_end(output: ManagerOutput) -> tuple[EndFinding, ...]:
    """Return the findings of mpirun about the end of its job, by its output."""
    if not output.text:  # the patterns take 2 ms to compile
        return ()
    return *_find_loss(output), *_find_failed_start(output), *find_patterns(output.text, PATTERNS)


def _find_loss(output: ManagerOutput) -> Iterator[EndFinding]:
    daemon, ssh = (re.search(rf"(?m)^(?:.*\s)?{pattern}", output.text) for pattern in (LOST_DAEMON, LOST_SSH))
    if daemon is not None:
        yield _lost_host(output, EndCode.LOST_DAEMON, daemon[1], "the connection to its daemon")
    elif ssh is not None:
        yield _lost_host(output, EndCode.LOST_HOST, ssh[1] or ssh[2] or ssh[3], "the ssh session to it")


def _lost_host(output: ManagerOutput, code: EndCode, address: str, what: str) -> EndFinding:
    host = find_name(address, output.host_names)
    return EndFinding(code, host, text=f"mpirun lost host {host}, {what}: something {CAUSES}")


def _find_failed_start(output: ManagerOutput) -> Iterator[EndFinding]:
    folder, daemon = re.search(UNWRITABLE, output.text), _search(FAILED_DAEMON, output.text)
    if folder is not None:
        # None is that of mpirun under Open MPI 5.
        host = re.search(r"(?m)^\[(\S+):\d+\] .*ORTE_ERROR_LOG", output.text[folder.end() :])
        place = f"{folder[1]} on {host[1] if host else os.uname().nodename}"
        text = f"Open MPI cannot make its folder {place}: {folder[2]}; name another place there: TMPDIR"
        yield EndFinding(EndCode.FAILED_START, text=text)
    if daemon is not None:
        host_name = find_name(daemon[1], output.host_names)
        text = f"mpirun's daemon on {host_name} ended with {daemon[2]} before it had reached mpirun"
        yield EndFinding(EndCode.FAILED_START, host_name, text=f"{text}; try: ddlrun check {host_name}")


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(rf"(?m)^{pattern}", text)
