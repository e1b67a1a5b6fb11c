"""The placement options of a launch and of gen-rankfile."""

from collections.abc import Mapping
from typing import Any

from ddlrun.errors import InputError
from ddlrun.mapping.policy import PlacementPolicy


def read_policy(options: Mapping[str, Any]) -> PlacementPolicy:
    """Read the placement options. Raises InputError where one is malformed."""
    return PlacementPolicy(
        reserve_cores=options["reserve_cores"] or 0,
        cores_per_rank=options["cores_per_rank"],
        bind=options["bind"],
        packing=options["packing"],
        threads_per_core=options["threads_per_core"],
        gpu_order=None if options["gpu_order"] is None else _parse_gpu_order(str(options["gpu_order"])),
        core_kinds=options["core_kinds"],
    )


def _parse_gpu_order(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if any(not (word.isascii() and word.isdigit()) for word in words) or len(set(words)) < len(words):
        raise InputError(
            f"`--gpu-order` {text!r} is not a list of different numbers; write each GPU's number once, such as 2,3,0,1"
        )
    return tuple(map(int, words))
