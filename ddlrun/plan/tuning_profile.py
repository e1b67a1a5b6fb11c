"""What `ddlrun tune` found best on some hosts, and when a launch takes it up."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ddlrun.allreduce_algorithms import MODES
from ddlrun.errors import InputError
from ddlrun.topology import Topology, parse_topology
from ddlrun.units import render_bytes

HOROVOD = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")


class Profile(NamedTuple):
    """The best for a step's gradients of so many bytes: decomposition, mode of DDL, sizes, Horovod's variables.

    Measured on `hosts`, in their order, under Open MPI `major`; `seconds` of a step, and without a profile `usual`.
    """

    hosts: tuple[str, ...]
    topology: Topology
    major: int
    mode: str
    tuning: str
    horovod: Mapping[str, str]
    gradient: int
    seconds: float
    usual: float
    when: str

    def __str__(self) -> str:
        return f"profile of {self.when} for gradients of {render_bytes(self.gradient)}"

    def same_job(self, topology: Topology, major: int | None) -> bool:
        """Tell whether it is for as many ranks a host, as many hosts and this Open MPI (None: any)."""
        alike = (self.topology.accelerators, self.topology.hosts) == (topology.accelerators, topology.hosts)
        return alike and major in (None, self.major)


class Profiles(NamedTuple):
    """Those that a launch may take: of a file that was named, or those that were kept for its hosts."""

    known: tuple[Profile, ...] = ()
    named: str | None = None
    free: bool = True
    """Whether nobody asked for Y and Z, so that a profile's may be taken."""
    said: str = ""
    """What is to be said of them: why there are none, or that the hosts stand in another order."""

    def fitting(self, topology: Topology, major: int | None) -> Profile | None:
        """Return the one for a job. Raises InputError where one was named and does not fit."""
        found = [one for one in self.known if one.same_job(topology, None if self.named else major)]
        if self.named and not found:
            shapes = ", ".join(str(one.topology) for one in self.known)
            raise InputError(
                f"--profile {self.named}: it is for {shapes}, the job is {topology}; tune anew, or take none"
            )
        return next(iter(found), None)


def file_name(hosts: Iterable[str]) -> str:
    """Return the name of the file that keeps the profiles of these hosts, in this order."""
    import hashlib  # noqa: PLC0415 - 3 ms, where something was tuned

    return f"{hashlib.sha256(' '.join(hosts).encode()).hexdigest()[:16]}.json"


def parse_profiles(text: str, where: str) -> tuple[Profile, ...]:
    """Parse what `render_profiles` wrote. Raises InputError."""
    try:
        return tuple(_profile(one, where) for one in json.loads(text)["profiles"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, IndexError) as error:
        raise InputError(f"{where}: it is no profile that ddlrun tune wrote; tune anew") from error


def _profile(found: Mapping[str, Any], where: str) -> Profile:
    numbers = {name: float(found[name]) for name in ("gradient", "seconds", "usual")}
    horovod = {str(name): str(float(value)) for name, value in found["horovod"].items()}
    sizes = re.fullmatch(r"(chunk=[1-9]\d{0,6}K,depth=[1-9]\d{0,3},)?bucket=[1-9]\d{0,6}M", found["tuning"])
    if not all(math.isfinite(value) and 0 < value < 1e18 for value in numbers.values()) or not sizes:
        raise ValueError("a size or a time is none")
    if found["mode"] not in MODES or not {*horovod} <= {*HOROVOD} or not found["hosts"]:
        raise ValueError("no such mode or variable, or no hosts")
    return Profile(
        tuple(map(str, found["hosts"])), parse_topology(str(found["topology"]), where), int(found["major"]),
        found["mode"], found["tuning"], {name: str(found["horovod"][name]) for name in horovod},
        int(numbers["gradient"]), numbers["seconds"], numbers["usual"], str(found["when"])[:10],
    )  # fmt: skip


def render_profiles(profiles: Iterable[Profile]) -> str:
    """Write profiles as JSON."""
    rows = [{**one._asdict(), "topology": str(one.topology)} for one in profiles]
    return json.dumps({"profiles": rows}, indent=1) + "\n"


def kept(profiles: Iterable[Profile], new: Profile) -> tuple[Profile, ...]:
    """Return profiles with a new one in the place of what was kept for the same job."""
    return (new, *(one for one in profiles if not one.same_job(new.topology, new.major)))
