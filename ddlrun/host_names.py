"""Host names and ranges such as n[01-16]: check and expand."""

import math
import re

from ddlrun.errors import InputError

# A range that means more hosts than this is a typing error.
MOST_HOSTS = 1_000_000

# The patterns stay text: `re` compiles and caches those that a run uses.
NAME = r"(?![-.])[A-Za-z0-9._-]{1,253}(?<![-.])"
BRACKET = r"\[([^\[\]]*)\]"
_RANGE = r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?"


def expand_names(text: str, place: str) -> list[str]:
    """Return the host names of a name or range. Raises InputError where it is malformed."""
    if "[" not in text and "]" not in text:
        return [check_host_name(text, place)]
    count = math.prod(_count(match[1], text, place) for match in re.finditer(BRACKET, text))
    stem = re.sub(BRACKET, "0", text)
    if "[" in stem or "]" in stem:
        raise InputError(f"{place}: {text!r} has an unmatched bracket; write a range as n[1-4,7] or n[01-16]")
    if "][" in text:
        raise InputError(f"{place}: {text!r} has two adjacent brackets; list the names, or write n[1-2]-[1-4]")
    check_host_name(stem, place)
    if count > MOST_HOSTS:
        raise InputError(f"{place}: {text!r} means {count} hosts; write at most {MOST_HOSTS}")
    from ClusterShell.NodeSet import (  # noqa: PLC0415 - 20 ms; a plain list does not need it
        RESOLVER_NOGROUP,
        NodeSet,
        NodeSetException,
    )

    try:
        names = list(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:  # such as digits alone between two brackets
        raise InputError(f"{place}: {text!r} cannot be expanded ({error}); list the names") from None
    if len(names) < count:
        raise InputError(f"{place}: {text!r} names a host twice; write ranges that do not overlap")
    return names


def _count(ranges: str, text: str, place: str) -> int:
    """Count the values of a bracket without building the list, which may be huge."""
    total = 0
    for part in ranges.split(","):
        match = re.fullmatch(_RANGE, part)
        if not match:
            raise InputError(f"{place}: {part!r} in {text!r} is not a range; write a range as n[1-4,7] or n[01-16]")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or not step:
            raise InputError(f"{place}: the range {part!r} in {text!r} is empty; write the smaller number first")
        if match[2] and match[1].startswith("0") and len(match[1]) > 1 and len(match[1]) != len(match[2]):
            raise InputError(
                f"{place}: the ends of {part!r} in {text!r} are padded differently; pad both to the same width"
            )
        total += (high - low) // step + 1
    return total


def check_host_name(name: str, place: str) -> str:
    """Return a host name unchanged. Raises InputError, beginning with `place`, where it is not valid."""
    if re.fullmatch(NAME, name) or _is_ipv6(name):
        return name
    if not name:
        raise InputError(f"{place}: a host name is missing")
    if "@" in name:
        raise InputError(f"{place}: {name!r} names a user; set User in ~/.ssh/config and write the host name alone")
    raise InputError(f"{place}: {name!r} is not a host name; use letters, digits, '.', '-' and '_'")


def _is_ipv6(name: str) -> bool:
    if name.count(":") < 2:
        return False
    import ipaddress  # noqa: PLC0415 - rarely needed

    try:
        ipaddress.IPv6Address(name)
    except ValueError:
        return False
    return "%" not in name
