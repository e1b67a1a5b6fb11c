"""Sizes that the allreduce works with, their measured defaults, and the text that sets them."""

from typing import Any, NamedTuple

from ddlrun.ddl.wire import parse_wire
from ddlrun.errors import InputError

KIB, MIB = 1024, 1024 * 1024
UNITS = {"": 1, "K": KIB, "M": MIB, "G": 1024 * MIB}


class Tuning(NamedTuple):
    """Bytes of a chunk, chunks in flight, bytes up to which MPI's flat allreduce serves, bytes of a bucket.

    `explore`: the reductions that mode p may spend on a size to find the best way; 0: it takes the sizes before.
    `wire`: what float32 travels as, for `wire.parse_wire`; what `flat` counts as small travels as it is.
    """

    chunk: int = 96 * KIB
    depth: int = 8
    flat: int = 64 * KIB
    bucket: int = 4 * MIB
    explore: int = 40
    wire: str = ""


# Measured. Between hosts small chunks fill all links at once; halves of 96 KiB still go eagerly over TCP (to 64 KiB).
# In a host's shared memory there is one link, each chunk costs, and MPI's own allreduce is the faster one as long as
# its temporaries are cheap.
BETWEEN_HOSTS = Tuning()
ONE_HOST = Tuning(chunk=512 * KIB, depth=4, flat=16 * MIB)
NUMBERS = [name for name in Tuning._fields if name != "wire"]


def parse_tuning(text: str, default: Tuning, where: str = "DDLRUN_DDL_TUNING") -> Tuning:
    """Parse "chunk=256K,depth=4"; what is left out is `default`'s, but whoever sets sizes does not want others tried.

    >>> parse_tuning("chunk=256K,depth=4", BETWEEN_HOSTS).chunk
    262144
    """
    found = dict[str, Any]()
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name == "wire":
            parse_wire(value, f"{where}: wire")
            found[name] = value
            continue
        unit = value[-1:].upper() if value[-1:].upper() in UNITS else ""
        number = value[: len(value) - len(unit)]
        least = 0 if name in {"flat", "explore"} else 1
        if name not in NUMBERS or not (number.isascii() and number.isdigit()) or int(number) < least:
            raise InputError(
                f"{where} {text!r}: {part.strip()!r} is not NAME=NUMBER with {', '.join(NUMBERS)}; "
                "write for example chunk=64K,depth=8,flat=64K,bucket=4M,wire=bfloat16"
            )
        found[name] = int(number) * UNITS[unit]
    return default._replace(**{"explore": 0} | found if found.keys() & {"chunk", "depth", "flat"} else found)
