"""Lines of ranks in one stream: their tags, and the ends of unfinished ones."""

import os
import re
import time
import unicodedata
from collections.abc import Iterable

from ddlrun.plan.supervision import OutputStyle
from ddlrun.ranges import render_ranges
from ddlrun.runs.output_order import TagSwitches

# Okabe and Ito's colours, which people with any colour vision can tell apart, on terminals with 256 colours.
SAFE_COLOURS = ("38;5;208", "38;5;74", "38;5;36", "38;5;220", "38;5;32", "38;5;166", "38;5;175")
# Without red and green, on other terminals.
FEW_COLOURS = ("36", "33", "35", "34", "96", "93", "95", "94")
# Colours, and movements of the cursor.
ESCAPE = r"\x1b\[[0-9;:?]*[A-Za-z]"
# The cells of a row of a terminal whose size is not known.
MOST_CELLS = 1 << 16


def tag_lines(block: bytes, tag: bytes) -> bytes:
    r"""Put a tag before each line; a carriage return ends a line, too.

    >>> tag_lines(b"a\nb\r\n50%\r60%\r", b"[0] ")
    b'[0] a\n[0] b\r\n[0] 50%\r[0] 60%\r'
    """
    if not tag or not block:
        return block
    if b"\r" not in block:
        return tag + block[:-1].replace(b"\n", b"\n" + tag) + block[-1:]
    return tag + re.sub(rb"(\r\n|\n|\r(?!\n))(?=[\s\S])", lambda match: match[0] + tag, block)


def fit_rewritten(block: bytes, cells: int, *, last: bool) -> bytes:
    r"""Cut lines that are rewritten to the cells of a terminal, which could not erase a line of two rows.

    These are the lines that end with a carriage return, and perhaps the `last` one, which is unfinished.

    >>> fit_rewritten(b"printed\n50% ###\r60% ###\r70% ###", 5, last=True)
    b'printed\n50% #\r60% #\r70% #'
    """
    return re.sub(
        rb"[^\r\n]+(?=\r(?!\n)|\Z)" if last else rb"[^\r\n]+(?=\r(?!\n))", lambda line: _cut(line[0], cells), block
    )


def _cut(line: bytes, cells: int) -> bytes:
    """Return the beginning of a line that fits into cells of a terminal; escape sequences take none, and are kept."""
    kept, used = "", 0
    for part in re.split(f"({ESCAPE})", line.decode(errors="surrogateescape")):
        if re.fullmatch(ESCAPE, part):
            kept += part
            continue
        for character in part:
            wide = unicodedata.east_asian_width(character) in "WF"
            used += 0 if unicodedata.combining(character) else 1 + wide
            kept += character if used <= cells else ""
    return kept.encode(errors="surrogateescape")


class LineMerger:
    """The lines of several owners in one stream: another owner's output ends an unfinished line.

    On a terminal, it replaces a line that its owner keeps rewriting, such as a progress bar.
    """

    def __init__(self, terminal: int | None = None) -> None:
        """Merge lines for a file, or for the terminal at a file descriptor."""
        self._terminal = terminal
        self._owner: object = None
        """The owner of the line in which the next output begins; None: it begins a new line."""
        self._open = False
        """Whether that line has text before the next output."""
        self._rewriters: set[object] = set()
        """The owners whose last line began after a carriage return, or ended with one."""

    @property
    def inside_a_line(self) -> bool:
        """Whether the last line is unfinished."""
        return self._open

    def join(self, owner: object, block: bytes, tag: bytes, *, raw: bool = False) -> bytes:
        """Return the bytes to write for a block of an owner's lines, each after a tag.

        The lines of an owner that controls the terminal are `raw`: never replaced.
        """
        if not block:
            return b""
        same = owner == self._owner
        goes_on = self._open and same
        kept = self._owner is None or same or not (self._open or self._terminal is not None)
        end = b"" if kept else self.end_line()
        _, newline, last = block.rpartition(b"\n")
        if newline or raw:
            self._rewriters.discard(owner)
        if b"\r" in last and not raw:
            self._rewriters.add(owner)
        self._open = not block.endswith((b"\n", b"\r"))
        self._owner = None if block.endswith(b"\n") else owner
        if self._terminal is not None and not raw and (b"\r" in block or owner in self._rewriters):
            block = fit_rewritten(block, self._cells(tag), last=owner in self._rewriters)
        tagged = tag_lines(block, tag)
        return end + (tagged[len(tag) :] if goes_on else tagged)

    def end_line(self) -> bytes:
        """Return the bytes after which a new line begins."""
        owner, self._owner = self._owner, None
        self._open = False
        if owner in self._rewriters and self._terminal is not None:
            return b"\r\x1b[K"
        return b"" if owner is None else b"\n"

    def _cells(self, tag: bytes) -> int:
        """Return the cells of a row of the terminal beside a tag, and many where it has no size."""
        try:
            columns = os.get_terminal_size(self._terminal or 0).columns
        except OSError:
            columns = 0
        return columns - len(re.sub(ESCAPE, "", tag.decode())) if columns else MOST_CELLS


def tag_switches(style: OutputStyle, ranks: int) -> TagSwitches:
    """Return the parts of the tags of ranks."""
    return TagSwitches(ranks > 1 if style.tag is None else style.tag, style.timestamp)


class RankTags:
    """The prefixes of the ranks' lines."""

    def __init__(self, style: OutputStyle, ranks: int) -> None:
        """Take the options, and the number of ranks."""
        self.hosts: dict[int, str] = {}
        """Rank -> its host, once it has started."""
        self.ranks = ranks
        """The number of ranks."""
        self._switches = tag_switches(style, ranks)
        self._colours = SAFE_COLOURS if style.many_colours else FEW_COLOURS

    def render(self, ranks: Iterable[int], *, colour: bool = False, at: float | None = None) -> bytes:
        """Return the prefix of a line that some ranks have printed, now or at a time in seconds since 1970."""
        prefix = time.strftime("%Y-%m-%dT%H:%M:%S ", time.localtime(at)) if self._switches.timestamps else ""
        if self._switches.tags:
            numbers = sorted(ranks)
            first = numbers[0]
            name = f"[{first}@{self.hosts.get(first, '?')}]" if len(numbers) == 1 else f"[{render_ranges(numbers)}]"
            prefix += f"\x1b[{self._colours[first % len(self._colours)]}m{name}\x1b[0m " if colour else f"{name} "
        return prefix.encode()
