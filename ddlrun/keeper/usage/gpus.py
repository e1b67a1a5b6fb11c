"""The use of a host's GPUs, as a process prints it as long as the program runs: nvidia-smi, or a reader of AMD GPUs.

A driver that hangs stops that process, and not the keeper. A report has a line per GPU, with the cells of GPU_FIELDS
separated by commas. The first cell has the ranks that compute on the GPU; the others are those of nvidia-smi.
"""

from __future__ import annotations

import os
import time

from ddlrun.keeper.binding import parse_binding
from ddlrun.keeper.forks import HelperProcess, become, close_files
from ddlrun.keeper.host_position import RankPositions
from ddlrun.keeper.usage import amd_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # What a child does to print lines; it does not return.
    Sampler = Callable[[], object]

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
UUID = "GPU-"
# Linux writes four digits of a PCI domain, nvidia-smi eight.
ADDRESS_LENGTH = len("0000:17:00.0")


class GpuUsageReader:
    """A process that samples the GPUs, and the latest line of each GPU.

    When it has ended or hangs, there are no lines, and it is not started again.
    """

    def __init__(
        self, ranks: GpuRanks, interval: float, patience: float = PATIENCE, amd_driver: str = amd_gpus.DRIVER
    ) -> None:
        """Begin without lines; `take` starts nvidia-smi if it is installed, or the reader if there are AMD GPUs.

        Args:
            ranks: The ranks of the GPUs.
            interval: The seconds between two lines of a GPU, at least 1.
            patience: The seconds by which the next line may be late; after them the process counts as hanging.
            amd_driver: The folder of the driver of AMD GPUs.
        """
        self._ranks, self._patience = ranks, patience
        self._interval = max(interval, LEAST_INTERVAL)
        self._samplers: list[Sampler] = []
        if any(os.access(os.path.join(folder, PROGRAM), os.X_OK) for folder in os.get_exec_path()):
            self._name = PROGRAM
            self._samplers += [_nvidia_smi(reasons, self._interval) for reasons in REASONS]
        elif gpus := amd_gpus.list_gpus(amd_driver):
            self._name = "amdgpu"
            self._samplers.append(lambda: amd_gpus.print_samples(gpus, self._interval))
        self._lines: dict[str, str] = {}
        self._rest, self._last_text, self._problem = b"", "", ""
        self._process: HelperProcess | None = None
        self._heard_at = 0.0

    def take(self) -> str:
        """Return the latest lines; empty if there are no GPUs."""
        now = time.monotonic()
        if self._process is not None:
            self._read(self._process.fd, now)
        elif self._samplers:
            self._start(now)
        return "\n".join(self._lines.values()) if now <= self._heard_at + STALE_INTERVALS * self._interval else ""

    def take_problem(self) -> str:
        """Return the reason why there are no lines from now on, once; empty if there is none."""
        problem, self._problem = self._problem, ""
        return problem

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _start(self, now: float) -> None:
        """Start the next sampler: nvidia-smi ends at once at a field that it does not know."""
        self._heard_at = now
        try:
            sampler = self._samplers.pop(0)
            self._process = HelperProcess(lambda output: _run(sampler, output))
            os.set_blocking(self._process.fd, False)
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
        if self._lines or not self._samplers:
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
        """End the process; that is a problem if it has worked, or a rank has a GPU."""
        self.stop()
        if self._lines or self._ranks:
            self._problem = f"{self._name}: {reason[:LONGEST_REASON]}"
        self._lines.clear()
        self._samplers.clear()


def _nvidia_smi(reasons: str, interval: float) -> Sampler:
    options = [f"--query-gpu={','.join([*QUERY, reasons])}", "--format=csv,noheader,nounits"]
    return lambda: become([PROGRAM, *options, f"--loop-ms={interval * 1000:.0f}"], PROGRAM)


def _run(sampler: Sampler, output: int) -> None:
    """Print lines: the helper's part."""
    os.nice(NICENESS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    close_files(0, 1, 2)
    try:
        sampler()
    except Exception as error:  # noqa: BLE001 - this process has nobody else to tell
        os.write(1, f"{error}\n".encode())


class GpuRanks:
    """The ranks of a host, by the names that the plan or the user gave to their GPUs."""

    def __init__(self, environ: Mapping[str, str], rank: int, size: int) -> None:
        """Read the variables of a rank of the host; without a plan there are no ranks."""
        self._ranks: dict[str, list[int]] = {}
        chosen = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        for other, local_rank in _list_ranks(environ, rank, size):
            planned = parse_binding(environ, other, local_rank, size)
            visible = planned.gpus if planned is not None and planned.gpus else chosen
            if visible:
                self._ranks.setdefault(visible[local_rank % len(visible)], []).append(other)

    def __bool__(self) -> bool:
        """Return True if any rank has a GPU."""
        return bool(self._ranks)

    def find(self, index: str, uuid: str, address: str) -> list[int]:
        """Return the ranks of a GPU, by its index, UUID and PCI address as nvidia-smi prints them."""
        address = address[-ADDRESS_LENGTH:].lower()
        return sorted(
            rank
            for name, ranks in self._ranks.items()
            if name in (index, address) or (name.startswith(UUID) and uuid.startswith(name))  # CUDA takes beginnings
            for rank in ranks
        )


def _list_ranks(environ: Mapping[str, str], rank: int, size: int) -> list[tuple[int, int]]:
    """Return the ranks of a rank's host with their local ranks; none if the topology is unknown."""
    if min(rank, size) < 0 or "DDLRUN_TOPOLOGY" not in environ:
        return []
    places = RankPositions(environ).all()
    return [(other, local_rank) for other, (host, local_rank) in enumerate(places) if host == places[rank][0]]
