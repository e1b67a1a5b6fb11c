"""Tuning profiles: the best settings that `ddlrun network tune` measured on some hosts, and when a launch uses them."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ddlrun.allreduce_algorithms import MODES
from ddlrun.errors import InputError
from ddlrun.topology import JobTopology, Topology, parse_topology
from ddlrun.units import render_bytes

HOROVOD = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")


class Profile(NamedTuple):
    """The best settings for the gradients of one step."""

    hosts: tuple[str, ...]
    """The hosts on which it was measured, in their order."""
    topology: Topology
    major: int
    """The major version of Open MPI."""
    mode: str
    """The mode of DDL's algorithm."""
    tuning: str
    """DDL's chunk, depth and bucket sizes, as in DDLRUN_DDL_TUNING."""
    horovod: Mapping[str, str]
    """Horovod's variables."""
    gradient: int
    """Bytes of gradients per step."""
    seconds: float
    """Time per step with these settings."""
    default_seconds: float
    """Time per step without them."""
    date: str
    """The day on which it was measured."""

    def __str__(self) -> str:
        return f"profile of {self.date} for gradients of {render_bytes(self.gradient)}"

    def fits(self, topology: JobTopology, major: int | None) -> bool:
        """Return True for a job with as many ranks per host, as many hosts and the same Open MPI (None: any)."""
        if not isinstance(topology, Topology):
            return False
        alike = (self.topology.ranks_per_host, self.topology.hosts) == (topology.ranks_per_host, topology.hosts)
        return alike and major in (None, self.major)


class Profiles(NamedTuple):
    """The profiles that a launch may use."""

    candidates: tuple[Profile, ...] = ()
    file: str | None = None
    """The file that the user named; None: the profiles were stored for the hosts of the job."""
    may_reshape: bool = True
    """Whether a profile may change Y and Z, because no option gives them."""
    note: str = ""
    """Why there is no profile, or that its hosts are in another order; empty: nothing to report."""

    def fitting(self, topology: JobTopology, major: int | None) -> Profile | None:
        """Return the profile for a job; None without one. Raises InputError where a named file has none that fits."""
        fitting = [profile for profile in self.candidates if profile.fits(topology, None if self.file else major)]
        if self.file and not fitting:
            shapes = ", ".join(str(profile.topology) for profile in self.candidates)
            raise InputError(
                f"`--profile` {self.file}: it is for {shapes}, the job is {topology}; tune anew, or take none"
            )
        return next(iter(fitting), None)


def file_name(hosts: Iterable[str]) -> str:
    """Return the name of the file with the profiles of these hosts, in this order."""
    import hashlib  # noqa: PLC0415 - 2 ms, where something was tuned

    return f"{hashlib.sha256(' '.join(hosts).encode()).hexdigest()[:16]}.json"


def parse_profiles(text: str, where: str) -> tuple[Profile, ...]:
    """Parse the output of `render_profiles`. Raises InputError."""
    try:
        return tuple(_parse_profile(record, where) for record in json.loads(text)["profiles"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, IndexError) as error:
        raise InputError(f"{where}: it is not a profile that ddlrun network tune wrote; tune anew") from error


def _parse_profile(record: Mapping[str, Any], where: str) -> Profile:
    numbers = {name: float(record[name]) for name in ("gradient", "seconds", "default_seconds")}
    horovod = {str(name): str(float(value)) for name, value in record["horovod"].items()}
    sizes = re.fullmatch(r"(chunk=[1-9]\d{0,6}K,depth=[1-9]\d{0,3},)?bucket=[1-9]\d{0,6}M", record["tuning"])
    if not all(math.isfinite(value) and 0 < value < 1e18 for value in numbers.values()) or not sizes:
        raise ValueError("a size or a time is out of range")
    if record["mode"] not in MODES or not {*horovod} <= {*HOROVOD} or not record["hosts"]:
        raise ValueError("no such mode or variable, or no hosts")
    return Profile(
        hosts=tuple(map(str, record["hosts"])),
        topology=parse_topology(str(record["topology"]), where),
        major=int(record["major"]),
        mode=record["mode"],
        tuning=record["tuning"],
        horovod={name: str(record["horovod"][name]) for name in horovod},
        gradient=int(numbers["gradient"]),
        seconds=numbers["seconds"],
        default_seconds=numbers["default_seconds"],
        date=str(record["date"])[:10],
    )


def render_profiles(profiles: Iterable[Profile]) -> str:
    """Render profiles as JSON."""
    records = [{**profile._asdict(), "topology": str(profile.topology)} for profile in profiles]
    return json.dumps({"profiles": records}, indent=1) + "\n"


def replace_profile(profiles: Iterable[Profile], new: Profile) -> tuple[Profile, ...]:
    """Return profiles with a new one in place of those for the same job."""
    return (new, *(profile for profile in profiles if not profile.fits(new.topology, new.major)))
