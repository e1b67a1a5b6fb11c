"""Launches as subprocesses."""

import os
import subprocess


def run(line: list[str], *words: str, **more: object) -> subprocess.CompletedProcess[str]:
    """Run a launch with further words and variables; return its output."""
    environ = {**os.environ, **{name: str(value) for name, value in more.items()}}
    return subprocess.run([*line, *words], capture_output=True, text=True, check=False, env=environ, timeout=300)
