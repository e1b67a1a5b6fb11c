"""What mpirun starts on each host: sets up one rank, then becomes the user's program.

Runs with nothing but the standard library, on hosts where ddlrun may not be installed as a package.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Mapping


PREFLIGHT = 5  # the exit code of errors.PreflightError


def main() -> None:
    """Set up this rank and become the program in sys.argv[1:]; exit 127 or 126 where that cannot start."""
    _end_with(os.getppid())
    program = sys.argv[1:]
    rank = _number("OMPI_COMM_WORLD_RANK")
    local_rank = _number("OMPI_COMM_WORLD_LOCAL_RANK")
    size = _number("OMPI_COMM_WORLD_SIZE")
    # Open MPI 4 puts the folder of its mpirun before the user's.
    os.environ["PATH"] = os.environ.pop("DDLRUN_PATH", os.environ.get("PATH", os.defpath))
    if rank == 0 and "DDLRUN_STDIN" in os.environ:
        _read_from(os.environ["DDLRUN_STDIN"])
    planned = seat(os.environ, rank, local_rank, size)
    if planned is not None:
        where = f"rank {rank} on {os.uname().nodename}"
        problems = [_bind(planned), _show_gpus(planned)]
        _point_to_nics(planned)
        os.environ.setdefault("OMP_NUM_THREADS", str(planned.threads))
        _read_back(rank, planned, [f"{where}: {problem}" for problem in problems if problem])
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is the point
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        _say(f"rank {rank} on {os.uname().nodename}: cannot start {program[0]!r}: {error.strerror}")
        os._exit(127 if missing else 126)


def _end_with(parent: int) -> None:
    """Let the kernel kill this rank when mpirun or its daemon here is gone, however that ended (prctl(2))."""
    import ctypes  # noqa: PLC0415 - 3 ms

    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
    if prctl is not None:
        prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL; it outlasts exec
        if os.getppid() != parent:  # it was gone before
            os._exit(1)


class Seat:
    """What the plan gives a rank: threads, CPUs (empty: not known), the GPUs to be seen, near RDMA devices."""

    def __init__(self, text: str, host_nics: list[str]) -> None:
        """Read one seat of DDLRUN_SEATS (see environment.py)."""
        threads, cpus, gpus, nics = text.split("@")
        self.threads = int(threads)
        self.cpus = _cpu_set(cpus)
        self.vendor, _, addresses = gpus.partition("=")
        self.gpus = [word for word in addresses.split(",") if word]
        self.nics = [word for word in nics.split(",") if word]
        self.host_nics = host_nics


def seat(environ: Mapping[str, str], rank: int, local_rank: int, size: int) -> Seat | None:
    """Return a rank's seat from DDLRUN_SEATS (see environment.py); None where it says nothing."""
    seats = environ.get("DDLRUN_SEATS")
    if not seats or min(rank, local_rank, size) < 0:
        return None
    runs = [run.partition("*") for run in seats.split("/")]
    per_host = runs[0][2].count(";") + 1
    hosts = size // per_host
    contiguous = environ["DDLRUN_RANK_ORDER"] == "host"
    host = rank // per_host if contiguous else _ddl_host(rank % hosts, environ["DDLRUN_TOPOLOGY"])
    for count, _, text in runs:
        host -= int(count)
        if host < 0:
            texts = text.split(";")
            nics = {nic for one in texts for nic in one.split("@")[3].split(",") if nic}
            return Seat(texts[local_rank], sorted(nics))
    return None


def _bind(planned: Seat) -> str | None:
    """Compare the affinity with the plan; say what differs and why that may be."""
    granted = os.sched_getaffinity(0)
    if "DDLRUN_NARROW" in os.environ and planned.cpus and planned.cpus <= granted:
        os.sched_setaffinity(0, planned.cpus)
        granted = os.sched_getaffinity(0)
    if not planned.cpus or granted == planned.cpus:
        return None
    if granted < planned.cpus:
        why = "a cgroup or taskset on that host leaves it fewer"
    elif len(granted) >= (os.cpu_count() or 0):
        why = "nothing binds it: --bind-to none, or an MCA setting of the site's"
    else:
        why = "the host changed since it was probed, or an MCA setting binds otherwise"
    return f"bound to CPUs {_shown(granted)}, planned {_shown(planned.cpus)}; {why}"


def _show_gpus(planned: Seat) -> str | None:
    """Set the variable that says which GPUs the rank sees; return what is wrong with them."""
    if not planned.gpus:
        return None
    words = [word if word.isdigit() else _uuid(planned.vendor, word) for word in planned.gpus]
    lost = [address for address, word in zip(planned.gpus, words, strict=True) if word is None]
    if lost:
        return f"GPU {','.join(lost)} of the plan is not there, or has no driver"
    if any(word.isdigit() for word in planned.gpus):
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    name = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}.get(planned.vendor, "ZE_AFFINITY_MASK")
    if planned.vendor == "amd":  # they would count in what ROCR_VISIBLE_DEVICES leaves
        os.environ.pop("HIP_VISIBLE_DEVICES", None)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ[name] = ",".join(word for word in words if word)
    return None


def _uuid(vendor: str, address: str) -> str | None:
    """Return a GPU's UUID, as the driver on this host tells it."""
    if vendor == "nvidia":
        for line in _lines(f"/proc/driver/nvidia/gpus/{address}/information"):
            key, _, value = line.partition(":")
            if key == "GPU UUID":
                return value.strip()
    if vendor == "amd":
        for line in _lines(f"/sys/bus/pci/devices/{address}/unique_id"):
            return f"GPU-{line.strip()}"
    return None


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readlines()
    except OSError:
        return []


def _point_to_nics(planned: Seat) -> None:
    """Point UCX to the near RDMA devices and NCCL to those near to any rank here, unless the user did."""
    if planned.nics:
        # NCCL chooses among them by itself, and all ranks of a host must see the same.
        os.environ.setdefault("NCCL_IB_HCA", "=" + ",".join(planned.host_nics))
        os.environ.setdefault("UCX_NET_DEVICES", ",".join(f"{nic}:1" for nic in planned.nics))


def _read_back(rank: int, planned: Seat, problems: list[str]) -> None:
    """Tell ddlrun what this rank was given, and everyone what is not as planned; --strict-binding ends it there."""
    if os.environ.get("DDLRUN_READ_BACK") == "1":
        name = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}.get(planned.vendor, "")
        gpus = os.environ.get(name, "") if planned.gpus else ""
        cpus = _shown(os.sched_getaffinity(0))
        fields = [str(rank), os.uname().nodename, cpus, _shown(planned.cpus), gpus, " ".join(problems)]
        sys.stderr.write("\x1eddlrun\t" + "\t".join(fields) + "\x1e\n")
    for problem in problems:
        _say(problem)
    if problems and "DDLRUN_STRICT_BINDING" in os.environ:
        os._exit(PREFLIGHT)


def _read_from(source: str) -> None:
    """Make `PATH@OFFSET` the standard input: Open MPI 5's mpirun never passes on that its own has ended."""
    path, _, offset = source.partition("@")
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        file = os.open(os.devnull, os.O_RDONLY)
    if offset:
        os.lseek(file, int(offset), os.SEEK_SET)
    os.dup2(file, 0)


def _ddl_host(number: int, topology: str) -> int:
    """Turn (y*Z + z)*A + a, the rank's remainder in ddl order, into the host index (a*Z + z)*Y + y."""
    sizes = [int(size) for size in topology.split("x")][1:]
    coords = []
    for axis_size in reversed(sizes):
        number, at = divmod(number, axis_size)
        coords.append((axis_size, at))
    host = 0
    for axis_size, at in coords:
        host = host * axis_size + at
    return host


def _cpu_set(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return cpus


def _shown(cpus: set[int]) -> str:
    """Write CPUs as the kernel does (machine/cpus.py has the same, but may not be on this host)."""
    text = ""
    for cpu in sorted(cpus):
        if cpu - 1 not in cpus:
            text += f",{cpu}"
        elif cpu + 1 not in cpus:
            text += f"-{cpu}"
    return text[1:]


def _number(name: str) -> int:
    return int(os.environ.get(name, "-1"))


def _say(text: str) -> None:
    sys.stderr.write(f"ddlrun: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
