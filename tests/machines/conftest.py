"""Fixture of the tests of machines, whose trees have thousands of files."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Provide a folder that is removed after the test; pytest's own stay until a later run."""
    with tempfile.TemporaryDirectory(prefix="ddlm") as folder:
        yield Path(folder)
