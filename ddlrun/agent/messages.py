"""Messages to the user."""

from __future__ import annotations

import os


def complain(text: str) -> None:
    """Print a message to standard error."""
    os.write(2, f"ddlrun: {text}\n".encode(errors="replace"))
