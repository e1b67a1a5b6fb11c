"""The text that sets the sizes of an allreduce, such as "chunk=256K,depth=4"."""

from typing import Any

from ddlrun.allreduce_algorithms import MOST_CONNECTIONS, Tuning
from ddlrun.ddl.selection.wire_compression import parse_wire
from ddlrun.errors import InputError
from ddlrun.units import parse_multiple

NUMBERS = [name for name in Tuning._fields if name != "wire"]
MAY_BE_ZERO = {"flat", "explore", "measure"}
MOST = {"connections": MOST_CONNECTIONS}
# Setting one of these sizes turns exploration off.
FIXED_SIZES = {"chunk", "depth", "flat"}


def parse_tuning(text: str, default: Tuning, where: str = "DDLRUN_DDL_TUNING") -> Tuning:
    """Parse "chunk=256K,depth=4". Sizes that are not named are those of `default`.

    Setting chunk, depth or flat turns exploration off, unless explore is set too. Raises InputError if the text is not
    in this format; `where` names its source.

    >>> parse_tuning("chunk=256K,depth=4", Tuning()).chunk
    262144
    """
    fields = dict[str, Any]()
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name == "wire":
            parse_wire(value, f"{where}: wire")
            fields[name] = value
            continue
        size, least = parse_multiple(value), 0 if name in MAY_BE_ZERO else 1
        if name not in NUMBERS or size is None or size < least:
            raise InputError(
                f"{where} {text!r}: {part.strip()!r} is not NAME=NUMBER with {', '.join(NUMBERS)}; "
                "write for example chunk=64K,depth=8,flat=64K,bucket=4M,wire=bfloat16"
            )
        fields[name] = size
        if fields[name] > MOST.get(name, fields[name]):
            raise InputError(f"{where} {text!r}: {name} is at most {MOST[name]}")
    if fields.keys() & FIXED_SIZES:
        fields.setdefault("explore", 0)
    return default._replace(**fields)
