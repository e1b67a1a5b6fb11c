"""The paths of a conda environment in its own files, which name another folder once the environment has moved.

conda writes the folder of an environment, its prefix, into files that were built for a placeholder. In a binary file
each string with the prefix is as long as it was with the placeholder: null bytes fill the rest.
"""

from __future__ import annotations

import os
import re

# Linux before 5.1 cuts a longer first line of a script.
LONGEST_SHEBANG = 127


def replace_prefix(content: bytes, old: str, new: str, longest: int | None) -> bytes:
    """Return the content of a file with another prefix.

    Args:
        content: The content.
        old: The prefix in it.
        new: The prefix in place of it, which is not longer than the placeholder.
        longest: The length of the placeholder of a binary file; None: this is a text.
    """
    pattern, place = re.escape(os.fsencode(old)) + rb"(?![\w-])", os.fsencode(new)
    if longest is None:
        return shorten_shebang(re.sub(pattern, lambda _: place, content))
    padding = longest - len(os.fsencode(old))

    def replace_string(match: re.Match[bytes]) -> bytes:
        text = match[0].rstrip(b"\0")
        moved, count = re.subn(pattern, lambda _: place, text)
        if len(match[0]) - len(text) <= count * padding:  # not from a placeholder
            return match[0]
        return moved.ljust(len(match[0]), b"\0")

    return re.sub(pattern + rb"[^\0]*\0+", replace_string, content)


def shorten_shebang(content: bytes) -> bytes:
    r"""Return a script that finds its interpreter on PATH if its first line is too long.

    >>> shorten_shebang(b"#!/" + b"long/" * 30 + b"bin/perl -w\n")
    b'#!/usr/bin/env -S perl -w\n'
    """
    match = re.match(rb"#! ?(\S+)([^\n]*)", content)
    if match is None or len(match[0]) <= LONGEST_SHEBANG:
        return content
    option = b"-S " if match[2].strip() else b""
    return b"#!/usr/bin/env " + option + os.path.basename(match[1]) + match[2] + content[match.end() :]
