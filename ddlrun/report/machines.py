"""Machines as text: equal hosts as one group, with the differences of the others."""

from collections.abc import Iterator, Sequence

from ddlrun.hosts import fold
from ddlrun.machine import Machine
from ddlrun.ranges import render_ranges
from ddlrun.report.picture import Canvas, draw_machine
from ddlrun.wording import counted


def render_groups(groups: Sequence[tuple[Machine, Sequence[str]]], canvas: Canvas) -> str:
    """Render groups of hosts, the largest first; each of the others lists its differences from it.

    Each drawing stands once, below the first group that looks like it.
    """
    drawn: list[list[str]] = []
    usual = groups[0][0]
    lines: list[str] = []
    for machine, names in groups:
        lines.append(
            f"{fold(names)}: {machine}{''.join(f', {extra}' for extra in _extras(machine))} ({machine.source})"
        )
        if machine != usual:
            lines.append(f"  differs from {fold(groups[0][1])}: {'; '.join(differences(machine, usual))}")
        drawing = draw_machine(machine, canvas)
        if drawing not in drawn:
            drawn.append(drawing)
            lines += drawing
        lines += (f"  note: {note}" for note in machine.notes)
    return "".join(f"{line}\n" for line in lines)


def differences(machine: Machine, usual: Machine) -> list[str]:
    """Return the differences of a machine from the usual one, in a few words each.

    >>> usual = Machine((), (), None, "a", measured=True, memory=256)
    >>> differences(usual._replace(memory=512), usual)
    ['512 GiB instead of 256 GiB']
    """
    facts = zip(_facts(machine), _facts(usual), strict=True)
    differing = [f"{fact} instead of {other}" for fact, other in facts if fact != other]
    return differing or ["the numbering of CPUs or devices"]


def _facts(machine: Machine) -> Iterator[str]:
    packages = [len(package) for package in machine.packages]
    usable = [core.logical_index for core in machine.cores if core.usable]
    yield f"packages of {'+'.join(map(str, packages))} cores"
    yield f"SMT{'/'.join(sorted({str(len(core.pus)) for core in machine.cores}))}"
    yield f"usable cores {render_ranges(usable)}" if len(usable) < len(machine.cores) else "all cores usable"
    yield f"NUMA nodes {render_ranges(machine.numa_nodes)}"
    yield counted(len(machine.gpus), "GPU")
    homes = [str(gpu.numa_node) for gpu in machine.gpus]
    yield f"GPUs on NUMA nodes {','.join(homes)}" if homes else "no GPU"
    addresses = [gpu.pci_address or "?" for gpu in machine.gpus]
    yield f"GPUs at {','.join(addresses)}" if addresses else "no GPU"
    names = [nic.rdma or nic.name for nic in machine.nics or ()]
    yield f"NICs {','.join(names) or 'none'}"
    yield f"{machine.memory} GiB"
    yield f"read by {machine.source}"


def _extras(machine: Machine) -> Iterator[str]:
    if machine.nics:
        rdma = sum(nic.rdma is not None for nic in machine.nics)
        yield counted(len(machine.nics), "NIC") + (f" ({rdma} RDMA)" if rdma else "")
    if machine.memory:
        yield f"{machine.memory} GiB"
    usable = sum(core.usable for core in machine.cores)
    if usable < len(machine.cores):
        yield f"{usable} cores usable"
