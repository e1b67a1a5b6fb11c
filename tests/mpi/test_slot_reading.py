"""How each major reads a slot text, and the notation that ddlrun chooses, on machines of every kind."""

from collections.abc import Iterator

import pytest

from ddlrun.machine import Core, Machine
from ddlrun.mapping.slot_notation import BOTH_MAJORS, render_slots
from ddlrun.mapping.slot_reading import pus_of, read_slots
from ddlrun.mapping.slot_text import parse_slots
from tests.support.machine_kinds import KINDS, kinds, machine_of, xml_of
from tests.support.slot_oracle import map_slots

TEXTS = """0 2 0-2 1-4 0,2 0-1,3 0:0 0:1 0:0-1 0:1-2 0:0;0:1 0:0-1;1:0 1:0 1:0-1 1:1 1:1-2 2:0 2:0-1 3:0 0-99
    0:* 1:* s1 2:*""".split()


def shares(machine: Machine) -> Iterator[tuple[Core, ...]]:
    """Yield contiguous shares of a machine's cores, and one with a gap."""
    cores = machine.cores
    for size in (1, 2, 3, len(cores)):
        yield from (cores[first : first + size] for first in range(0, len(cores), size))
    yield cores[::2]


@pytest.mark.parametrize("kind", kinds())
def test_each_major_reads_slot_texts_as_modelled(kind: str, major: int, mpirun: str) -> None:
    readings = {text: reading_of(text, kind, min(major, 5)) for text in TEXTS}
    bound = {text: pus for text, pus in readings.items() if pus}
    if bound:
        assert map_slots(major, list(bound), xml_of(kind), mpirun=mpirun) == list(bound.values())


@pytest.mark.extra
@pytest.mark.parametrize("kind", kinds())
def test_each_major_refuses_slot_texts_as_modelled(kind: str, major: int, mpirun: str) -> None:
    refused = [text for text in TEXTS if reading_of(text, kind, min(major, 5)) is None]
    accepted = [text for text in refused if map_slots(major, [text], xml_of(kind), mpirun=mpirun)]
    assert accepted == []


@pytest.mark.parametrize("kind", kinds())
def test_a_real_mpirun_reads_the_chosen_notation_as_meant(kind: str, major: int, mpirun: str) -> None:
    machine = machine_of(kind)
    chosen = {
        text: pus_of(cores)
        for cores in shares(machine)
        for majors in (BOTH_MAJORS, (min(major, 5),))
        if (text := render_slots(cores, machine, majors)) is not None
    }
    if chosen:
        assert map_slots(major, list(chosen), xml_of(kind), mpirun=mpirun) == list(chosen.values())


def reading_of(text: str, kind: str, major: int) -> frozenset[int] | None:
    ranges = parse_slots(text).ranges
    assert ranges is not None
    return read_slots(ranges, machine_of(kind), major)


# Slot texts of a rank on two cores of the last package, and of a rank on all cores: for both majors, for 5.0 alone.
CHOICES = {
    "equal packages": ("1:0-1", "0-5"),
    "packages of 4 and 2 cores": ("4-5", "0-5"),
    "no packages": ("0-1", "0-3"),
    "a package without cores": ("4-5", "0-5"),
    "a hidden package": ("2-3", "0-3"),
    "one thread first": ("0:0-1", "0:0-3"),
    "one thread first, equal packages": ("1:0-1", "0:0-3;1:0-3"),
    "one thread first, unequal packages": (None, "0:*;1:*"),
    "one thread first, a package without cores": ("2:*", "0:*;2:*"),
    "one thread first, no packages": (None, None),
    "threads without cores": (None, None),
}
CHOICES_OF_5 = {
    "one thread first, unequal packages": ("3-6", "0:*;1:*"),
    "one thread first, no packages": ("0-2", "0-6"),
    "threads without cores": (None, None),
}


@pytest.mark.parametrize(
    ("kind", "majors", "choices"),
    [*((kind, BOTH_MAJORS, choices) for kind, choices in CHOICES.items()),
     *((kind, (5,), choices) for kind, choices in CHOICES_OF_5.items())],
)  # fmt: skip
def test_the_notation_that_is_chosen(
    kind: str, majors: tuple[int, ...], choices: tuple[str | None, str | None]
) -> None:
    machine = machine_of(kind)
    last = machine.packages[-1][:2]
    assert (render_slots(last, machine, majors), render_slots(machine.cores, machine, majors)) == choices


@pytest.mark.parametrize("kind", KINDS)
def test_one_major_can_always_be_written_for(kind: str) -> None:
    machine = machine_of(kind)
    majors = [4] if machine.cores_are_threads else [4, 5]
    assert all(render_slots(cores, machine, (major,)) for cores in shares(machine) for major in majors)
