"""The binding of a rank: CPUs, GPUs, NICs and threads, set up as planned and compared with the host."""

from __future__ import annotations

import os

from ddlrun.keeper.host_position import RankPositions
from ddlrun.keeper.proc_files import find_line
from ddlrun.ranges import parse_ranges, render_ranges

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBLE_GPUS = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}
CHOSEN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# set_mempolicy(2): its modes, and its number per architecture; the C library has no function for it.
_MODES = {"bind": 2, "interleave": 3}
_SYSCALLS = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "s390x": 270, "riscv64": 237}
_WORD = 64
EINVAL = 22


def bind_rank(rank: int, local_rank: int, size: int) -> tuple[str, list[str]]:
    """Set the affinity and the environment of this rank as planned.

    Returns:
        A report, `rank, host, CPUs, planned CPUs, GPUs, problems` separated by tabs, empty if nothing is
        planned; and the differences from the plan.
    """
    planned = parse_binding(os.environ, rank, local_rank, size)
    if planned is None:
        return "", []
    host = os.uname().nodename
    results = (
        _check_place(rank, local_rank),
        _bind_cpus(planned),
        _select_gpus(planned),
        set_memory_policy(planned.memory),
        _check_threads(planned),
    )
    problems = [problem for problem in results if problem]
    os.environ.update(binding_values(os.environ, planned, host=host, rank=rank, size=size))
    gpus = os.environ.get(VISIBLE_GPUS.get(planned.vendor, ""), "") if planned.gpus else ""
    problems = [f"rank {rank} on {host}: {problem}" for problem in problems]
    cpus = render_ranges(os.sched_getaffinity(0))
    return "\t".join([str(rank), host, cpus, render_ranges(planned.cpus), gpus, " ".join(problems)]), problems


class RankBinding:
    """The plan for one rank."""

    def __init__(self, text: str, host_nics: list[str]) -> None:
        """Parse one rank's part of DDLRUN_SEATS (see environment/exports.py).

        Args:
            text: THREADS@CPUS@VENDOR=GPU,GPU...@NIC,NIC..., and @POLICY=NODE,NODE... if memory is bound
            host_nics: The NICs of all ranks of the host.
        """
        threads, cpus, gpus, nics, *memory = text.split("@")
        self.threads = int(threads)
        self.cpus = parse_ranges(cpus)
        """Empty if unknown."""
        self.vendor, _, addresses = gpus.partition("=")
        self.gpus = [address for address in addresses.split(",") if address]
        """The indices or PCI addresses of the rank's visible GPUs."""
        self.nics = [nic for nic in nics.split(",") if nic]
        """The RDMA devices near the rank."""
        self.memory = "".join(memory)
        """The memory policy and its NUMA nodes; empty if the rank has the kernel's."""
        self.host_nics = host_nics


def parse_binding(environ: Mapping[str, str], rank: int, local_rank: int, size: int) -> RankBinding | None:
    """Return a rank's binding from DDLRUN_SEATS, or None if the variable does not hold one."""
    texts = _words_of_host("DDLRUN_SEATS", environ, rank, size) if local_rank >= 0 else []
    if not texts:
        return None
    nics = {nic for text in texts for nic in text.split("@")[3].split(",") if nic}
    planned = RankBinding(texts[local_rank], sorted(nics))
    if planned.vendor == "nvidia" and planned.gpus:
        planned.gpus = _own_mig_device(planned.gpus, local_rank, environ)
    return planned


def _own_mig_device(gpus: list[str], local_rank: int, environ: Mapping[str, str]) -> list[str]:
    """Return the rank's MIG device where the user chose such devices, by its number; CUDA would show only the first."""
    words = [word.strip() for name in CHOSEN for word in environ.get(name, "").split(",") if word.strip()]
    own = gpus[local_rank % len(gpus)]
    if not own.isdigit() or not any(word.startswith("MIG-") for word in words):
        return gpus
    return [words[int(own)] if int(own) < len(words) else words[0]]  # the rank's own alone once it is set


def binding_values(
    environ: Mapping[str, str], planned: RankBinding, *, host: str, rank: int, size: int
) -> dict[str, str]:
    """Return a rank's variables for threads, NICs and cores; threads and NICs only where the user set none.

    NCCL chooses among the NICs of all ranks of the host by itself, and all ranks must see the same. Gloo takes one
    interface, where names differ by host.
    """
    values = {"OMP_NUM_THREADS": str(planned.threads)}
    if planned.nics:
        values["NCCL_IB_HCA"] = "=" + ",".join(planned.host_nics)
        values["UCX_NET_DEVICES"] = ",".join(f"{nic}:1" for nic in planned.nics)
    for word in environ.get("DDLRUN_IFNAMES", "").split():
        name, _, interfaces = word.partition("=")
        if interfaces and host in (name, name.partition(".")[0]):
            values.setdefault("GLOO_SOCKET_IFNAME", interfaces.split(",")[0])
    values = {name: value for name, value in values.items() if name not in environ}
    if spares := _words_of_host("DDLRUN_SPARES", environ, rank, size):
        values["DDLRUN_SPARE_CPUS"] = ";".join(spares)
    return values


def _words_of_host(name: str, environ: Mapping[str, str], rank: int, size: int) -> list[str]:
    """Return the words for a rank's host from a variable `HOSTS*WORD;WORD.../...`, none if it is not set."""
    value = environ.get(name)
    if not value or min(rank, size) < 0:
        return []
    host, _ = RankPositions(environ).find(rank)
    for count, _, words in (run.partition("*") for run in value.split("/")):
        host -= int(count)
        if host < 0:
            return words.split(";")
    return []


def _check_place(rank: int, local_rank: int) -> str | None:
    """Return the difference from the plan where the process manager has distributed the ranks over hosts otherwise."""
    _, planned = RankPositions(os.environ).find(rank)
    if local_rank == planned:
        return None
    return f"is local rank {local_rank}, planned {planned}; the rank file was not followed"


def _bind_cpus(planned: RankBinding) -> str | None:
    """Narrow the affinity where the plan asks for that; return the difference from the plan and its likely cause."""
    granted = os.sched_getaffinity(0)
    if "DDLRUN_NARROW" in os.environ and planned.cpus and planned.cpus <= granted:
        os.sched_setaffinity(0, planned.cpus)
        granted = os.sched_getaffinity(0)
    if not planned.cpus or granted == planned.cpus:
        return None
    if granted < planned.cpus:
        cause = "a cgroup or taskset on that host leaves it fewer"
    elif len(granted) >= (os.cpu_count() or 0):
        cause = "nothing binds it: --bind-to none, or an MCA setting of the site's"
    else:
        cause = "the host changed since it was probed, or an MCA setting binds otherwise"
    return f"bound to CPUs {render_ranges(granted)}, planned {render_ranges(planned.cpus)}; {cause}"


def _check_threads(planned: RankBinding) -> str | None:
    """Return the difference from the plan where this host's own environment has another number of threads."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    if not value or value.split(",")[0].strip() == str(planned.threads):
        return None
    return f"OMP_NUM_THREADS={value} in its environment, planned {planned.threads}"


def _select_gpus(planned: RankBinding) -> str | None:
    """Set the variable that selects the rank's visible GPUs; return the problem with them, if there is one."""
    if not planned.gpus:
        return None
    names = [_read_uuid(planned.vendor, gpu) if gpu.count(":") == 2 else gpu for gpu in planned.gpus]
    missing = [planned.gpus[index] for index, name in enumerate(names) if name is None]
    if missing:
        return f"GPU {','.join(missing)} of the plan is not there, or has no driver"
    if any(gpu.isdigit() for gpu in planned.gpus):
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if planned.vendor == "amd":  # these would count within ROCR_VISIBLE_DEVICES
        for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
            os.environ.pop(name, None)
    variable = VISIBLE_GPUS.get(planned.vendor, "ZE_AFFINITY_MASK")
    os.environ[variable] = ",".join(name for name in names if name)
    return None


def _read_uuid(vendor: str, address: str) -> str | None:
    """Return a GPU's UUID from the driver of this host, or None if it has no such GPU."""
    if vendor == "nvidia":
        return find_line(f"/proc/driver/nvidia/gpus/{address}/information", "GPU UUID:") or None
    number = find_line(f"/sys/bus/pci/devices/{address}/unique_id", "") if vendor == "amd" else ""
    return f"GPU-{number}" if number else None


def set_memory_policy(text: str) -> str | None:
    """Apply a policy such as `bind=0,1`, which programs started later inherit; return the problem, if there is one."""
    if not text:
        return None
    mode, _, nodes = text.partition("=")
    machine = os.uname().machine
    if machine not in _SYSCALLS:
        return f"its memory policy {text} cannot be set: unknown architecture {machine}"
    error = _set_mempolicy(_SYSCALLS[machine], _MODES[mode], [int(node) for node in nodes.split(",")])
    missing = "a node is missing on that host, or a cpuset forbids it"
    cause = missing if error == EINVAL else "a container needs the capability SYS_NICE for that"
    return f"its memory policy {text} cannot be set: {os.strerror(error)}; {cause}" if error else None


def _set_mempolicy(syscall: int, mode: int, nodes: list[int]) -> int:
    """Call set_mempolicy; return the error number, 0 if there was none."""
    import ctypes  # noqa: PLC0415 - 3 ms, only with --membind

    words = max(nodes) // _WORD + 1
    mask = sum(1 << node for node in nodes).to_bytes(words * _WORD // 8, "little")
    library = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is given as the number of bits.
    arguments = (ctypes.c_long(syscall), ctypes.c_int(mode), mask, ctypes.c_ulong(words * _WORD + 1))
    return ctypes.get_errno() if library.syscall(*arguments) else 0
