"""Published figures: links by their line rates, and the number of parameters of some models.

Line rates come without latencies: those are the ones that NCCL assumes for a step of a ring (NVIDIA/nccl,
src/graph/tuning.cc: 3.4 us over NVLink, 14 us over a network). Measured figures, in a file for --network, are better.
"""

import re
from dataclasses import replace

from ddlrun.errors import InputError
from ddlrun.network.fabric import Fabric, Link

NVLINK_STEP, NETWORK_STEP = 3.4e-6, 14e-6
# Data per frame on the wire: IP and TCP take 52 of 1500 bytes (TCP with time stamps); preamble, Ethernet header,
# checksum and gap take 38 more.
ETHERNET = 1448 / 1538
# Packets of 4096 bytes with 26 of headers and checksums (InfiniBand Architecture Specification: LRH, BTH, ICRC, VCRC).
INFINIBAND = 4096 / 4122

_GBIT, _GBYTE = 1e9 / 8, 1e9

# Inside a host, per GPU and direction: links x GB/s per link (NVIDIA's white papers on P100, V100, A100, H100 and
# Blackwell, which add up both directions: 160, 300, 600, 900, 1800 GB/s).
INSIDE = {
    "nvlink1": Link(4 * 20 * _GBYTE, NVLINK_STEP),
    "nvlink2": Link(6 * 25 * _GBYTE, NVLINK_STEP),
    "nvlink3": Link(12 * 25 * _GBYTE, NVLINK_STEP),
    "nvlink4": Link(18 * 25 * _GBYTE, NVLINK_STEP),
    "nvlink5": Link(18 * 50 * _GBYTE, NVLINK_STEP),
}
# Between hosts, per port and direction; InfiniBand with 4 lanes, at their data rate.
BETWEEN = {
    **{f"{rate}gbe": Link(rate * _GBIT, NETWORK_STEP, ETHERNET) for rate in (10, 25, 100, 200, 400)},
    "ib-edr": Link(100 * _GBIT, NETWORK_STEP, INFINIBAND),
    "ib-hdr": Link(200 * _GBIT, NETWORK_STEP, INFINIBAND),
    "ib-ndr": Link(400 * _GBIT, NETWORK_STEP, INFINIBAND),
}

# Parameters. torchvision: num_params of its weights; bert: the README of google-research/bert; unet3d: Cicek and
# others, 3D U-Net, 2016.
MODELS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "vgg16": 138_357_544,
    "inception-v3": 27_161_264,
    "vit-b-16": 86_567_656,
    "bert-base": 110_000_000,
    "bert-large": 340_000_000,
    "unet3d": 19_069_955,
}
FLOAT32 = 4


def gradient_of(model: str) -> int:
    """Return the bytes of a model's gradients in float32."""
    return MODELS[model] * FLOAT32


def parse_links(text: str, hosts_per_rack: int | None) -> Fabric:
    """Parse presets such as nvlink2,2xib-edr,4:1 into a fabric.

    - inside a host: one of INSIDE; without it no limit
    - a host's NICs: one of BETWEEN, as NUMBERxNAME for several
    - a rack's uplink: a second one of BETWEEN, or N:1, the ratio of the bandwidth of all NICs of a rack to its uplink

    Raises InputError.
    """
    inside, between, ratio = Link(), list[Link](), None
    for word in text.lower().split(","):
        match = re.fullmatch(r"(?:([1-9][0-9]{0,4})x)?([a-z0-9-]+)", word.strip())
        oversubscribed = re.fullmatch(r"([1-9][0-9]{0,3}(?:\.[0-9]{1,3})?):1", word.strip())
        room = ratio is None and len(between) < 2
        if match and match[2] in INSIDE and not match[1] and inside == Link():
            inside = INSIDE[match[2]]
        elif match and match[2] in BETWEEN and room:
            between.append(replace(BETWEEN[match[2]], parallel=int(match[1] or 1)))
        elif oversubscribed and ratio is None and len(between) == 1:
            ratio = float(oversubscribed[1])
        else:
            raise InputError(f"--links {text!r}: unknown or misplaced preset {word!r}; {_remedy()}")
    if not between:
        raise InputError(f"--links {text!r}: no link between hosts; {_remedy()}")
    uplink = between[1] if len(between) > 1 else Link()
    if ratio is not None:
        if hosts_per_rack is None:
            raise InputError(
                f"--links {text!r}: the ratio {ratio:g}:1 needs the hosts per rack; give `--topology` XxYxZ or "
                "`--racks`"
            )
        nic = between[0]
        uplink = replace(nic, bandwidth=nic.bandwidth * nic.parallel * hosts_per_rack / ratio, parallel=1)
    return Fabric(
        (inside, between[0], uplink, Link()),
        name=f"presets {text}",
        source="with nominal rates",
        hosts_per_rack=hosts_per_rack,
    )


def _remedy() -> str:
    return (
        f"write one of {', '.join(INSIDE)}, then one of {', '.join(BETWEEN)} (2xib-edr for two of them), then the "
        "uplink of a rack as another one or as 4:1; or name a YAML file"
    )
