"""Facts of the machines that the tests describe in YAML, and their loader.

README.md explains the format by an example.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from ddlrun.errors import InputError
from ddlrun.ranges import parse_ranges, render_ranges
from tests.machines.cpu_groups import Cpus, Groups, Numbered, parse_groups, parse_numbered

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


class Device(NamedTuple):
    """A GPU or a network card: its path below /sys/devices, the CPUs near it, its GPU vendor, and its names."""

    path: tuple[str, ...]
    near: Cpus
    gpu: str | None
    nets: tuple[str, ...]
    rdma: str | None

    @property
    def address(self) -> str:
        return self.path[-1]


class Facts(NamedTuple):
    """A machine's facts. CPUs, packages and nodes have OS indexes; cores and caches are sets of CPUs.

    `cpus` includes the offline ones and those that a cgroup forbids. `memory` is in MiB. `links` has the number of
    NVLinks between two GPUs. `kinds` has the CPUs of each kind of cores: Intel's atom and core, or by their capacity.
    """

    name: str
    about: str
    cpus: Cpus
    offline: Cpus
    forbidden: Cpus
    packages: Numbered
    cores: tuple[Cpus, ...]
    modules: tuple[Cpus, ...]
    nodes: Numbered
    memory: Mapping[int, int]
    forbidden_nodes: Cpus
    distances: tuple[tuple[int, ...], ...]
    caches: Mapping[int, tuple[Cpus, ...]]
    groups: tuple[Cpus, ...]
    models: Mapping[str, Cpus]
    lscpu: Mapping[str, int]
    devices: tuple[Device, ...]
    links: Mapping[tuple[int, int], int]
    kinds: Mapping[str, Cpus] = {}

    @property
    def siblings(self) -> tuple[Cpus, ...]:
        """The CPUs that the kernel calls siblings: those of a core, or of a module of cores."""
        return self.modules or self.cores

    @property
    def online(self) -> Cpus:
        return self.cpus - self.offline

    @property
    def allowed(self) -> Cpus:
        return self.online - self.forbidden

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(sorted((device for device in self.devices if device.gpu), key=lambda device: device.address))

    @property
    def nics(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.nets or device.rdma)


class Description(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a YAML file."""

    about: str
    packages: Groups = msgspec.field(default_factory=dict)
    cores: str | int = ""
    modules: str = ""
    cpus: str | int = ""
    nodes: Groups = msgspec.field(default_factory=dict)
    memory: int | dict[int | str, int] = 0
    distances: list[str] = msgspec.field(default_factory=list)
    caches: dict[int, str | int] = msgspec.field(default_factory=dict)
    groups: str | int = ""
    offline: str | int = ""
    forbidden: str | int = ""
    forbidden_nodes: str | int = ""
    model: str | dict[str, str | int] = ""
    lscpu: dict[str, int] = msgspec.field(default_factory=dict)
    devices: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    links: int | dict[int, str] = 0
    kinds: dict[str | int, str | int] = msgspec.field(default_factory=dict)


@cache
def load(name: str) -> Facts:
    """Return the machine of a YAML file in this folder."""
    return parse_facts((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), name)


def parse_facts(text: str, name: str) -> Facts:
    """Parse the description of a machine. Raises InputError with the machine and what is wrong."""
    try:
        return _facts(msgspec.yaml.decode(text, type=Description), name)
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(f"machine {name}: {' '.join(str(error).split())}") from error


def _facts(raw: Description, name: str) -> Facts:
    cores = parse_groups(raw.cores)
    packages, nodes = parse_numbered(raw.packages), parse_numbered(raw.nodes)
    cpus = parse_ranges(str(raw.cpus)) or frozenset().union(*cores, *packages.values(), *nodes.values())
    facts = Facts(
        name=name,
        about=raw.about,
        cpus=cpus,
        offline=parse_ranges(str(raw.offline)),
        forbidden=parse_ranges(str(raw.forbidden)),
        packages=packages,
        cores=cores,
        modules=parse_groups(raw.modules),
        nodes=nodes,
        memory=_memory(raw.memory, nodes),
        forbidden_nodes=parse_ranges(str(raw.forbidden_nodes)),
        distances=tuple(tuple(map(int, row.split())) for row in raw.distances),
        caches={level: parse_groups(text) for level, text in sorted(raw.caches.items(), reverse=True)},
        groups=parse_groups(raw.groups),
        models=_models(raw.model, cpus),
        lscpu=raw.lscpu,
        devices=tuple(_devices(raw.devices, cpus, packages, nodes)),
        links={},
        kinds={str(kind): parse_ranges(str(text)) for kind, text in raw.kinds.items()},
    )
    facts = facts._replace(links=_links(raw.links, len(facts.gpus)))
    _check(facts)
    return facts


def _memory(memory: int | Mapping[int | str, int], nodes: Numbered) -> Mapping[int, int]:
    if isinstance(memory, int):
        return dict.fromkeys(nodes, memory)
    return {node: size for key, size in memory.items() for node in parse_ranges(str(key))}


def _models(models: str | Mapping[str, str | int], cpus: Cpus) -> Mapping[str, Cpus]:
    if isinstance(models, str):
        return {models: cpus} if models else {}
    return {model: parse_ranges(str(text)) for model, text in models.items()}


def _devices(raw: Mapping[str, Mapping[str, str]], cpus: Cpus, packages: Numbered, nodes: Numbered) -> Iterator[Device]:
    for place, devices in raw.items():
        near = cpus if place == "machine" else _near(place, packages, nodes)
        for path, words in devices.items():
            yield _device(path, near, words.split())


def _near(place: str, packages: Numbered, nodes: Numbered) -> Cpus:
    kind, _, text = place.partition(" ")
    if kind == "cpus":
        return parse_ranges(text)
    numbered = {"node": nodes, "package": packages}.get(kind, {})
    if not text.isdecimal() or int(text) not in numbered:
        raise ValueError(f"devices: {place!r} is not the place of a device: node N, package N, machine, or cpus LIST")
    return numbered[int(text)]


def _device(path: str, near: Cpus, words: list[str]) -> Device:
    parts = tuple(path.split("/"))
    if len(parts) < 2 or not re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}", parts[0]):
        raise ValueError(f"devices: {path!r} is not a path such as pci0000:17/0000:17:00.0/0000:18:00.0")
    if len(words) == 1 and words[0] in ("nvidia", "amd", "intel"):
        return Device(parts, near, words[0], (), None)
    pairs = list(zip(words[::2], words[1::2], strict=False))
    nets = tuple(name for kind, name in pairs if kind == "net")
    rdma = [name for kind, name in pairs if kind == "rdma"]
    if not pairs or len(nets) + len(rdma) != len(pairs) or len(pairs) * 2 != len(words) or len(rdma) > 1:
        raise ValueError(f"devices: {path}: {' '.join(words)!r} is neither nvidia, amd or intel nor `net N rdma N`")
    return Device(parts, near, None, nets, rdma[0] if rdma else None)


def _links(links: int | Mapping[int, str], gpus: int) -> Mapping[tuple[int, int], int]:
    """Return the number of NVLinks of each pair: the same for all, or pairs such as `0-1 2-3` by their number."""
    if isinstance(links, int):
        return {(one, other): links for one in range(gpus) for other in range(gpus) if links and one != other}
    pairs: dict[tuple[int, int], int] = {}
    for number, text in links.items():
        for word in text.split():
            first, _, second = word.partition("-")
            pairs |= {(int(first), int(second)): number, (int(second), int(first)): number}
    return pairs


def _check(facts: Facts) -> None:
    """Raise ValueError where facts contradict each other."""
    _check_disjoint("packages", facts.packages.values(), facts.cpus)
    _check_disjoint("cores", facts.cores, facts.cpus)
    if facts.cores and frozenset().union(*facts.cores) != facts.cpus:
        raise ValueError(f"CPUs {render_ranges(facts.cpus - frozenset().union(*facts.cores))} are in no core")
    for key, cpus in (("offline", facts.offline), ("forbidden", facts.forbidden)):
        if not cpus <= facts.cpus:
            raise ValueError(f"{key}: there are no CPUs {render_ranges(cpus - facts.cpus)}")
    if not facts.allowed:
        raise ValueError("no CPU is left")
    if not set(facts.memory) | facts.forbidden_nodes <= set(facts.nodes):
        raise ValueError("memory and forbidden_nodes: a node is not among the nodes")
    if facts.distances and {len(facts.nodes)} != {len(facts.distances), *map(len, facts.distances)}:
        raise ValueError(f"distances: {len(facts.nodes)} rows of {len(facts.nodes)} numbers are expected")
    if facts.kinds and not (set(facts.kinds) <= {"atom", "core"} or all(kind.isdecimal() for kind in facts.kinds)):
        raise ValueError("kinds: give atom and core, or capacities")
    if len({device.path for device in facts.devices}) < len(facts.devices):
        raise ValueError("devices: a path is listed twice")
    if not all(pair < len(facts.gpus) for pairs in facts.links for pair in pairs):
        raise ValueError(f"links: there are {len(facts.gpus)} GPUs")


def _check_disjoint(key: str, groups: Iterable[Cpus], cpus: Cpus) -> None:
    groups = list(groups)
    if sum(map(len, groups)) > len(frozenset().union(*groups)):
        raise ValueError(f"{key} overlap")
    if not frozenset().union(*groups) <= cpus:
        raise ValueError(f"{key}: there are no CPUs {render_ranges(frozenset().union(*groups) - cpus)}")
