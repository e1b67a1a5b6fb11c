"""What the plan gives one rank: cores, GPUs, NICs and threads are set up and compared with what is there."""

from __future__ import annotations

import os

from ddlrun.rank.processes import lines_of

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Mapping


def settle(rank: int, local_rank: int, size: int) -> tuple[str, list[str]]:
    """Set up affinity and environment of this rank; return what it was given and what is not as planned.

    The first is empty where nothing is planned, otherwise `rank, host, CPUs, planned CPUs, GPUs, problems`,
    parted by tabs.
    """
    planned = seat(os.environ, rank, local_rank, size)
    if planned is None:
        return "", []
    host = os.uname().nodename
    problems = [problem for problem in (_bind(planned), _show_gpus(planned)) if problem]
    if spares := _of_host("DDLRUN_SPARES", os.environ, rank, size):
        os.environ["DDLRUN_SPARE_CPUS"] = ";".join(spares)
    _point_to_nics(planned)
    _name_interface(host)
    os.environ.setdefault("OMP_NUM_THREADS", str(planned.threads))
    name = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}.get(planned.vendor, "")
    gpus = os.environ.get(name, "") if planned.gpus else ""
    problems = [f"rank {rank} on {host}: {problem}" for problem in problems]
    cpus = _shown(os.sched_getaffinity(0))
    return "\t".join([str(rank), host, cpus, _shown(planned.cpus), gpus, " ".join(problems)]), problems


class RankBinding:
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


def seat(environ: Mapping[str, str], rank: int, local_rank: int, size: int) -> RankBinding | None:
    """Return a rank's seat from DDLRUN_SEATS (see environment.py); None where it says nothing."""
    texts = _of_host("DDLRUN_SEATS", environ, rank, size) if local_rank >= 0 else []
    if not texts:
        return None
    nics = {nic for one in texts for nic in one.split("@")[3].split(",") if nic}
    return RankBinding(texts[local_rank], sorted(nics))


def _of_host(name: str, environ: Mapping[str, str], rank: int, size: int) -> list[str]:
    """Return the words for a rank's host from a variable `HOSTS*WORD;WORD.../...`; none where it says nothing."""
    said = environ.get(name)
    if not said or min(rank, size) < 0:
        return []
    host, _ = host_and_local(rank, size, environ["DDLRUN_TOPOLOGY"], environ["DDLRUN_RANK_ORDER"])
    for count, _, words in (run.partition("*") for run in said.split("/")):
        host -= int(count)
        if host < 0:
            return words.split(";")
    return []


def _bind(planned: RankBinding) -> str | None:
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


def _show_gpus(planned: RankBinding) -> str | None:
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


def _name_interface(host: str) -> None:
    """Tell Gloo, which takes one name, this host's interface of the job's network, where names differ by host."""
    for word in os.environ.get("DDLRUN_IFNAMES", "").split():
        name, _, interfaces = word.partition("=")
        if interfaces and host in (name, name.partition(".")[0]):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interfaces.split(",")[0])


def _uuid(vendor: str, address: str) -> str | None:
    """Return a GPU's UUID, as the driver on this host tells it."""
    if vendor == "nvidia":
        for line in lines_of(f"/proc/driver/nvidia/gpus/{address}/information"):
            key, _, value = line.partition(":")
            if key == "GPU UUID":
                return value.strip()
    if vendor == "amd":
        for line in lines_of(f"/sys/bus/pci/devices/{address}/unique_id"):
            return f"GPU-{line.strip()}"
    return None


def _point_to_nics(planned: RankBinding) -> None:
    """Point UCX to the near RDMA devices and NCCL to those near to any rank here, unless the user did."""
    if planned.nics:
        # NCCL chooses among them by itself, and all ranks of a host must see the same.
        os.environ.setdefault("NCCL_IB_HCA", "=" + ",".join(planned.host_nics))
        os.environ.setdefault("UCX_NET_DEVICES", ",".join(f"{nic}:1" for nic in planned.nics))


def host_and_local(rank: int, size: int, topology: str, order: str) -> tuple[int, int]:
    """Return the index of a rank's host, and its local rank there."""
    per_host = int(topology.partition("x")[0])
    if order == "host":
        return rank // per_host, rank % per_host
    hosts = size // per_host
    return _ddl_host(rank % hosts, topology), rank // hosts


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
