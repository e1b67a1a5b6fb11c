"""How a run ended, on one screen: the root cause first."""

import re
import signal
from collections.abc import Iterator

from ddlrun.plan import Plan
from ddlrun.plan.outcome import Outcome, RankEnd

MOST_LINES = 20

IN_USE = r"(?i)Address already in use|EADDRINUSE"
# What a program or mpirun says -> what that means and what to do.
HINTS = (
    (r"No module named '?([\w.]+)", "Python on that host has no module {0}: install it there"),
    (
        r"(?:ImportError: |error while loading shared libraries: )(\S+): cannot open shared object file",
        "the library {0} is missing there: load its module or set LD_LIBRARY_PATH",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError",
        "the GPU's memory is full: take a smaller batch; nvidia-smi there shows who else holds some",
    ),
    (
        r"no CUDA-capable device|CUDA driver version is insufficient|No CUDA GPUs are available",
        "no usable GPU on that host: compare nvidia-smi there with ddlrun probe",
    ),
    (r"invalid device ordinal", "the script takes a GPU that this rank cannot see: see --visible-gpus"),
    (
        r"NCCL (?:WARN|error)|ncclSystemError|ncclUnhandledCudaError",
        "NCCL failed: run again with --env NCCL_DEBUG=INFO; --network names the network to use",
    ),
    (IN_USE, "another process on that host holds the port: ddlrun ps shows leftovers; unset a MASTER_PORT of yours"),
    (
        r"MemoryError|Cannot allocate memory",
        "it got no memory: the host has none left, or a limit (ulimit -v, a cgroup) was reached",
    ),
    (r"No space left on device", "a disk, or shared memory, is full there: ddlrun check shows both"),
    (
        r"unable to write to file </torch_|Bus error",
        "shared memory is too small on that host: in a container start it with --shm-size",
    ),
    (r"Too many open files", "raise the limit of open files there (ulimit -n)"),
    (
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|LOCAL_RANK) expected",
        "the script wants torchrun's variables, which --framework left out, or --env set: add torch to it",
    ),
    (r"Permission denied", "a file may not be read or run by this user there"),
)
CODE_HINTS = {
    126: "it may not be executed there: chmod +x, or name its interpreter before it",
    127: "it is not on PATH there (one in the working folder is ./NAME), or what its first line names is not there",
    128 + signal.SIGSEGV: "--env PYTHONFAULTHANDLER=1 shows the line of Python that it stood at",
    128 + signal.SIGKILL: "neither ddlrun nor the program did that: often the kernel or the batch system, for memory",
}
MPI_HINTS = (
    (r"MPI_ABORT was invoked on rank (\d+)[\s\S]*?[Ee]rror ?code:? (-?\d+)", "rank {0} called MPI_Abort with {1}"),
    (
        r"(?:ORTE|PRTE) (?:was unable to reliably start|has lost communication)",
        "mpirun could not start or keep its daemon on a host: ddlrun check HOSTS tells why",
    ),
    (r"Host key verification failed", "ssh does not know a host's key: log in once by hand, compare the fingerprint"),
    (r"Permission denied \((?:publickey|password)", "ssh to a host is refused: ssh-copy-id HOST"),
    (
        r"(?:orted|prted): (?:command not found|not found|No such file)",
        "Open MPI is not installed at the same path on that host",
    ),
    (r"buffer overflow detected", "a host name is too long for Open MPI 4.1's rank files"),
    (
        r"listener thread failed to start",
        "a session folder of an earlier mpirun is in the way: remove ompi.* and prte.* from the temporary folder",
    ),
)


def render_outcome(outcome: Outcome, plan: Plan) -> str:
    """Write why a run failed: the cause, its traceback or last lines, the others, where all logs are."""
    return "".join(f"ddlrun: {line}\n" for line in _lines(outcome, plan))


def _lines(outcome: Outcome, plan: Plan) -> Iterator[str]:
    root = outcome.root
    if root is not None:
        yield f"failed: {_who(root, plan)}: {in_words(root)}, after {root.seconds:.1f} s"
        if root.why:
            yield f"  because: {root.why}"
        shown = last_lines(root.tail)
        if shown:
            yield "  the last that it wrote to standard error:"
            yield from (f"    {line}" for line in shown)
    elif outcome.signal is not None and not outcome.reason:
        yield f"ended by {signal.Signals(outcome.signal).name} after {outcome.until_end:.1f} s"
    else:
        how = "ended" if outcome.wanted else "failed"
        yield f"{how} after {outcome.until_end:.1f} s: {outcome.reason or f'mpirun ended with {outcome.exit_code}'}"
    hint = _hint(outcome)
    if hint:
        yield f"  hint: {hint}"
    yield from _others(outcome)
    yield f"exit code {outcome.exit_code}; logs: {plan.run_dir.path}"


def _hint(outcome: Outcome) -> str | None:
    root = outcome.root
    if root is None:
        return None if outcome.reason else find_hint(outcome.mpirun_said, MPI_HINTS)
    if root.exit_code in (126, 127):
        return CODE_HINTS[root.exit_code]
    by_code = None if root.why or "Fatal Python error" in root.tail else CODE_HINTS.get(root.exit_code)
    return find_hint(root.tail, HINTS) or by_code


def _who(end: RankEnd, plan: Plan) -> str:
    seat = next((one.binding for one in plan.placement.by_host() if one.rank == end.rank), None)
    gpu = f", GPU {seat.gpu.number}" if seat is not None and seat.gpu is not None else ""
    return f"rank {end.rank} on {end.host} (local rank {end.local_rank}{gpu})"


def in_words(end: RankEnd) -> str:
    """Say how a rank ended: its exit code or signal."""
    if end.signal is not None:
        return f"killed by {signal.Signals(end.signal).name} ({signal.strsignal(end.signal)})"
    said = {126: " (the program cannot be executed)", 127: " (the program is not there)"}.get(end.exit_code, "")
    if end.exit_code == 1 and "Traceback (most recent call last)" in end.tail:
        said = " (an uncaught Python exception)"
    return f"exit code {end.exit_code}{said}"


def taken_port(outcome: Outcome, ports: range) -> int | None:
    """Return which of the planned ports the failed rank found in use, as it says itself; None: it did not."""
    tail = outcome.root.tail if outcome.root is not None else ""
    said = re.findall(r"(?<!\d)(\d{5})(?!\d)", tail) if re.search(IN_USE, tail) else []
    return next((int(word) for word in said if int(word) in ports), None)


def last_lines(tail: str) -> list[str]:
    """Return the last Python traceback whole, with what follows it, or the last lines."""
    lines = [line.rstrip("\r") for line in re.split(r"\r?\n", tail.strip("\n"))] if tail.strip() else []
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if starts:
        found = lines[starts[-1] :]
        return found if len(found) <= MOST_LINES else [*found[:3], "  ...", *found[4 - MOST_LINES :]]
    return lines[-MOST_LINES:]


def find_hint(text: str, hints: tuple[tuple[str, str], ...]) -> str | None:
    """Return what is known of such words; None: nothing."""
    for pattern, meaning in hints:
        match = re.search(pattern, text)
        if match:
            return meaning.format(*match.groups())
    return None


def _others(outcome: Outcome) -> Iterator[str]:
    others = [end for end in outcome.ends if end is not outcome.root]
    early = [end for end in others if end.exit_code == 0]
    later = [end for end in others if end.exit_code and not end.ordered]
    ended = [end for end in others if end.exit_code and end.ordered]
    if later:
        shown = ", ".join(f"rank {end.rank} on {end.host} ({in_words(end)})" for end in later[:4])
        yield f"  failed as well: {shown}{_more(len(later) - 4)}"
    if early:
        yield f"  ended with 0 before: {_ranks(early)}"
    if ended:
        yield f"  ended on ddlrun's order: {_ranks(ended)}"
    if outcome.lost:
        yield f"  lost: {', '.join(outcome.lost[:8])}{_more(len(outcome.lost) - 8)}"


def _ranks(ends: list[RankEnd]) -> str:
    from ddlrun.machine.cpus import cpu_list  # noqa: PLC0415 - for failures alone

    numbers = [end.rank for end in ends]
    return f"rank{'s' * (len(numbers) > 1)} {cpu_list(numbers)}"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
