"""Placements on described machines: reviewed pictures and rank files, compared with real mpiruns."""

import pytest

from tests.goldens.__main__ import FOLDER, PLACEMENTS, drawn, placed
from tests.machines.facts import load
from tests.machines.render_hwloc import render_hwloc
from tests.support.oracle import map_ranks
from tests.support.shapes import cores_by_package


@pytest.mark.parametrize("name", PLACEMENTS)
def test_golden(name: str) -> None:
    assert drawn(name) == (FOLDER / f"{name}.txt").read_text(), "if this change is meant: make goldens, and look at it"


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_real_mpirun_agrees_with_the_golden(name: str, major: int, mpirun: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    ranks = text[text.index("#golden") :]
    machine = render_hwloc(load(PLACEMENTS[name][0]))
    assert map_ranks(major, ranks, machine, mpirun=mpirun) == cores_by_package(placed(name))
