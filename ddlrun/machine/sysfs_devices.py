"""GPUs and NICs in the output of the /sys probe."""

from collections.abc import Iterator, Sequence

from ddlrun.machine import GPU, NIC, Core, MachineNote
from ddlrun.machine.pci import BY_ADDRESS, ORDER, PciDevice, allocated, attach, gpu_vendor, granted
from ddlrun.machine.sysfs_script import ProbeOutput
from ddlrun.ranges import parse_ranges


def read_devices(
    output: ProbeOutput, cores: Sequence[Core]
) -> tuple[tuple[GPU, ...], tuple[NIC, ...], tuple[MachineNote, ...]]:
    """Return the GPUs that may be used, the NICs, and notes on the other GPUs; `cores` are those of the host.

    Raises ValueError on unexpected contents.
    """
    gpus, nics = attach(cores, _gpus(output), _nics(output))
    denied = {words[1] for words in output.records if words[0] == "@gpu" and words[2] == "no"}
    variables = output.values("@env")
    models = {output.files.get(f"{gpu.pci_address}/device") for gpu in gpus if gpu.vendor == "nvidia"}
    order = {ORDER: BY_ADDRESS} if len(models) == 1 else {}
    gpus, notes = granted(gpus, denied, output.values("@uuid"), {**variables, **order})
    numbers = next((words[1] for words in output.records if words[0] == "@allotted"), "")
    if numbers and not variables:  # the variables, of the scheduler or the user, are stronger
        gpus, more_notes = allocated(gpus, numbers, output.values("@minor"))
        notes += more_notes
    return gpus, nics, notes


def _gpus(output: ProbeOutput) -> Iterator[PciDevice]:
    paths = output.values("@bus")
    for path, content in output.files.items():
        address, _, name = path.partition("/")
        if name == "class":
            maker, device = (output.files.get(f"{address}/{name}", "")[2:] for name in ("vendor", "device"))
            vendor = gpu_vendor(maker, device, content[2:])
            if vendor:
                yield PciDevice(
                    kind=vendor,
                    name=address,
                    numa_node=_node(output.files.get(f"{address}/numa_node")),
                    path=_bus(paths.get(address, "")),
                    cpus=parse_ranges(output.files.get(f"{address}/local_cpulist", "")),
                )


def _nics(output: ProbeOutput) -> Iterator[PciDevice]:
    near = output.values("@near")
    for words in output.records:
        if words[0] == "@nic":
            name, node, path = words[2].split(" ", 2)
            cpus = parse_ranges(near.get(name, ""))
            yield PciDevice(words[1], name, _node(node), path=_bus(path), cpus=cpus)


def _node(text: str | None) -> int | None:
    return int(text) if text and int(text) >= 0 else None


def _bus(path: str) -> tuple[str, ...]:
    return tuple(path.rpartition("/devices/")[2].split("/")) if "/devices/" in path else ()
