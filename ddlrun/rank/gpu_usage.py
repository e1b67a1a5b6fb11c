"""The use of a host's NVIDIA GPUs, as one nvidia-smi prints it as long as the program runs.

A report has a line per GPU, with the cells of GPU_FIELDS separated by commas. After the first, which has the ranks
that compute on the GPU, these are nvidia-smi's own.
"""

from __future__ import annotations

import os
import time

from ddlrun.rank.bare_signal import signal
from ddlrun.rank.execution import become
from ddlrun.rank.open_files import close_files
from ddlrun.rank.prctl import PR_SET_PDEATHSIG, load_prctl
from ddlrun.rank.signals import restore_defaults

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.rank.gpu_ranks import GpuRanks

PROGRAM = "nvidia-smi"
QUERY = (
    "index", "uuid", "pci.bus_id", "utilization.gpu", "memory.used", "memory.total", "power.draw", "power.limit",
    "temperature.gpu", "clocks.sm", "clocks.max.sm",
)  # fmt: skip
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active", "pstate")
"""The last field of the query: its name in new drivers, in older ones, and one that all of them have instead."""
GPU_FIELDS = ("ranks", *QUERY, "reasons")

LEAST_INTERVAL = 1.0
NICENESS = 19
CHUNK = 1 << 16
MOST_GPUS = 64
LONGEST_LINE = 400
LONGEST_REASON = 160
# A line is reported for so many intervals.
STALE_INTERVALS = 5
PATIENCE = 30.0


class GpuUsageReader:
    """A running nvidia-smi, and the latest line of each GPU.

    When it has ended or hangs, there are no lines, and it is not started again.
    """

    def __init__(self, ranks: GpuRanks, interval: float, patience: float = PATIENCE) -> None:
        """Begin without lines; `take` starts nvidia-smi if it is installed.

        Args:
            ranks: The ranks of the GPUs.
            interval: The seconds between two lines of a GPU, at least 1.
            patience: The seconds by which the next line may be late; after them nvidia-smi counts as hanging.
        """
        self._ranks, self._patience = ranks, patience
        self._interval = max(interval, LEAST_INTERVAL)
        self._queries = list(REASONS) if _is_installed() else []
        self._lines: dict[str, str] = {}
        self._rest, self._last_text, self._problem = b"", "", ""
        self._process: tuple[int, int] | None = None
        self._heard_at = 0.0

    def take(self) -> str:
        """Return the latest lines; empty if there are no GPUs."""
        now = time.monotonic()
        if self._process is not None:
            self._read(self._process[1], now)
        elif self._queries:
            self._start(now)
        return "\n".join(self._lines.values()) if now <= self._heard_at + STALE_INTERVALS * self._interval else ""

    def take_problem(self) -> str:
        """Return the reason why there are no lines from now on, once; empty if there is none."""
        problem, self._problem = self._problem, ""
        return problem

    def stop(self) -> None:
        """End nvidia-smi."""
        if self._process is None:
            return
        pid, fd = self._process
        self._process = None
        os.close(fd)
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:  # it has ended
            return

    def _start(self, now: float) -> None:
        """Start nvidia-smi with the next query: it ends at once at a field that it does not know."""
        self._heard_at = now
        query = ",".join([*QUERY, self._queries.pop(0)])
        options = [f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--loop-ms={self._interval * 1000:.0f}"]
        try:
            self._process = _start([PROGRAM, *options])
        except OSError as error:
            self._give_up(os.strerror(error.errno or 0))

    def _read(self, fd: int, now: float) -> None:
        try:
            while chunk := os.read(fd, CHUNK):
                *lines, self._rest = (self._rest[-LONGEST_LINE:] + chunk).split(b"\n")
                for line in lines:
                    self._add(line.decode(errors="replace").strip(), now)
        except BlockingIOError:
            if now > self._heard_at + self._interval + self._patience:
                self._give_up(f"no output for {now - self._heard_at:.0f} s")
            return
        self.stop()
        if self._lines or not self._queries:
            self._give_up(self._last_text or "it ended")

    def _add(self, line: str, now: float) -> None:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(QUERY) + 1 or not cells[0].isdigit() or len(line) > LONGEST_LINE:
            self._last_text = line or self._last_text
        elif len(self._lines) < MOST_GPUS or cells[0] in self._lines:
            ranks = " ".join(map(str, self._ranks.find(*cells[:3])))
            self._lines[cells[0]] = ", ".join([ranks, *cells])
            self._heard_at = now

    def _give_up(self, reason: str) -> None:
        """End nvidia-smi; that is a problem if it has worked, or a rank has a GPU."""
        self.stop()
        if self._lines or self._ranks:
            self._problem = f"{PROGRAM}: {reason[:LONGEST_REASON]}"
        self._lines.clear()
        self._queries.clear()


def _is_installed() -> bool:
    return any(os.access(os.path.join(folder, PROGRAM), os.X_OK) for folder in os.get_exec_path())


def _start(argv: list[str]) -> tuple[int, int]:
    """Start a program that ends with this process; return its process id, and a pipe with its output."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    keeper = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        _run(argv, keeper, writing)
    os.close(writing)
    try:
        os.setpgid(pid, pid)  # as the child does: the first of them is the one that counts
    except OSError:
        return pid, reading
    return pid, reading


def _run(argv: list[str], keeper: int, output: int) -> None:
    """Become the program: the child's part."""
    try:
        os.setpgid(0, 0)
        load_prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
        restore_defaults()
        os.nice(NICENESS)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        close_files(0, 1, 2)
        if os.getppid() == keeper:
            become(argv, PROGRAM)
    finally:
        os._exit(1)
