"""Placements on real machines: reviewed pictures and rank files, compared with real mpiruns."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.goldens.__main__ import CAPTURED, FOLDER, captured, drawn
from tests.support.oracle import map_ranks
from tests.support.shapes import as_hwloc2, cores_by_package


@pytest.mark.parametrize("name", CAPTURED)
def test_golden(capture: Callable[[str], Path], name: str) -> None:
    capture("hwloc-xml")
    assert drawn(name) == (FOLDER / f"{name}.txt").read_text(), "if this change is meant: make goldens, and look at it"


@pytest.mark.parametrize("name", CAPTURED)
def test_a_real_mpirun_agrees_with_the_golden(
    capture: Callable[[str], Path], name: str, major: int, mpirun: str, tmp_path: Path
) -> None:
    path = as_hwloc2(capture("hwloc-xml") / CAPTURED[name][0], tmp_path)
    text = (FOLDER / f"{name}.txt").read_text()
    ranks = text[text.index("#golden") :]
    assert map_ranks(major, ranks, str(path), mpirun=mpirun) == cores_by_package(captured(name))
