"""How each major reads a slot text, and the notation that ddlrun chooses, on machines of every kind."""

from collections.abc import Iterator

import pytest

from ddlrun.machine import Core, Machine
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.mapping.slot_notation import BOTH_MAJORS, render_slots
from ddlrun.mapping.slot_reading import pus_of, read_slots
from ddlrun.mapping.slot_text import parse_slots
from tests.machines.facts import parse_facts
from tests.machines.render_hwloc import render_hwloc
from tests.support.slot_oracle import map_slots

# Name -> facts, as in the files of tests/machines.
KINDS = {
    "equal packages": "packages: 0-11/6\ncores: 0-11/2",
    "equal packages without SMT": "packages: 0,2,4 1,3,5\ncores: 0-5/1",
    "packages of 4 and 2 cores": "packages: 0-7 8-11\ncores: 0-11/2",
    "packages of 2, 2 and 1 cores": "packages: 0-1 2-3 4\ncores: 0-4/1",
    "no packages": "cores: 0-7/2",
    "neither packages nor SMT": "cores: 0-5/1",
    "a package without cores": "packages: 0-7/2\ncores: 0-7/1\nnodes: 0-7/2\nforbidden: 4-5",
    "a first package without cores": "packages: 0-11/4\ncores: 0-11/2\nnodes: 0-11/4\nforbidden: 0-3",
    "a last package without cores": "packages: 0-5/2\ncores: 0-5/1\nnodes: 0-5/2\nforbidden: 4-5",
    "one thread first": "packages: 0-7\ncores: 0-7/2\nforbidden: 1",
    "one thread first, equal packages": "packages: 0-15/8\ncores: 0-15/2\noffline: 1",
    "one thread first, unequal packages": "packages: 0-3 4-11\ncores: 0-11/2\nforbidden: 1",
    "one thread first, no packages": "cores: 0-7/2\noffline: 1",
    "one thread first, a package without cores": "packages: 0-11/4\ncores: 0-11/2\nnodes: 0-11/4\nforbidden: 1,4-7",
    "two threads first": "packages: 0-11/6\ncores: 0-11/2\nforbidden: 3,5,7,9,11",
    "one package with SMT": "packages: 0-3 4-11\ncores: 0-3/1 4-11/2",
    "forbidden cores": "packages: 0-15/8\ncores: 0-15/2\nforbidden: 2-5,8-9",
    "interleaved numbers": "packages: 0,2,4,6,8,10 1,3,5,7,9,11\ncores: 0-5/1+6\nforbidden: 0,7",
    "threads without cores": "packages: 0-7/4",
    "fast cores last": "packages: 0-9\ncores: 0-3/1 4-9/2",
}
TEXTS = """0 2 0-2 1-4 0,2 0-1,3 0:0 0:1 0:0-1 0:1-2 0:0;0:1 0:0-1;1:0 1:0 1:0-1 1:1 1:1-2 2:0 2:0-1 3:0 0-99
    0:* 1:* s1 2:*""".split()


def xml_of(kind: str) -> str:
    return render_hwloc(parse_facts(f"about: {kind}\n{KINDS[kind]}\n", "machine"))


def machine_of(kind: str) -> Machine:
    return parse_hwloc(xml_of(kind), "machine")


def shares(machine: Machine) -> Iterator[tuple[Core, ...]]:
    """Yield contiguous shares of a machine's cores, and one with a gap."""
    cores = machine.cores
    for size in (1, 2, 3, len(cores)):
        yield from (cores[first : first + size] for first in range(0, len(cores), size))
    yield cores[::2]


@pytest.mark.parametrize("kind", KINDS)
def test_each_major_reads_slot_texts_as_modelled(kind: str, major: int, mpirun: str) -> None:
    readings = {text: reading_of(text, kind, major) for text in TEXTS}
    bound = {text: pus for text, pus in readings.items() if pus}
    if bound:
        assert map_slots(major, list(bound), xml_of(kind), mpirun=mpirun) == list(bound.values())


@pytest.mark.extra
@pytest.mark.parametrize("kind", KINDS)
def test_each_major_refuses_slot_texts_as_modelled(kind: str, major: int, mpirun: str) -> None:
    refused = [text for text in TEXTS if reading_of(text, kind, major) is None]
    accepted = [text for text in refused if map_slots(major, [text], xml_of(kind), mpirun=mpirun)]
    assert accepted == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_mpirun_reads_the_chosen_notation_as_meant(kind: str, major: int, mpirun: str) -> None:
    machine = machine_of(kind)
    chosen = {
        text: pus_of(cores)
        for cores in shares(machine)
        for majors in (BOTH_MAJORS, (major,))
        if (text := render_slots(cores, machine, majors)) is not None
    }
    if chosen:
        assert map_slots(major, list(chosen), xml_of(kind), mpirun=mpirun) == list(chosen.values())


def reading_of(text: str, kind: str, major: int) -> frozenset[int] | None:
    ranges = parse_slots(text).ranges
    assert ranges is not None
    return read_slots(ranges, machine_of(kind), major)


# The slot texts of a rank on the first two cores of the last package, and of a rank on all cores.
