"""The keys of a network's YAML file: the types from which its schema is generated."""

from typing import Annotated, TypedDict

from msgspec import Meta

Rate = Annotated[
    str,
    Meta(
        pattern=r"^\s*[0-9]{1,15}(\.[0-9]{1,9})? ?([KMGTkmgt][Ii]?)?([Bb]/[Ss]|[Bb][Ii][Tt](/[Ss])?)\s*$",
        examples=["100 Gbit/s", "12.5 GB/s"],
    ),
]
Time = Annotated[
    str,
    Meta(pattern=r"^\s*[0-9]{1,15}(\.[0-9]{1,9})? ?([UuµMm]?[Ss]|[Mm]|[Hh])\s*$", examples=["5 us", "1.5ms"]),
]
Size = Annotated[str, Meta(pattern=r"^\s*[0-9]{1,15}(\.[0-9]{1,9})? ?([KMGTkmgt][Ii]?)?[Bb]\s*$", examples=["512 KiB"])]
Number = Annotated[int, Meta(ge=1, le=10**9)]


class LinkBandwidthKey(TypedDict):
    """The key that each link needs."""

    bandwidth: Rate
    """Rate of one link in one direction, with its unit."""


class LinkDescription(LinkBandwidthKey, total=False):
    """The links of a level."""

    latency: Time | Annotated[int, Meta(ge=0, le=0)]
    """Time of a message over this link, with its unit; default: that of the level before."""
    payload: Annotated[float, Meta(gt=0, le=1)]
    """Share of the rate that is left to data, after headers; default: 1."""
    parallel: Number
    """Number of such links side by side; default: 1."""
    burst: Size
    """Bytes that the link passes at once after a pause, with their unit; default: none."""


class NicKey(TypedDict):
    """The key that each network needs."""

    nic: LinkDescription
    """The NICs of a host, shared by its ranks."""


class NetworkDescription(NicKey, total=False):
    """The links of a cluster: a file for --links of `ddlrun network plan`."""

    name: str
    source: str
    """The source of the figures."""
    host: LinkDescription | None
    """The link of one rank inside its host; default: no limit."""
    uplink: LinkDescription | None
    """The link of a rack to other racks, shared by its hosts; default: no limit."""
    aisle: LinkDescription | None
    """The link of an aisle to other aisles, shared by its racks; default: no limit."""
    nics: dict[str, Rate] | None
    """Hosts whose NIC has another rate of data than `nic`, with their rates; default: none."""
    hosts_per_rack: Number
    """Number of hosts of a rack; default: Y of the topology."""
    racks_per_aisle: Number
    """Number of racks of an aisle; default: Z of the topology."""
