"""The results that are allowed after random faults: exit codes and first lines."""

import re
import signal
from collections.abc import Iterator, Sequence

from tests.hosts.random_faults_scenario import (
    EARLY_MOMENTS,
    HARMLESS,
    NO_LINE,
    NUMBERS,
    REQUESTS,
    SILENT,
    STARTING_MOMENTS,
    Fault,
    Kind,
    Moment,
    Result,
    Scenario,
)

ANY_LINE = "^"
# Messages that may come before the report of a failure.
NOTES = (
    "note:|warning:|no more .* in|.*; no more output is stored|[0-9]+ bytes of output were not|.* and was resumed|"
    ".* did not end within|.* ended with 0; .* still run"
)
# MPI aborts the job from another rank, which is about to connect to one that has failed. mpirun then kills the keepers,
# which may not have passed on that rank's last output, nor its end.
ABORTED = Result(frozenset({14}), r"rank \d on h\d (aborted the job|.*exit code 14)")
OPEN_MPI_4 = 4
# Faults of ddlrun itself, which count even while it ends the job.
OF_DDLRUN = (Kind.KILL_DDLRUN, Kind.STOP_DDLRUN)
# After these the kernel has keepers or guards end their ranks before ddlrun knows. What follows counts, too.
UNNOTICED = (Kind.KILL_DAEMON, Kind.KILL_KEEPER)


def first_line(errors: str) -> str:
    """Return the first line by which ddlrun reports a problem; empty if there is none."""
    lines = (line for line in errors.splitlines() if line.startswith("ddlrun: "))
    texts = (line.removeprefix("ddlrun: ") for line in lines)
    return next((text for text in texts if not re.match(NOTES, text)), NO_LINE)


def allowed_results(scenario: Scenario, injected: Sequence[Fault]) -> list[Result]:
    """Return the results that are allowed after the faults that were injected."""
    results: list[Result] = []
    unnoticed = any(fault.kind in UNNOTICED for fault in injected)
    for fault in injected:
        if fault.moment is not Moment.ENDING or unnoticed or fault.kind in OF_DDLRUN:
            results += _results(fault, scenario)
    ends = any(fault.moment is Moment.END for fault in injected)
    # Nobody has noticed a silent fault yet when a rank fails by itself.
    harmless = HARMLESS | SILENT if ends and scenario.how != "0" else HARMLESS
    if all(fault.kind in harmless or fault.moment is Moment.END or _is_early_session(fault) for fault in injected):
        results.append(_own_result(scenario))
        if scenario.mpi and scenario.how != "0":
            results.append(ABORTED)
    if Kind.STOP_RANK in scenario.kinds:  # on a busy machine, the time limit may be over before the fault's moment
        results.append(Result(frozenset({124}), "the time limit of"))
    return results


def is_decisive(fault: Fault) -> bool:
    """Return True if a job cannot end by itself any more after a fault."""
    return fault.kind not in HARMLESS and fault.moment is not Moment.END and not _is_early_session(fault)


def _is_early_session(fault: Fault) -> bool:
    """Return True if sshd's sessions are killed when mpirun may not have asked for the host, which is linked again."""
    return fault.kind is Kind.KILL_SSHD and fault.moment is Moment.START


def _own_result(scenario: Scenario) -> Result:
    """Return the result of a job that ends by itself."""
    if scenario.how == "0":
        return Result(frozenset({0}), ANY_LINE if scenario.kinds else NO_LINE)
    rank, how = scenario.victim, scenario.how
    named = f"failed: rank {rank} on {scenario.hosts[rank]} "
    if how in NUMBERS:
        return Result(frozenset({128 + NUMBERS[how]}), f"{named}.*killed by {how}")
    code = 1 if how == "exception" else int(how)
    return Result(frozenset({code}), f"{named}.*exit code {code}")


def _results(fault: Fault, scenario: Scenario) -> Iterator[Result]:
    host = fault.host
    on_host = rf"rank {scenario.rank_on(host)} on {host}"
    gone = f"mpirun lost host {host}|{on_host} had to end|host {host} was lost"
    tables: dict[Kind, tuple[int, str]] = {
        Kind.KILL_RANK: (137, f"failed: {on_host} .*killed by SIGKILL"),
        Kind.KILL_KEEPER: (137, f"{on_host} was killed by another process"),
        Kind.KILL_DAEMON: (3, gone),
        Kind.KILL_MPIRUN: (137, "(mpirun|the process manager) was killed by SIGKILL"),
        Kind.KILL_DDLRUN: (-9, ANY_LINE),
        Kind.KILL_SSHD: (3, gone),
        Kind.STOP_RANK: (124, "the time limit of"),
        Kind.STOP_KEEPER: (3, f"no sign of life from [^:]*\\b{host}\\b.*reachable, but .* processes there do not run"),
        Kind.STOP_DDLRUN: (3, "no sign of life from ddlrun|ddlrun( itself)? did not run"),
        Kind.CUT: (
            3,
            f"no sign of life from [^:]*\\b{host}\\b.*down, or cut off from the network|mpirun lost host {host}",
        ),
    }
    if fault.kind in tables:
        code, pattern = tables[fault.kind]
        yield Result(frozenset({code}), pattern)
    if fault.kind in REQUESTS:
        number = signal.Signals[fault.kind.name]
        pattern = ANY_LINE if fault.moment in EARLY_MOMENTS else f"ended by {fault.kind.name}"
        yield Result(frozenset({128 + number, -number}), pattern)
        if fault.kind is Kind.SIGINT and fault.moment is Moment.END:  # Ctrl-C just after the job prints nothing
            yield Result(frozenset({128 + number}), NO_LINE)
    if fault.moment is Moment.CHECK and fault.kind is Kind.CUT:
        yield Result(frozenset({3, 5}), f"error: .*{host}")
    if fault.moment in STARTING_MOMENTS and fault.kind is Kind.STOP_DDLRUN:
        yield Result(frozenset({3}), "cannot reach ddlrun")
    if fault.kind is Kind.STOP_DAEMON and fault.moment is Moment.END and scenario.mpi and scenario.major == OPEN_MPI_4:
        # Its ranks wait for the daemon in MPI_Finalize, but only for seconds; mpirun then takes them for failed ones.
        yield Result(frozenset({1}), f"{on_host} exited with 0 while others were in MPI, without MPI_Finalize")
    if fault.kind is Kind.STOP_DAEMON and scenario.agent_stopped_at_start:
        yield Result(frozenset({3}), f"{on_host} did not start in")
    if fault.moment in STARTING_MOMENTS and fault.kind is Kind.CUT:
        late = f"ranks? .* did not start in .* on {host} has|rank {scenario.rank_on(host)} on {host} did not start in"
        yield Result(frozenset({3}), f"{late}|mpirun lost host {host}|host {host} was lost|{host}.*timed out")
