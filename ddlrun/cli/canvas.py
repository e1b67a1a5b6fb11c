"""The terminal on which pictures are drawn."""

import shutil
import sys

from ddlrun.report.picture import ASCII, UNICODE, Canvas


def terminal_canvas() -> Canvas:
    """Return the width and the characters of the terminal."""
    style = UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    return Canvas(shutil.get_terminal_size((100, 24)).columns, style)
