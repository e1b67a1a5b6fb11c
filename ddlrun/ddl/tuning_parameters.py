"""The text that sets the sizes that the allreduce works with."""

from typing import Any

from ddlrun.allreduce_algorithms import Tuning
from ddlrun.ddl.wire_compression import parse_wire
from ddlrun.errors import InputError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
NUMBERS = [name for name in Tuning._fields if name != "wire"]


def parse_tuning(text: str, default: Tuning, where: str = "DDLRUN_DDL_TUNING") -> Tuning:
    """Parse "chunk=256K,depth=4"; what is left out is `default`'s, but whoever sets sizes does not want others tried.

    >>> parse_tuning("chunk=256K,depth=4", Tuning()).chunk
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
