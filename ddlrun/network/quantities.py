"""Bytes, rates and times as users write them, and as they are shown."""

import re

from ddlrun.errors import InputError

BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"


def parse_bytes(text: str, where: str) -> int:
    """Parse 100MB, 64 KiB, 1.5GB. Raises InputError.

    >>> parse_bytes("100MB", "--gradient"), parse_bytes("64 KiB", "burst")
    (100000000, 65536)
    """
    match = re.fullmatch(rf"{_NUMBER} ?([kmgt]i?)?b", text.strip().lower())
    size = float(match[1]) * BYTES[match[2] or ""] if match else 0
    if size < 1:
        raise InputError(f"{where}: {text!r} is no size; write it with its unit, as in 100MB or 64KiB")
    return round(size)


def parse_rate(text: str, where: str) -> float:
    """Parse 100 Gbit/s, 12.5 GB/s, or tc's 200mbit; return bytes a second. Raises InputError.

    >>> parse_rate("100 Gbit/s", "bandwidth"), parse_rate("25 GB/s", "bandwidth")
    (12500000000.0, 25000000000.0)
    """
    match = re.fullmatch(rf"{_NUMBER} ?([kmgt]i?)?(b/s|bit(?:/s)?)", text.strip().lower())
    rate = float(match[1]) * BYTES[match[2] or ""] / (8 if match[3].startswith("bit") else 1) if match else 0
    if rate <= 0:
        raise InputError(f"{where}: {text!r} is no rate; write it with its unit, as in 100 Gbit/s or 12.5 GB/s")
    return rate


def parse_seconds(text: str, where: str) -> float:
    """Parse 5 us, 120ms, 2.5s, 3m, 1h. Raises InputError.

    >>> parse_seconds("120ms", "--compute")
    0.12
    """
    match = re.fullmatch(rf"{_NUMBER} ?(us|ms|s|m|h)", text.strip().lower().replace("µ", "u"))
    if not match:
        raise InputError(f"{where}: {text!r} is no time; write it with its unit, as in 5us, 120ms or 2s")
    return float(match[1]) * SECONDS[match[2]]


def shown_bytes(size: float) -> str:
    """Write bytes with 3 digits.

    >>> shown_bytes(102228128), shown_bytes(0)
    ('102 MB', '0 B')
    """
    return _shown(size, "B", ("", "k", "M", "G", "T", "P"))


def shown_size(size: int) -> str:
    """Write a size as one asks for it: powers of 1024 by their own names.

    >>> shown_size(65536), shown_size(8), shown_size(10**6)
    ('64 KiB', '8 B', '1 MB')
    """
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {name}"
    return shown_bytes(size)


def shown_rate(rate: float) -> str:
    """Write a rate in bits.

    >>> shown_rate(12.5e9)
    '100 Gbit/s'
    """
    return _shown(rate * 8, "bit/s", ("", "k", "M", "G", "T", "P"))


def shown_seconds(seconds: float, digits: int = 3) -> str:
    """Write a time.

    >>> shown_seconds(0.01234), shown_seconds(2.5), shown_seconds(2.58772, 4)
    ('12.3 ms', '2.5 s', '2.588 s')
    """
    return _shown(seconds * 1e6, "s", ("u", "m", ""), digits) if seconds < 1000 else f"{seconds:,.0f} s"


def _shown(value: float, unit: str, prefixes: tuple[str, ...], digits: int = 3) -> str:
    for prefix in prefixes[:-1]:
        if float(f"{value:.{digits}g}") < 1000:
            return f"{value:.{digits}g} {prefix}{unit}"
        value /= 1000
    return f"{value:.{digits}g} {prefixes[-1]}{unit}"
