"""Drawings of boxes, words and arrows, written as SVG that is readable on a light and on a dark page."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

# The greatest width of a character, as a share of the font's size: that of DejaVu Sans, the widest usual font.
CHARACTER = {"": 0.6, "bold": 0.68, "code": 0.61}
LINE = 1.3
STYLE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1f2328}
.code{font-family:ui-monospace,"DejaVu Sans Mono",monospace}.bold{font-weight:600}.muted{fill:#59636e}
.paper{fill:#fff}.box{fill:#f6f8fa;stroke:#8c959f}.frame{fill:none;stroke:#8c959f}.strong{fill:#ddf4ff;stroke:#0969da}
.warn{fill:#ffebe9;stroke:#cf222e}.line{fill:none;stroke:#59636e;stroke-width:1.5}.dashed{stroke-dasharray:5 4}
.tip{fill:#59636e}.full{fill:#0969da;stroke:none}.empty{fill:#eaeef2;stroke:#8c959f}
.rank0{fill:#56b4e9}.rank1{fill:#e69f00}.rank2{fill:#4fc3a1}.rank3{fill:#f0e442}.rank{stroke:#59636e}
text.on{fill:#000}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.muted{fill:#9198a1}
.paper{fill:#0d1117}.box{fill:#212830;stroke:#656c76}.frame{stroke:#656c76}.strong{fill:#0c2d6b;stroke:#4493f8}
.warn{fill:#67060c;stroke:#f85149}.line{stroke:#9198a1}.tip{fill:#9198a1}.full{fill:#4493f8}
.empty{fill:#212830;stroke:#656c76}
}"""


class Area(NamedTuple):
    """A rectangle that words take."""

    words: str
    left: float
    top: float
    right: float
    bottom: float


class Point(NamedTuple):
    """A place in a drawing: the distance from the left and from the top, in pixels."""

    x: float
    y: float


class Box(NamedTuple):
    """A rectangle in a drawing, with the points at which arrows begin and end."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> Point:
        """Return the middle of the left side."""
        return Point(self.x, self.y + self.height / 2)

    @property
    def right(self) -> Point:
        """Return the middle of the right side."""
        return Point(self.x + self.width, self.y + self.height / 2)

    @property
    def top(self) -> Point:
        """Return the middle of the upper side."""
        return Point(self.x + self.width / 2, self.y)

    @property
    def bottom(self) -> Point:
        """Return the middle of the lower side."""
        return Point(self.x + self.width / 2, self.y + self.height)


class Drawing:
    """A picture with a title and a description for readers who do not see it.

    Raises ValueError if words are wider than their box.
    """

    def __init__(self, title: str, description: str, width: int, height: int) -> None:
        self.title, self.description = title, description
        self.width, self.height = width, height
        self.areas: list[Area] = []
        self._parts: list[str] = []

    def box(self, box: Box, *lines: str, style: str = "box", font: str = "", size: int = 14) -> Box:
        """Draw a rectangle with lines of words in its middle, and return it."""
        attributes = f'width="{box.width:g}" height="{box.height:g}" rx="4" class="{style}"'
        self._parts.append(f'<rect x="{box.x:g}" y="{box.y:g}" {attributes}/>')
        first = box.y + box.height / 2 - (len(lines) - 1) * size * LINE / 2 + size * 0.36
        for number, line in enumerate(lines):
            if measure(line, font, size) > box.width - 4:
                raise ValueError(f"{self.title}: {line!r} is wider than its box of {box.width:g}")
            at = Point(box.x + box.width / 2, first + number * size * LINE)
            self.words(at, line, anchor="middle", font=font, size=size)
        return box

    def words(self, at: Point, words: str, *, anchor: str = "start", font: str = "", size: int = 14) -> None:
        """Write a line of words; `at` is its beginning, middle or end, on the base line."""
        width = measure(words, font, size)
        left = at.x - {"start": 0, "middle": width / 2, "end": width}[anchor]
        self.areas.append(Area(words, left, at.y - size * 0.8, left + width, at.y + size * 0.2))
        style = f' class="{font}"' if font else ""
        place = f'x="{at.x:g}" y="{at.y:g}" font-size="{size}" text-anchor="{anchor}"'
        self._parts.append(f"<text {place}{style}>{escape(words)}</text>")

    def line(self, points: Sequence[Point], *, style: str = "line") -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="{style}"/>')

    def arrow(self, *points: Point, style: str = "line") -> None:
        """Draw a line through points with a tip at its end."""
        self.line(points, style=style)
        (x1, y1), (x2, y2) = points[-2:]
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
        back = [(x2 - 8 * along[0] + side * across[0], y2 - 8 * along[1] + side * across[1]) for side in (4, -4)]
        tip = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x2, y2), *back])
        self._parts.append(f'<polygon points="{tip}" class="tip"/>')

    def render(self) -> str:
        """Return the drawing as SVG."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">'
        title = f'<title id="title">{escape(self.title)}</title>'
        description = f'<desc id="description">{escape(self.description)}</desc>'
        paper = '<rect width="100%" height="100%" rx="6" class="paper"/>'
        return "\n".join([head, title, description, f"<style>{STYLE}</style>", paper, *self._parts, "</svg>\n"])


def measure(words: str, font: str, size: int) -> float:
    """Return the greatest width that words may take, in pixels."""
    shares = [CHARACTER.get(name, 0) for name in font.split()]
    return len(words) * size * max([CHARACTER[""], *shares])
