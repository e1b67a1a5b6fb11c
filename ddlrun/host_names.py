"""Host names and ranges such as n[01-16]: check and expand."""

import _socket  # ipaddress would take 0.8 ms to import
import math
import re
from itertools import chain, product

from ddlrun.errors import InputError

# A range that means more hosts than this is a typing error.
MOST_HOSTS = 1_000_000

# The patterns stay text: `re` compiles and caches those that a run uses.
NAME = r"(?![-.])[A-Za-z0-9._-]{1,253}(?<![-.])"
_IPV4 = r"[0-9]{1,9}(?:\.[0-9]{1,9}){3}"
BRACKET = r"\[([^\[\]]*)\]"
_RANGE = r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?"


def expand_names(text: str, place: str) -> list[str]:
    """Return the host names of a name or range, in the order in which they are written; a name may occur twice.

    Raises InputError where it is malformed.

    >>> expand_names("n[9-10,01]", "hosts"), expand_names("r[2,1]n[1-2]", "hosts")
    (['n9', 'n10', 'n01'], ['r2n1', 'r2n2', 'r1n1', 'r1n2'])
    """
    pieces = re.split(BRACKET, text)  # names and, at odd indexes, the ranges between them
    stem = "0".join(pieces[::2])
    if "[" in stem or "]" in stem:
        raise InputError(f"{place}: {text!r} has an unmatched bracket; write a range as n[1-4,7] or n[01-16]")
    check_host_name(stem, place)
    brackets = [[_parse_range(part, text, place) for part in ranges.split(",")] for ranges in pieces[1::2]]
    count = math.prod(sum(len(numbers) for numbers, _ in ranges) for ranges in brackets)
    if count > MOST_HOSTS:
        raise InputError(f"{place}: {text!r} means {count} hosts; write at most {MOST_HOSTS}")
    columns = [[f"{number:0{width}}" for numbers, width in ranges for number in numbers] for ranges in brackets]
    alternatives = chain.from_iterable(zip(([name] for name in pieces[::2]), [*columns, [""]], strict=True))
    return ["".join(parts) for parts in product(*alternatives)]


def _parse_range(part: str, text: str, place: str) -> tuple[range, int]:
    """Return the numbers of a range and the width to which they are padded, that of the first one as in Slurm."""
    match = re.fullmatch(_RANGE, part)
    if not match:
        raise InputError(f"{place}: {part!r} in {text!r} is not a range; write a range as n[1-4,7] or n[01-16]")
    low, high, step = match[1], match[2] or match[1], int(match[3] or 1)
    if int(high) < int(low) or not step:
        raise InputError(f"{place}: the range {part!r} in {text!r} is empty; write the smaller number first")
    if high.startswith("0") and len(high) != len(low):
        raise InputError(
            f"{place}: the ends of {part!r} in {text!r} are padded differently; pad both to the same width"
        )
    return range(int(low), int(high) + 1, step), len(low)


def check_host_name(name: str, place: str) -> str:
    """Return a host name unchanged. Raises InputError, beginning with `place`, where it is not valid."""
    if re.fullmatch(_IPV4, name) and max(map(int, name.split("."))) > 255:
        raise InputError(f"{place}: {name!r} is not an IP address; its numbers are 0 to 255")
    if re.fullmatch(NAME, name) or _is_ipv6(name):
        return name
    if not name:
        raise InputError(f"{place}: a host name is missing")
    if "@" in name:
        raise InputError(f"{place}: {name!r} names a user; set User in ~/.ssh/config and write the host name alone")
    several = all(re.fullmatch(NAME, word) for word in re.split(r"[\s;]+", name))
    remedy = "put commas between hosts" if several else "use letters, digits, '.', '-' and '_'"
    raise InputError(f"{place}: {name!r} is not a host name; {remedy}")


def _is_ipv6(name: str) -> bool:
    try:
        _socket.inet_pton(_socket.AF_INET6, name)
    except (OSError, ValueError):
        return False
    return True
