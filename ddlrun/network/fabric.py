"""The links of a cluster, level by level <-> the YAML that --network FILE takes and what measures a network writes.

name: lab, second floor
source: ddlrun bench, 2026-11-02      # where the figures come from
host:                                 # inside a host: what each learner's own link carries
  bandwidth: 150 GB/s                 # of one link in one direction; bits or bytes, with their unit
  latency: 3 us                       # of a message that goes no further; without it that of the level before
nic:                                  # between hosts: all learners of a host share it
  bandwidth: 100 Gbit/s
  latency: 14 us
  payload: 0.9415                     # the share that headers leave to data; 1 where data was what was measured
  parallel: 2                         # so many side by side; 1 if it is left out
uplink:                               # between racks: all hosts of a rack share it; without it no limit
  bandwidth: 400 Gbit/s
  latency: 15 us
aisle: {bandwidth: 800 Gbit/s}        # between aisles: all racks of an aisle share it
hosts_per_rack: 16                    # where the uplinks are; without them Y says it
racks_per_aisle: 8

Only `nic.bandwidth` must be there. `burst: 512 KiB` is what a link lets pass at once after a rest, as a shaper does.
"""

import math
from typing import Any, NamedTuple

from ddlrun.errors import InputError
from ddlrun.units import parse_bytes, parse_rate, parse_seconds

LEVELS = ("host", "nic", "uplink", "aisle")


class Link(NamedTuple):
    """The link of a level, one direction: bytes/s of one, s a message, share of data, how many, bytes at once."""

    bandwidth: float = math.inf
    latency: float = 0.0
    payload: float = 1.0
    parallel: int = 1
    burst: int = 0

    @property
    def capacity(self) -> float:
        """Data bytes a second in one direction, all links of the level together."""
        return self.bandwidth * self.payload * self.parallel


class Fabric(NamedTuple):
    """The links of each level of LEVELS, and how many hosts share an uplink, racks an aisle (None: not said)."""

    links: tuple[Link, ...]
    name: str = ""
    source: str = ""
    hosts_per_rack: int | None = None
    racks_per_aisle: int | None = None


_KEYS = {"bandwidth": (str,), "latency": (str, int), "payload": (float, int), "parallel": (int,), "burst": (str,)}
_WORDS = ("name", "source")
_COUNTS = ("hosts_per_rack", "racks_per_aisle")


def parse_fabric(text: str, where: str) -> Fabric:
    """Parse the YAML that stands above; `where` is the file's name.

    Raises InputError with each key that is not known, missing or wrong.
    """
    import yaml  # noqa: PLC0415 - 20 ms, for those who have a file

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    known = (*LEVELS, *_WORDS, *_COUNTS)
    if not isinstance(found, dict) or not found.keys() & {*known}:
        raise InputError(f"{where}: it describes no network; write at least nic: {{bandwidth: 100 Gbit/s}}")
    problems: list[str] = []
    problems += [
        f"{where}: key {key!r} is not known; there are {', '.join(known)}" for key in found if key not in known
    ]
    for key in _COUNTS:
        if not _is_count(found.get(key, 1)):
            problems.append(f"{where}: {key}: {found[key]!r} is no number of at least 1")
    links = tuple(_parse_link(found.get(level), f"{where}: {level}", problems) for level in LEVELS)
    if not isinstance(found.get("nic"), dict):
        problems.append(f"{where}: nic is missing; write nic: {{bandwidth: 100 Gbit/s}}")
    if problems:
        raise InputError(*problems)
    name, source = (str(found.get(key, "")) for key in _WORDS)
    return Fabric(links, name or where, source, *(found.get(key) for key in _COUNTS))


def _parse_link(found: object, where: str, problems: list[str]) -> Link:
    if found is None:
        return Link()
    if not isinstance(found, dict):
        problems.append(f"{where}: {found!r} is no link; write {{bandwidth: 100 Gbit/s, latency: 5 us}}")
        return Link()
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key not in _KEYS:
            problems.append(f"{where}: key {key!r} is not known; there are {', '.join(_KEYS)}")
            continue
        try:
            values[key] = _parse_value(key, value, f"{where}.{key}")
        except InputError as error:
            problems += error.problems
    if "bandwidth" not in found:
        problems.append(f"{where}: bandwidth is missing; write it with its unit, as in 100 Gbit/s")
    return Link(**values)


def _parse_value(key: str, value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, _KEYS[key]):
        wanted = {
            "payload": "a share such as 0.94", "parallel": "a number", "latency": "a time with its unit, as in 5 us",
            "burst": "bytes with their unit, as in 512 KiB",
        }.get(key, "a rate with its unit, as in 100 Gbit/s")  # fmt: skip
        raise InputError(f"{where}: {value!r} is not what it takes: {wanted}")
    if key == "bandwidth":
        return parse_rate(str(value), where)
    if key == "latency":
        return parse_seconds(str(value), where) if value != 0 else 0.0
    if key == "burst":
        return parse_bytes(str(value), where)
    if key == "parallel":
        if not _is_count(value):
            raise InputError(f"{where}: {value!r} is no number of at least 1")
        return int(str(value))
    share = float(str(value))
    if not 0 < share <= 1:
        raise InputError(f"{where}: {value!r} is no share; it is more than 0 and at most 1")
    return share


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9


def render_fabric(fabric: Fabric) -> str:
    """Write the YAML of a fabric, as `parse_fabric` reads it; what has its default is left out."""
    import yaml  # noqa: PLC0415 - as above

    told: dict[str, Any] = {key: getattr(fabric, key) for key in _WORDS if getattr(fabric, key)}
    for level, link in zip(LEVELS, fabric.links, strict=True):
        if math.isfinite(link.bandwidth):
            told[level] = _told(link)
    told |= {key: getattr(fabric, key) for key in _COUNTS if getattr(fabric, key) is not None}
    return yaml.safe_dump(told, sort_keys=False, allow_unicode=True)


def _told(link: Link) -> dict[str, Any]:
    said: dict[str, Any] = {"bandwidth": f"{_number(link.bandwidth / 1e6)} MB/s"}
    if link.latency:
        said["latency"] = f"{_number(link.latency * 1e6)} us"
    said |= {key: getattr(link, key) for key in ("payload", "parallel") if getattr(link, key) != 1}
    return said | ({"burst": f"{link.burst} B"} if link.burst else {})


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
