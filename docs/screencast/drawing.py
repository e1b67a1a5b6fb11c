"""An animated SVG of a terminal, without a program in it: each line appears at its time, and the screen scrolls."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from docs.screencast.recording import COLUMNS, ROWS, Event
from docs.screencast.screen import Screen, Span, Version

CHARACTER, LINE, FONT, MARGIN = 7.8, 18, 13, 14
# The last screen stays for this time, then the animation begins again.
LAST_SECONDS = 4.0
# Shares of red, green and blue in the 216 colours 38;5;16 to 38;5;231.
SHARES = (0x00, 0x5F, 0x87, 0xAF, 0xD7, 0xFF)
STYLE = f"""\
text{{font:{FONT}px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}}
.bold{{font-weight:700}}
g g{{animation:0s step-end infinite}}
@media(prefers-reduced-motion:reduce){{g,g g{{animation:none!important}}}}"""


def draw(events: Sequence[Event], title: str, description: str) -> str:
    """Return the SVG of a recording; a reader who prefers no motion sees its last screen."""
    screen = Screen()
    for event in events:
        screen.show(event)
    total = events[-1].seconds + LAST_SECONDS
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    moves, scroll = _scrolling(screen.lines, total)
    lines = [_draw_line(number, versions, total) for number, versions in enumerate(screen.lines)]
    keyframes = "\n".join([scroll, *(frames for _, frames in lines if frames)])
    body = "\n".join(element for element, _ in lines)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>{escape(title)}</title>
<desc>{escape(description)}</desc>
<style>
{STYLE}
{keyframes}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN}" height="{ROWS * LINE}">
<g style="animation:scroll {total:.2f}s step-end infinite;transform:translateY({-moves[-1] * LINE}px)">
{body}
</g>
</svg>
</svg>
"""


def _scrolling(lines: Sequence[Sequence[Version]], total: float) -> tuple[list[int], str]:
    """Return the numbers of the topmost lines, and the keyframes that scroll to each at its time."""
    moves, frames = [0], ["0%{transform:translateY(0)}"]
    for top, versions in enumerate(lines[ROWS:], 1):
        moves.append(top)
        frames.append(f"{_percent(versions[0].seconds, total)}{{transform:translateY({-top * LINE}px)}}")
    return moves, f"@keyframes scroll{{{''.join(frames)}}}"


def _draw_line(number: int, versions: Sequence[Version], total: float) -> tuple[str, str]:
    """Return the elements of a line, and the keyframes at which its versions appear and disappear."""
    ends = [later.seconds for _, later in pairwise(versions)] + [total]
    elements, keyframes = [], []
    for index, (version, end) in enumerate(zip(versions, ends, strict=True)):
        if not version.spans:
            continue
        name, is_last = f"l{number}-{index}", index == len(versions) - 1
        shown = "" if is_last else f"{_percent(end, total)}{{visibility:hidden}}"
        start = f"{_percent(version.seconds, total)}{{visibility:visible}}"
        keyframes.append(f"@keyframes {name}{{0%{{visibility:hidden}}{start}{shown}}}")
        style = f"animation-name:{name};animation-duration:{total:.2f}s;visibility:{'visible' if is_last else 'hidden'}"
        texts = "".join(_draw_span(number, span) for span in version.spans)
        elements.append(f'<g style="{style}">{texts}</g>')
    return "\n".join(elements), "\n".join(keyframes)


def _draw_span(number: int, span: Span) -> str:
    """Return the element of a span, whose characters have a fixed width in any font."""
    bold = ' class="bold"' if span.colour.startswith("1;") else ""
    number_of_colour = re.search(r"38;5;(\d+)$", span.colour)
    fill = f' style="fill:{_colour(int(number_of_colour[1]))}"' if number_of_colour else ""
    place = (
        f'x="{span.column * CHARACTER:.1f}" y="{number * LINE + FONT}" textLength="{len(span.text) * CHARACTER:.1f}"'
    )
    return f"<text {place}{bold}{fill}>{escape(span.text, quote=False)}</text>"


def _colour(number: int) -> str:
    """Return one of the 216 colours.

    >>> _colour(208)
    '#ff8700'
    """
    red, rest = divmod(number - 16, 36)
    return f"#{SHARES[red]:02x}{SHARES[rest // 6]:02x}{SHARES[rest % 6]:02x}"


def _percent(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.2f}%"


def lines_of(events: Sequence[Event]) -> Iterator[str]:
    """Yield the text of each line at the end."""
    screen = Screen()
    for event in events:
        screen.show(event)
    for versions in screen.lines:
        yield "".join(span.text for span in versions[-1].spans)
