"""Times and sizes as users write them."""

import re

from ddlrun.errors import InputError

SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
MEBIBYTES = {"m": 1, "g": 1024, "t": 1024**2}
LONGEST = 10**9


def parse_time(text: str, where: str = "--time") -> int:
    """Parse 1:30:00, 2-12:00:00, 90m, 1h30m, or a number of minutes; return seconds. Raises InputError.

    >>> parse_time("1:30:00"), parse_time("1h30m"), parse_time("90"), parse_time("2-12:00:00")
    (5400, 5400, 5400, 216000)
    """
    clock = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,5}):([0-5][0-9]):([0-5][0-9])", text)
    units = re.fullmatch(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", text.lower())
    found = clock or units
    seconds = 0
    if re.fullmatch(r"[0-9]{1,9}", text):
        seconds = int(text) * 60
    elif found is not None:
        seconds = sum(int(part or 0) * size for part, size in zip(found.groups(), SECONDS.values(), strict=True))
    if not 0 < seconds < LONGEST:
        raise InputError(f"{where} {text!r} is no time limit; write 1:30:00, 90m, 2h, or a number of minutes")
    return seconds


def parse_memory(text: str, where: str = "--mem") -> int:
    """Parse 64G, 512M, 1.5T, with or without iB; return MiB, rounded up. Raises InputError.

    >>> parse_memory("64G"), parse_memory("1.5GiB")
    (65536, 1536)
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([mgt])(?:i?b)?", text.lower())
    size = -int(-float(match[1]) * MEBIBYTES[match[2]] // 1) if match else 0
    if not size:
        raise InputError(f"{where} {text!r} is no size; write it with its unit, as in 64G or 512M")
    return size
