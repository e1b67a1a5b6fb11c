"""Simulated replies of a large cluster to a preflight: equal machines of 128 cores and 8 GPUs, each with its own clock,
address, memory and UUIDs.
"""

from collections.abc import Iterator, Sequence

PACKAGES, CORES, NODES, GPUS = 2, 128, 8, 8


def simulate_replies(names: Sequence[str], clock: float) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the facts of each host."""
    machine = _machine()
    for number, name in enumerate(names):
        near = dict.fromkeys([0, *((number + step) % len(names) for step in range(-1, 6))])
        resolved = "\n".join(f"@name {names[other]} {_ip(other)} " for other in near)
        own = _OWN.format(name=name, clock=clock, ip=_ip(number), resolved=resolved)
        alike = machine.replace("KIB", str(1_056_000_000 + 4 * number)).replace("UUID", f"GPU-{number:08x}")
        yield name, {"machine": alike, "own": own}


def _ip(number: int) -> str:
    return f"10.{number >> 14}.{number >> 7 & 127}.{number % 128 + 1}"


def _machine() -> str:
    """Return the kernel's description of a machine: the CPUs of core c are c and c + 128."""

    def both(first: int, count: int) -> str:
        return f"{first}-{first + count - 1},{CORES + first}-{CORES + first + count - 1}"

    lines = [f"cpu/online:0-{2 * CORES - 1}"]
    for cpu in range(2 * CORES):
        core = cpu % CORES
        per_package, complex_ = CORES // PACKAGES, core // 8 * 8
        lines += [
            f"cpu/cpu{cpu}/topology/core_siblings_list:{both(core // per_package * per_package, per_package)}",
            f"cpu/cpu{cpu}/topology/thread_siblings_list:{core},{core + CORES}",
            f"cpu/cpu{cpu}/cache/index2/shared_cpu_list:{core},{core + CORES}",
            f"cpu/cpu{cpu}/cache/index3/shared_cpu_list:{both(complex_, 8)}",
        ]
    share = CORES // NODES
    lines += [f"node/online:0-{NODES - 1}", *(f"node/node{n}/cpulist:{both(n * share, share)}" for n in range(NODES))]
    lines += [f"/proc/self/status:Cpus_allowed_list:\t0-{2 * CORES - 1}", "/proc/meminfo:MemTotal:       KIB kB"]
    for gpu in range(GPUS):
        at = f"0000:{gpu + 16:02x}:00.0"
        files = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": gpu}
        lines += [f"{at}/{file}:{value}" for file, value in files.items()]
        lines += [f"@bus {at} /sys/devices/pci0000:{gpu:02x}/{at}", f"@uuid {at} UUID-{gpu}", f"@gpu {at} yes"]
    path = "/sys/devices/pci0000:{0:02x}/0000:{0:02x}:01.0"
    lines += [f"@nic infiniband mlx5_{nic} {nic} {path.format(nic)}" for nic in range(GPUS)]
    return "\n".join([*lines, "ddlrun:end"])


_OWN = """\
@clock {clock}
@hostname {name}
{resolved}
@manager mpirun (Open MPI) 4.1.4
@daemon
@python 3.11.7
@agent 3.11.7
@package mpi4py 4.1.2 /opt/python/lib/python3.11/site-packages
@package torch 2.13.0 /opt/python/lib/python3.11/site-packages
@folder
@driver NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
@room shm 528000000 /dev/shm
@room temporary 900000000 /tmp
@limit memlock unlimited
@limit files 1048576
@net lo 127.0.0.1/8 up -1 virtual
@net eth0 {ip}/8 up 200000 device
@net docker0 172.17.0.1/16 up -1 bridge
@ports 22 111
"""
