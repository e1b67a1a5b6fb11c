"""The end of a job as mpirun prints it, and its ssh clients."""

import os
import re
from collections.abc import Iterator
from signal import SIGKILL

from ddlrun.hosts import fold
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
    # The first process of those that exited with another code than 0.
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
LOST_SSH = (
    r"(?:Connection to (\S+) closed by remote host|Connection (?:closed|reset) by (\S+) port"
    r"|[Cc]onnect to host (\S+) port \d+: .+)"
)
# A broken connection of an ssh client, without its host.
BROKEN_SSH = r"(?:client_loop: |kex_exchange_identification: |ssh_dispatch_run_fatal: )"
# A daemon that could not start: its host, and its exit code. 4.1 prints neither.
FAILED_DAEMON = (
    r"A daemon failed to report back after being spawned\.(?:.*\n){0,9}.*Remote host: +(\S+)\n.*status: (\d+)$"
)
FAILED_DAEMON_4 = r"(?m)^ORTE was unable to reliably start one or more daemons\.$"
# A session folder that mpirun or a daemon could not make.
UNWRITABLE = r"unable to create the desired directory:\s+Directory: +(.+)\s+Error: +(.+)"
# The exit code of ssh when it fails itself, and when its command was ended by a signal.
SSH_FAILED = 255
CAUSES = "there was killed, the host went down, or the network failed"


def read_end(output: ManagerOutput) -> tuple[EndFinding, ...]:
    """Return the findings of mpirun about the end of its job, by its output and the end of an ssh client."""
    if not output.text:  # the patterns take 2 ms to compile
        return ()
    return *_find_loss(output), *_find_failed_start(output), *find_patterns(output.text, PATTERNS)


def _find_loss(output: ManagerOutput) -> Iterator[EndFinding]:
    daemon, ssh = (re.search(rf"(?m)^(?:.*\s)?{pattern}", output.text) for pattern in (LOST_DAEMON, LOST_SSH))
    if daemon is not None:
        yield _lost_host(output, daemon[1], "the connection to its daemon: something")
    elif ssh is not None:
        yield _lost_host(output, ssh[1] or ssh[2] or ssh[3], "the ssh session to it: something")
    else:
        yield from _find_ended_client(output)


def _lost_host(output: ManagerOutput, address: str, what: str) -> EndFinding:
    host = find_name(address, output.host_names)
    return EndFinding(EndCode.LOST_HOST, host, text=f"mpirun lost host {host}, {what} {CAUSES}")


def _find_ended_client(output: ManagerOutput) -> Iterator[EndFinding]:
    """Yield the ssh client whose end has ended mpirun.

    Open MPI 5 prints the client's exit code, 0 after a signal. That of 4.1 is the exit code of mpirun, which after a
    signal is its number; its host is that of the client that was seen to end.
    """
    daemon = _search(FAILED_DAEMON, output.text)
    if daemon is not None:
        host: str | None = daemon[1]
        signal, failed = ("a signal" if daemon[2] == "0" else None), int(daemon[2]) == SSH_FAILED
    elif re.search(FAILED_DAEMON_4, output.text):
        host = output.ended_client
        # ssh handles other signals, and ends with 255
        signal, failed = (SIGKILL.name if output.exit_code == SIGKILL else None), output.exit_code == SSH_FAILED
    else:
        return
    if host is None:
        if failed and _search(BROKEN_SSH, output.text):  # before any rank had started: the clients were not watched
            text = f"mpirun lost its ssh session to one of {fold(output.host_names)}: something {CAUSES}"
            yield EndFinding(EndCode.LOST_SESSION, text=text)
    elif failed:
        yield _lost_host(output, host, "the ssh session to it: its ssh client or something")
    elif signal is not None:
        text = f"mpirun lost its ssh session to {find_name(host, output.host_names)}"
        yield EndFinding(EndCode.LOST_SESSION, host, text=f"{text}: the ssh client was killed by {signal}")


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
