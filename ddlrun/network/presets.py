"""Published figures: links of several kinds by their line rates, and what gradients some models have.

Latencies are those that NCCL reckons with for a step of a ring (NVIDIA/nccl, src/graph/tuning.cc: 3.4 us over NVLink,
14 us over a network), as line rates come without any. Measured figures are better: a file for --network.
"""

import re

from ddlrun.errors import InputError
from ddlrun.network.fabric import Fabric, Link

NVLINK_STEP, NETWORK_STEP = 3.4e-6, 14e-6
# Of 1500 bytes IP and TCP take 52 (TCP with time stamps); the wire has 38 more (preamble, Ethernet, check sum, gap).
ETHERNET = 1448 / 1538
# Packets of 4096 bytes with 26 of headers and check sums (InfiniBand Architecture Specification: LRH, BTH, ICRC, VCRC).
INFINIBAND = 4096 / 4122

_GBIT, _GBYTE = 1e9 / 8, 1e9

# Inside a host, of one GPU in one direction: links x GB/s of a link (NVIDIA's white papers of P100, V100, A100, H100
# and Blackwell, which add up both directions: 160, 300, 600, 900, 1800 GB/s).
INSIDE = {
    "nvlink1": Link(4 * 20 * _GBYTE, NVLINK_STEP),
    "nvlink2": Link(6 * 25 * _GBYTE, NVLINK_STEP),
    "nvlink3": Link(12 * 25 * _GBYTE, NVLINK_STEP),
    "nvlink4": Link(18 * 25 * _GBYTE, NVLINK_STEP),
    "nvlink5": Link(18 * 50 * _GBYTE, NVLINK_STEP),
}
# Between hosts, one port in one direction; of InfiniBand 4 lanes, at the rate that is left to packets.
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


def parse_links(text: str, hosts_per_rack: int | None, where: str = "--network") -> Fabric:
    """Parse presets such as nvlink2,2xib-edr,4:1 into a fabric.

    Inside a host: one of INSIDE, without it nothing is limited there. Each host's NICs: one of BETWEEN, with NUMBERx
    for several. The uplink of a rack: a second one, or a ratio N:1 of all NICs of a rack to it. Raises InputError.
    """
    inside, between, ratio = Link(), list[Link](), None
    for word in text.lower().split(","):
        match = re.fullmatch(r"(?:([1-9][0-9]{0,4})x)?([a-z0-9-]+)", word.strip())
        oversubscribed = re.fullmatch(r"([1-9][0-9]{0,3}(?:\.[0-9]{1,3})?):1", word.strip())
        if match and match[2] in INSIDE and not match[1] and inside == Link():
            inside = INSIDE[match[2]]
        elif match and match[2] in BETWEEN and len(between) + (ratio is not None) < 2:
            between.append(BETWEEN[match[2]]._replace(parallel=int(match[1] or 1)))
        elif oversubscribed and ratio is None and len(between) == 1:
            ratio = float(oversubscribed[1])
        else:
            raise InputError(f"{where} {text!r}: {word!r} is not known there; {_remedy()}")
    if not between:
        raise InputError(f"{where} {text!r}: nothing between hosts; {_remedy()}")
    uplink = between[1] if len(between) > 1 else Link()
    if ratio is not None:
        if hosts_per_rack is None:
            raise InputError(
                f"{where} {text!r}: {ratio:g}:1 of how many hosts a rack? give --topology XxYxZ or --racks"
            )
        nic = between[0]
        uplink = nic._replace(bandwidth=nic.bandwidth * nic.parallel * hosts_per_rack / ratio, parallel=1)
    return Fabric((inside, between[0], uplink, Link()), f"presets {text}", "by line rates", hosts_per_rack)


def _remedy() -> str:
    return (
        f"write one of {', '.join(INSIDE)}, then one of {', '.join(BETWEEN)}, 2xib-edr for two of "
        "them, then the uplink of a rack as another one or as 4:1; or name a YAML file"
    )
