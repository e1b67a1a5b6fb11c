"""Links of a cluster, level by level: parse and render the YAML of --links FILE.

name: lab, second floor
source: ddlrun network bench, 2026-11-02      # where the figures come from
host:                                 # inside a host: the link of each learner
  bandwidth: 150 GB/s                 # of one link in one direction; bits or bytes, with their unit
  latency: 3 us                       # of a message that goes no further; default: that of the level below
nic:                                  # between hosts: all learners of a host share it
  bandwidth: 100 Gbit/s
  latency: 14 us
  payload: 0.9415                     # the share that headers leave to data; 1 where data were measured
  parallel: 2                         # links side by side; default: 1
uplink:                               # between racks: all hosts of a rack share it; default: no limit
  bandwidth: 400 Gbit/s
  latency: 15 us
aisle: {bandwidth: 800 Gbit/s}        # between aisles: all racks of an aisle share it
nics: {h3: 50 Gbit/s}                 # hosts whose NIC's data rate differs from nic
hosts_per_rack: 16                    # default: Y of the topology
racks_per_aisle: 8

Only `nic.bandwidth` is required. `burst: 512 KiB`: the bytes that a shaper lets pass at line rate after a pause.
"""

import math
from dataclasses import dataclass
from typing import Any

import yaml

from ddlrun.errors import InputError
from ddlrun.units import parse_bytes, parse_rate, parse_seconds

LEVELS = ("host", "nic", "uplink", "aisle")


@dataclass(frozen=True, slots=True)
class Link:
    """The links of a level, one direction.

    Args:
        bandwidth: bytes/s of one link.
        latency: seconds per message.
        payload: the share of the bandwidth that headers leave to data.
        parallel: the number of links side by side.
        burst: bytes that pass at line rate after a pause.
    """

    bandwidth: float = math.inf
    latency: float = 0.0
    payload: float = 1.0
    parallel: int = 1
    burst: int = 0

    @property
    def capacity(self) -> float:
        """Data bytes per second in one direction, all links of the level together."""
        return self.bandwidth * self.payload * self.parallel


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of each of LEVELS, the hosts that share an uplink, and the racks of an aisle (None: not given).

    `nics` has the bytes/s of data of hosts whose NIC has another rate.
    """

    links: tuple[Link, ...]
    name: str = ""
    source: str = ""
    hosts_per_rack: int | None = None
    racks_per_aisle: int | None = None
    nics: tuple[tuple[str, float], ...] = ()


_KEYS = {"bandwidth": (str,), "latency": (str, int), "payload": (float, int), "parallel": (int,), "burst": (str,)}
_EXPECTED = {
    "bandwidth": "a rate with its unit, as in 100 Gbit/s",
    "latency": "a time with its unit, as in 5 us",
    "payload": "a share such as 0.94",
    "parallel": "a number",
    "burst": "bytes with their unit, as in 512 KiB",
}
_WORDS = ("name", "source")
_COUNTS = ("hosts_per_rack", "racks_per_aisle")


def parse_fabric(text: str, where: str) -> Fabric:
    """Parse the YAML shown above; `where` names the file in errors.

    Raises InputError that lists every unknown, missing or wrong key.
    """
    try:
        entries = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    keys = (*LEVELS, *_WORDS, *_COUNTS, "nics")
    if not isinstance(entries, dict) or not entries.keys() & {*keys}:
        raise InputError(f"{where}: it describes no network; write at least nic: {{bandwidth: 100 Gbit/s}}")
    problems = [f"{where}: unknown key {key!r}; the keys are {', '.join(keys)}" for key in entries if key not in keys]
    problems += [
        f"{where}: {key}: {entries[key]!r} is not a number of at least 1"
        for key in _COUNTS
        if not _is_count(entries.get(key, 1))
    ]
    links = tuple(_parse_link(entries.get(level), f"{where}: {level}", problems) for level in LEVELS)
    if not isinstance(entries.get("nic"), dict):
        problems.append(f"{where}: nic is missing; write nic: {{bandwidth: 100 Gbit/s}}")
    nics = _parse_nics(entries.get("nics"), f"{where}: nics", problems)
    if problems:
        raise InputError(*problems)
    return Fabric(
        links,
        name=str(entries.get("name") or where),
        source=str(entries.get("source") or ""),
        hosts_per_rack=entries.get("hosts_per_rack"),
        racks_per_aisle=entries.get("racks_per_aisle"),
        nics=nics,
    )


def _parse_nics(entry: object, where: str, problems: list[str]) -> tuple[tuple[str, float], ...]:
    if entry is None:
        return ()
    if not isinstance(entry, dict):
        problems.append(f"{where}: {entry!r} names no hosts; write {{h3: 50 Gbit/s}}")
        return ()
    rates = []
    for host, rate in entry.items():
        try:
            rates.append((str(host), parse_rate(str(rate), f"{where}.{host}")))
        except InputError as error:
            problems += error.problems
    return tuple(rates)


def _parse_link(entry: object, where: str, problems: list[str]) -> Link:
    if entry is None:
        return Link()
    if not isinstance(entry, dict):
        problems.append(f"{where}: {entry!r} is not a link; write {{bandwidth: 100 Gbit/s, latency: 5 us}}")
        return Link()
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in _KEYS:
            problems.append(f"{where}: unknown key {key!r}; the keys are {', '.join(_KEYS)}")
            continue
        try:
            values[key] = _parse_value(key, value, f"{where}.{key}")
        except InputError as error:
            problems += error.problems
    if "bandwidth" not in entry:
        problems.append(f"{where}: bandwidth is missing; write it with its unit, as in 100 Gbit/s")
    return Link(**values)


def _parse_value(key: str, value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, _KEYS[key]):
        raise InputError(f"{where}: {value!r} is not {_EXPECTED[key]}")
    if key == "bandwidth":
        return parse_rate(str(value), where)
    if key == "latency":
        return parse_seconds(str(value), where) if value != 0 else 0.0
    if key == "burst":
        return parse_bytes(str(value), where)
    if key == "parallel":
        if not _is_count(value):
            raise InputError(f"{where}: {value!r} is not a number of at least 1")
        return int(str(value))
    share = float(str(value))
    if not 0 < share <= 1:
        raise InputError(f"{where}: {value!r} is not a share; it is more than 0 and at most 1")
    return share


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 10**9


def render_fabric(fabric: Fabric) -> str:
    """Render the YAML of a fabric, for `parse_fabric`; values that equal their default are left out."""
    entries: dict[str, Any] = {key: getattr(fabric, key) for key in _WORDS if getattr(fabric, key)}
    for level, link in zip(LEVELS, fabric.links, strict=True):
        if math.isfinite(link.bandwidth):
            entries[level] = _link_entry(link)
    entries |= {key: getattr(fabric, key) for key in _COUNTS if getattr(fabric, key) is not None}
    if fabric.nics:
        entries["nics"] = {host: f"{_number(rate / 1e6)} MB/s" for host, rate in fabric.nics}
    return yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)


def _link_entry(link: Link) -> dict[str, Any]:
    entry: dict[str, Any] = {"bandwidth": f"{_number(link.bandwidth / 1e6)} MB/s"}
    if link.latency:
        entry["latency"] = f"{_number(link.latency * 1e6)} us"
    if link.payload != 1:
        entry["payload"] = link.payload
    if link.parallel != 1:
        entry["parallel"] = link.parallel
    if link.burst:
        entry["burst"] = f"{link.burst} B"
    return entry


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
