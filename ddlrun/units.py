"""Units of the command line and of files: parse and render bytes, rates and times."""

import math
import re

from ddlrun.errors import InputError

# Prefixes of bytes and bits, in lower case: SI, and IEC with "i".
PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SI = ("", "k", "M", "G", "T", "P")
_IEC = ("", "Ki", "Mi", "Gi", "Ti")
LONGEST = 10**9
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"


def parse_bytes(text: str, where: str) -> int:
    """Parse 100MB, 64 KiB, 1.5G or 8B; return bytes. Raises InputError.

    >>> parse_bytes("100MB", "--gradient"), parse_bytes("64 KiB", "burst"), parse_bytes("14G", "--gradient")
    (100000000, 65536, 14000000000)
    """
    match = re.fullmatch(rf"{_NUMBER} ?(?:([kmgt]i?)b?|b)", text.strip().lower())
    size = float(match[1]) * PREFIXES[match[2] or ""] if match else 0
    if size < 1:
        raise InputError(f"{where}: {text!r} is not a size; write it with its unit, as in 100MB or 64KiB")
    return round(size)


def parse_memory(text: str) -> int:
    """Parse 64G, 512M or 1.5T, with or without B or iB; return MiB, rounded up. Raises InputError.

    The prefixes are powers of 1024 in every spelling.

    >>> parse_memory("64G"), parse_memory("1.5GiB")
    (65536, 1536)
    """
    match = re.fullmatch(rf"{_NUMBER}([mgt])(?:i?b)?", text.lower())
    size = math.ceil(float(match[1]) * PREFIXES[f"{match[2]}i"] / PREFIXES["mi"]) if match else 0
    if not size:
        raise InputError(f"--mem {text!r} is not a size; write it with its unit, as in 64G or 512M")
    return size


def parse_multiple(text: str) -> int | None:
    """Parse 256K, 4M or 12, whose prefixes are powers of 1024; return None where the text is no such number.

    >>> parse_multiple("256K"), parse_multiple("12"), parse_multiple("1.5M")
    (262144, 12, None)
    """
    match = re.fullmatch(r"([0-9]{1,18})([kmg]?)", text.lower())
    return int(match[1]) * PREFIXES[match[2] and f"{match[2]}i"] if match else None


def parse_rate(text: str, where: str) -> float:
    """Parse 100 Gbit/s, 12.5 GB/s, or tc's 200mbit; return bytes per second. Raises InputError.

    >>> parse_rate("100 Gbit/s", "bandwidth"), parse_rate("25 GB/s", "bandwidth")
    (12500000000.0, 25000000000.0)
    """
    match = re.fullmatch(rf"{_NUMBER} ?([kmgt]i?)?(b/s|bit(?:/s)?)", text.strip().lower())
    rate = float(match[1]) * PREFIXES[match[2] or ""] / (8 if match[3].startswith("bit") else 1) if match else 0
    if rate <= 0:
        raise InputError(f"{where}: {text!r} is not a rate; write it with its unit, as in 100 Gbit/s or 12.5 GB/s")
    return rate


def parse_seconds(text: str, where: str) -> float:
    """Parse 5 us, 120ms, 2.5s, 3m, 1h or 2d; return seconds. Raises InputError.

    >>> parse_seconds("120ms", "--compute")
    0.12
    """
    match = re.fullmatch(rf"{_NUMBER} ?(us|ms|s|m|h|d)", text.strip().lower().replace("µ", "u"))
    if not match:
        raise InputError(f"{where}: {text!r} is not a time; write it with its unit, as in 5us, 120ms or 2s")
    return float(match[1]) * SECONDS[match[2]]


def parse_time_limit(text: str) -> int:
    """Parse 1:30:00, 2-12:00:00, 90m, 1h30m, or a number of minutes; return seconds. Raises InputError.

    >>> [parse_time_limit(text) for text in ("1:30:00", "1h30m", "90", "2-12:00:00")]
    [5400, 5400, 5400, 216000]
    """
    clock = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,5}):([0-5][0-9]):([0-5][0-9])", text)
    units = re.fullmatch(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?", text.lower())
    match = clock or units
    seconds = 0
    if re.fullmatch(r"[0-9]{1,9}", text):
        seconds = int(text) * 60
    elif match is not None:
        seconds = int(sum(int(count or 0) * SECONDS[unit] for count, unit in zip(match.groups(), "dhms", strict=True)))
    if not 0 < seconds < LONGEST:
        raise InputError(f"--time {text!r} is not a time limit; write 1:30:00, 90m, 2h, or a number of minutes")
    return seconds


def render_bytes(size: float) -> str:
    """Render bytes with 3 significant digits and an SI prefix.

    >>> render_bytes(102228128), render_bytes(0)
    ('102 MB', '0 B')
    """
    return _render(size, "B", _SI)


def render_memory(size: float) -> str:
    """Render bytes of memory or storage with 3 significant digits and an IEC prefix.

    >>> render_memory(3 << 30), render_memory(1536), render_memory(100)
    ('3 GiB', '1.5 KiB', '100 B')
    """
    return _render(size, "B", _IEC, base=1024)


def render_size(size: int) -> str:
    """Render the size of an array as a user would write it: multiples of powers of 1024 with an IEC prefix.

    >>> render_size(65536), render_size(8), render_size(10**6)
    ('64 KiB', '8 B', '1 MB')
    """
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {name}"
    return render_bytes(size)


def render_rate(rate: float) -> str:
    """Render bytes per second as bits per second.

    >>> render_rate(12.5e9)
    '100 Gbit/s'
    """
    return _render(rate * 8, "bit/s", _SI)


def render_byte_rate(rate: float) -> str:
    """Render bytes per second, of storage or of one reduction.

    >>> render_byte_rate(150e9)
    '150 GB/s'
    """
    return f"{render_bytes(rate)}/s"


def render_seconds(seconds: float, digits: int = 3) -> str:
    """Render a time with `digits` significant digits; from 1000 s on in whole seconds.

    >>> render_seconds(0.01234), render_seconds(2.5), render_seconds(2.58772, 4)
    ('12.3 ms', '2.5 s', '2.588 s')
    """
    return _render(seconds * 1e6, "s", ("u", "m", ""), digits) if seconds < 1000 else f"{seconds:,.0f} s"


def render_clock(seconds: float) -> str:
    """Render a time as H:MM:SS.

    >>> render_clock(5400)
    '1:30:00'
    """
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def render_duration(seconds: float) -> str:
    """Render a time in its two largest units.

    >>> render_duration(7.25), render_duration(125), render_duration(7260), render_duration(90000)
    ('7.2 s', '2m05s', '2h01m', '1d01h')
    """
    for unit, part, most in (("m", "s", 3600), ("h", "m", 86400), ("d", "h", math.inf)):
        if 60 <= seconds < most:
            whole, rest = divmod(int(seconds), int(SECONDS[unit]))
            return f"{whole}{unit}{rest // int(SECONDS[part]):02}{part}"
    return f"{seconds:.1f} s"


def _render(value: float, unit: str, prefixes: tuple[str, ...], digits: int = 3, base: int = 1000) -> str:
    for prefix in prefixes[:-1]:
        rounded = float(f"{value:.{digits}g}")
        if max(value, rounded) < base:
            return f"{rounded:g} {prefix}{unit}"
        value /= base
    return f"{value:.{digits}g} {prefixes[-1]}{unit}"
