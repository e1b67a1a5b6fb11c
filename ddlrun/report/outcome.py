"""Report of a failed run on one screen: the root cause first."""

import errno
import os
import re
import signal
from collections.abc import Iterator

from ddlrun.plan import Plan
from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.plan.tracebacks import exception_line, find_failure, is_collateral, last_lines, without_numbers
from ddlrun.process_managers.openmpi import ABORT
from ddlrun.wording import printable, signal_name

# Lines on ranks that failed later, and the characters of an exception in them.
MOST_KINDS = 4
MOST_CHARACTERS = 200
# The colour of errors in Okabe and Ito's palette, which is not mistaken for green, and the nearest of eight colours.
VERMILION, RED = "1;38;5;166", "1;31"
TOO_LONG = os.strerror(errno.E2BIG)
IN_USE = r"(?i)Address already in use|EADDRINUSE"
# Modules whose package has another name on PyPI.
PACKAGES = {
    "attr": "attrs", "Bio": "biopython", "bs4": "beautifulsoup4", "Crypto": "pycryptodome", "cv2": "opencv-python",
    "dateutil": "python-dateutil", "docx": "python-docx", "dotenv": "python-dotenv", "faiss": "faiss-cpu",
    "fitz": "PyMuPDF", "git": "GitPython", "google.protobuf": "protobuf", "hydra": "hydra-core",
    "ignite": "pytorch-ignite", "jwt": "PyJWT", "PIL": "pillow", "pkg_resources": "'setuptools<81'",
    "psycopg2": "psycopg2-binary", "pynvml": "nvidia-ml-py", "pywt": "PyWavelets", "ruamel.yaml": "ruamel.yaml",
    "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn", "skopt": "scikit-optimize",
    "umap": "umap-learn", "yaml": "PyYAML", "zmq": "pyzmq",
}  # fmt: skip
# Patterns in the output of a program or of mpirun -> the likely cause and the remedy.
HINTS = (
    *(
        (
            rf"No module named '?{re.escape(module)}(?![\w.])",
            f"Python on that host has no {module}: pip install {package}",
        )
        for module, package in PACKAGES.items()
    ),
    (
        r"No module named '?((\w+)\.[\w.]+)",
        "{1} on that host has no module {0}: it is of another version, or not whole",
    ),
    (r"No module named '?(\w+)", "Python on that host has no module {0}: install it there"),
    (
        r"(?:ImportError: |error while loading shared libraries: )(\S+): cannot open shared object file",
        "the library {0} is missing there: load its module or set LD_LIBRARY_PATH",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError",
        "the GPU's memory is full: use a smaller batch; nvidia-smi there shows other users of it",
    ),
    (
        r"no CUDA-capable device|CUDA driver version is insufficient|No CUDA GPUs are available|Found no NVIDIA driver",
        "no usable GPU on that host: compare nvidia-smi there with ddlrun probe",
    ),
    (r"invalid device ordinal", "the script selects a GPU that this rank cannot see: see --visible-gpus"),
    (
        r"device-side assert triggered|CUDA error: an illegal memory access",
        "a CUDA kernel failed: run again with --env CUDA_LAUNCH_BLOCKING=1 to see the line that launched it",
    ),
    (
        r"Duplicate GPU detected",
        "NCCL does not allow two ranks on one GPU: start one rank per GPU, and call torch.cuda.set_device(LOCAL_RANK)",
    ),
    (
        r"NCCL (?:WARN|error)|ncclSystemError|ncclUnhandledCudaError",
        "NCCL failed: run again with --env NCCL_DEBUG=INFO; --network names the network to use",
    ),
    (IN_USE, "another process on that host holds the port: ddlrun ps shows leftovers; unset a MASTER_PORT of yours"),
    (
        r"MemoryError|Cannot allocate memory",
        "out of memory: the host has none left, or a limit (ulimit -v, a cgroup) was reached",
    ),
    (r"No space left on device", "a disk, or shared memory, is full there: ddlrun check shows both"),
    (
        r"unable to write to file </torch_|Bus error",
        "shared memory is too small on that host: start a container with --shm-size",
    ),
    (r"Too many open files", "raise the limit of open files there (ulimit -n)"),
    (r"File too large", "a file reached the limit of sizes there: raise it (ulimit -f)"),
    (
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|LOCAL_RANK) expected",
        "the script needs torchrun's variables, which --framework omits or --env overrides: add torch to --framework",
    ),
    (
        r"terminate called without an active exception|PyGILState_Release: |pt_gloo_runloop",
        "a C++ thread was ended by force; where it is PyTorch's gloo: del the model, then destroy_process_group()",
    ),
    (
        r"EOFError: EOF when reading a line",
        "its standard input is empty: --stdin-rank N passes yours on to rank N, and --pty gives a rank your terminal",
    ),
    (r"Unknown backend type ddl", "the script has to import ddlrun.ddl.torch first"),
    (
        r"Permission denied",
        "this user may not read, write or execute a file there; --fetch makes its files of --ship code writable",
    ),
)
LIMIT_HINTS = {
    128 + signal.SIGXCPU: "the limit of CPU time was reached there: raise it (ulimit -t)",
    128 + signal.SIGXFSZ: "a file reached the limit of sizes there: raise it (ulimit -f)",
}
CODE_HINTS = LIMIT_HINTS | {
    126: "the program is not executable there: chmod +x, or write its interpreter before it",
    127: "the program is not on PATH there (write ./NAME for the working folder), or its interpreter is missing",
    128 + signal.SIGSEGV: "--env PYTHONFAULTHANDLER=1 shows the line of Python at which it happened",
    128 + signal.SIGKILL: "killed by another process: often by the kernel or the batch system, for lack of memory",
}
MPI_HINTS = (
    (ABORT, "rank {0} called MPI_Abort with {1}"),
    (
        r"(?:ORTE|PRTE) (?:was unable to reliably start|has lost communication)",
        "mpirun could not start its daemon on a host, or lost it: ddlrun check HOSTS shows the reason",
    ),
    (
        r"Host key verification failed",
        "the key of a host is not in known_hosts: log in once with ssh and compare the fingerprint",
    ),
    (r"Permission denied \((?:publickey|password)", "ssh to a host is refused: ssh-copy-id HOST"),
    (
        r"(?:orted|prted): (?:command not found|not found|No such file)",
        "Open MPI is not installed at the same path on that host",
    ),
    (
        r"specified\s+a non-existent CPU",
        "the rank file names cores that a host does not have: correct or leave out --machine and --rankfile",
    ),
    (r"buffer overflow detected", "a host name is too long for Open MPI 4.1's rank files"),
    (
        r"listener thread failed to start",
        "a session folder of an earlier mpirun is in the way: remove ompi.* and prte.* from the temporary folder",
    ),
)


def render_outcome(outcome: Outcome, plan: Plan, *, with_tail: bool = True) -> str:
    """Render the reason of a failure: the cause, its traceback or last lines, the other ranks, the path of the logs.

    Of a success only the last line is rendered, and only if output was not printed.

    Args:
        outcome: The outcome.
        plan: The plan of the run.
        with_tail: Whether the traceback or the last lines are part of the text.
    """
    lines = [*_reason(outcome, plan, with_tail=with_tail)] if outcome.exit_code else []
    if outcome.exit_code or outcome.unprinted_bytes:
        lines.append(_last_line(outcome, plan))
    return "".join(f"ddlrun: {printable(line)}\n" for line in lines)


def colour_report(report: str, *, many_colours: bool) -> str:
    """Return a report whose first line, the failure, stands out on a terminal; its words say the same.

    Args:
        report: The report.
        many_colours: Whether the terminal has 256 colours.
    """
    first, newline, rest = report.partition("\n")
    return f"\x1b[{VERMILION if many_colours else RED}m{first}\x1b[0m{newline}{rest}"


def _reason(outcome: Outcome, plan: Plan, *, with_tail: bool) -> Iterator[str]:
    root = outcome.root
    if root is not None:
        how = "an uncaught exception" if root.ended_by_order else render_end(root)
        yield f"failed: {_describe(root, plan)}: {how}, after {root.seconds:.1f} s"
        if root.reason:
            yield f"  because: {root.reason}"
        lines = last_lines(root.tail)
        if lines and with_tail:
            yield "  last lines of its standard error:"
            yield from (f"    {line}".rstrip() for line in lines)
    elif outcome.signal is not None and not outcome.reason:
        yield f"ended by {signal_name(outcome.signal)} after {outcome.until_end:.1f} s"
    else:
        verb = "ended" if outcome.requested else "failed"
        reason = outcome.reason or f"{plan.mpirun.name} ended with {outcome.exit_code}"
        yield f"{verb} after {outcome.until_end:.1f} s: {reason}"
    hint = _hint(outcome)
    if hint:
        yield f"  hint: {hint}"
    yield from render_others(outcome)


def _last_line(outcome: Outcome, plan: Plan) -> str:
    count = outcome.unprinted_bytes
    unprinted = f"{count} bytes of output were not printed; " if count else ""
    folder = plan.run_dir.path
    name = "" if os.path.basename(folder) == plan.run_id else f"run {plan.run_id}; "
    return f"exit code {outcome.final_code}; {unprinted}{name}logs: {folder}"


def _hint(outcome: Outcome) -> str | None:
    root = outcome.root
    if root is None:
        by_output = None if outcome.reason else find_hint(outcome.mpirun_output, MPI_HINTS)
        return by_output or LIMIT_HINTS.get(outcome.exit_code)
    if TOO_LONG in root.tail:
        return "the arguments, or the environment, are too long for that host: put them into a file, or unset variables"
    if root.exit_code in (126, 127):
        return CODE_HINTS[root.exit_code]
    explained = root.reason or root.ordered or "Fatal Python error" in root.tail
    failure = find_failure(root.tail)
    text = root.tail if failure is None else "\n".join(failure.lines)
    return find_hint(text, HINTS) or (None if explained else CODE_HINTS.get(root.exit_code))


def _describe(end: RankEnd, plan: Plan) -> str:
    placed = next((placed.binding for placed in plan.placement.by_host() if placed.rank == end.rank), None)
    gpu = f", GPU {placed.gpu.number}" if placed is not None and placed.gpu is not None else ""
    return f"rank {end.rank} on {end.host} (local rank {end.local_rank}{gpu})"


def render_end(end: RankEnd) -> str:
    """Render the end of a rank: its exit code or signal."""
    if end.signal is not None:
        return f"killed by {signal_name(end.signal)} ({signal.strsignal(end.signal)})"
    meaning = {126: " (the program cannot be executed)", 127: " (the program does not exist)"}.get(end.exit_code, "")
    if end.exit_code == 1 and "Traceback (most recent call last)" in end.tail:
        meaning = " (an uncaught Python exception)"
    return f"exit code {end.exit_code}{meaning}"


def find_port_in_use(outcome: Outcome, ports: range) -> int | None:
    """Return the planned port that the failed rank reported as in use; None if it reported none."""
    tail = outcome.root.tail if outcome.root is not None else ""
    numbers = re.findall(r"(?<!\d)(\d{5})(?!\d)", tail) if re.search(IN_USE, tail) else []
    return next((int(number) for number in numbers if int(number) in ports), None)


def find_hint(text: str, hints: tuple[tuple[str, str], ...]) -> str | None:
    """Return the hint of the first pattern that matches; None if none does."""
    for pattern, hint in hints:
        match = re.search(pattern, text)
        if match:
            return hint.format(*match.groups())
    return None


def render_others(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each way in which ranks other than the root have ended."""
    others = [end for end in outcome.ends if end is not outcome.root]
    early = [end for end in others if end.exit_code == 0 and not end.ordered]
    later = [end for end in others if end.exit_code and (not end.ordered or _lost_another(end))]
    ended = [end for end in others if end.ordered and end not in later]
    yield from _later_failures(later, outcome.root)
    if early:
        yield f"  ended with exit code 0 before: {_ranks(early)}"
    if ended:
        yield f"  ended by ddlrun: {_ranks(ended)}"
    if outcome.lost_ranks:
        yield f"  lost: {', '.join(outcome.lost_ranks[:8])}{_more(len(outcome.lost_ranks) - 8)}"


def _lost_another(end: RankEnd) -> bool:
    return not end.ended_by_order and is_collateral(end.exit_code, end.tail)


def _later_failures(ends: list[RankEnd], root: RankEnd | None) -> Iterator[str]:
    """Yield a line for each kind of failure: ranks that only lost the root's connection, and others."""
    kinds: dict[tuple[bool, int, str], list[RankEnd]] = {}
    for end in ends:
        lost_root = root is not None and is_collateral(end.exit_code, end.tail)
        kinds.setdefault((lost_root, end.exit_code, without_numbers(exception_line(end.tail))), []).append(end)
    for (lost_root, _, _), equal in list(kinds.items())[:MOST_KINDS]:
        verb = f"lost their connection to rank {root.rank}" if root is not None and lost_root else "also failed"
        host = f" on {equal[0].host}" if len(equal) == 1 else ""
        yield f"  {verb}: {_ranks(equal)}{host} ({_failure(equal[0])})"
    remaining = [end for equal in list(kinds.values())[MOST_KINDS:] for end in equal]
    if remaining:
        yield f"  also failed: {_ranks(remaining)}"


def _failure(end: RankEnd) -> str:
    """Return the end of a rank in words, with its exception, of which the log has the traceback."""
    exception = exception_line(end.tail)
    return f"{exception[:MOST_CHARACTERS]}, exit code {end.exit_code}" if exception else render_end(end)


def _ranks(ends: list[RankEnd]) -> str:
    from ddlrun.machine.cpus import cpu_list  # noqa: PLC0415 - for failures alone

    return f"{'rank' if len(ends) == 1 else 'ranks'} {cpu_list([end.rank for end in ends])}"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
