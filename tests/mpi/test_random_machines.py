"""Plans and lint, compared with real mpiruns on random machines, on those of tests/machines, and on captured ones.

`python -m tests.machines.random_machines 5000` judges more machines, and reduces those that disagree.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from ddlrun.machine.hwloc import parse_hwloc
from tests.machines.facts import NAMES, load, parse_facts
from tests.machines.random_judge import Judge, judge_divisions, probe
from tests.machines.random_machines import judge_shape, mpirun_of, reproduce
from tests.machines.random_shapes import random_shape
from tests.machines.random_trees import number_caches, write_core_ids
from tests.machines.render_sysfs import write_sysfs
from tests.machines.selection import others_extra
from tests.machines.trees import captured_tree, described_tree
from tests.support import needs

# Machines per test.
TOGETHER = 10
# More ranks than this are not tried one by one.
MOST_SMALL = 12
# The first machine of a test, and the major version of Open MPI; most machines are judged by one of the two.
CASES = [
    *((first, major) for first in (0, TOGETHER) for major in (4, 5)),
    *(pytest.param(first, 4 + first // TOGETHER % 2, marks=pytest.mark.extra) for first in range(20, 50, TOGETHER)),
]


@pytest.fixture(autouse=True)
def compiler() -> None:
    needs.program("gcc", "gcc libc6-dev")


@pytest.mark.parametrize(("first", "major"), CASES, indirect=["major"])
def test_random_machines(first: int, major: int, mpirun: str) -> None:
    judging = mpirun_of(major, mpirun)
    for seed in range(first, first + TOGETHER):
        shape = random_shape(seed)
        for judgement in judge_shape(shape, judging, seed):
            assert judgement.agrees, f"machine {seed}: {judgement.result.value}\n{reproduce(shape, judgement)}"


@pytest.mark.parametrize("name", others_extra(name for name in NAMES if load(name).cores))
def test_described_machines(name: str, major: int, mpirun: str) -> None:
    root = described_tree(name)
    check(Judge(root, probe(root), mpirun_of(major, mpirun)), name)


# Machines on which plans were wrong once, and that no other test has.
FOUND = {
    "a NUMA node inside another": """\
cores: 0 2 1 3
nodes: {0: 0-3, 200: "0,2"}
memory: 1024
""",
    "a NUMA node inside another, and distances": """\
packages: 0-7
cores: 0-7/1
nodes: {0-3: 0-7/2, 200: "1,2"}
memory: 1024
distances: [10 20 12 20 20, 20 10 20 12 20, 12 20 10 20 20, 20 12 20 10 20, 20 20 20 20 10]
""",
    "a node of memory alone that is nearest to two others": """\
packages: 0-2/1
cores: 0-2/1
nodes: {0-2: 0 1 2, 250: ""}
memory: 1024
distances: [10 20 20 16, 20 10 20 20, 20 20 10 16, 16 20 16 10]
""",
    "cores that have caches inside, and one that is inside its cache": """\
packages: 0,8-15
cores: 0 8-15
caches: {1: "0 8,10,12,14 9,11,13,15"}
""",
    "pairs of near nodes around packages, and inside one": """\
packages: 0-8/3
cores: 0-8/1
nodes: {0-4: 0-2 3-5 6 7 8}
memory: 1024
distances: [10 12 20 20 20, 12 10 20 20 20, 20 20 10 12 20, 20 20 12 10 20, 20 20 20 20 10]
""",
    "nodes in a chain of the smallest distances": """\
packages: 0-4/1
cores: 0-4/1
nodes: {0-4: 0 1 2 3 4}
memory: 1024
distances: [10 16 20 20 11, 16 10 11 20 20, 20 11 10 20 11, 20 20 20 10 20, 11 20 11 20 10]
""",
    "a node of memory alone that is near to two others, of which one is near to a third": """\
packages: 0-5/2
cores: 0-5/1
nodes: {0-2: 0-1 2-3 4-5, 250: ""}
memory: 1024
distances: [10 20 20 12, 20 10 11 20, 20 11 10 12, 12 20 12 10]
""",
    "a node of memory alone that is near to two others, and to one that overlaps them": """\
packages: 0-7
cores: 0-7/1
nodes: {0: 0-1, 1: 4-5, 2: 0-3, 3: 6-7, 250: ""}
memory: 1024
distances: [10 20 20 20 20, 20 10 20 20 20, 20 20 10 20 20, 20 20 20 10 20, 12 12 12 20 10]
""",
    "a NUMA node that crosses caches, with others near to it": """\
cores: 0 2 4 5 1 3
nodes: {0-4: 0 2 4-5 1 3}
memory: 1024
distances: [10 12 12 22 22, 12 10 12 22 22, 12 12 10 22 22, 22 22 22 10 12, 22 22 22 12 10]
caches: {3: "0,2,4 5 1,3"}
""",
    "pairs of near nodes, of which one crosses caches, and fours": """\
cores: 0 2 4 5 1 3 7 9
nodes: {0-7: 0 2 4 5 1 3 7 9}
memory: 1024
distances: [10 12 16 16 22 22 22 22, 12 10 16 16 22 22 22 22, 16 16 10 12 22 22 22 22, 16 16 12 10 22 22 22 22,
            22 22 22 22 10 12 16 16, 22 22 22 22 12 10 16 16, 22 22 22 22 16 16 10 12, 22 22 22 22 16 16 12 10]
caches: {3: "0,2,4 5 1,3,7,9"}
""",
    "firmware that numbers the cores of two dies in turn": """\
packages: 0-7
cores: 0-7/1
nodes: 0-7
memory: 1024
groups: 0-6:2 1-7:2
""",
}


@pytest.mark.parametrize("about", FOUND)
def test_machines_once_planned_wrongly(about: str, major: int, mpirun: str, tmp_path: Path) -> None:
    root = write_sysfs(parse_facts(f"about: {about}\n{FOUND[about]}", "found"), tmp_path)
    check(Judge(root, probe(root), mpirun_of(major, mpirun)), about)


def test_the_folders_of_caches_may_have_any_number(major: int, mpirun: str, tmp_path: Path) -> None:
    facts = parse_facts('about: L2 alone\npackages: 0-3\ncores: 0-3/1\ncaches: {2: "0,2 1,3"}', "caches")
    root = write_sysfs(facts, tmp_path)
    number_caches(root)
    check(Judge(root, probe(root), mpirun_of(major, mpirun)), "from 0 on")


def test_cores_are_those_of_cpuinfo_where_cpu_0_is_offline(major: int, mpirun: str, tmp_path: Path) -> None:
    facts = parse_facts("about: CPU 0 offline\npackages: 0-7/4\ncores: 0-7/2\noffline: 0", "offline")
    root = write_sysfs(facts, tmp_path)
    judging = mpirun_of(major, mpirun)
    check(Judge(root, probe(root), judging), "without core ids")
    write_core_ids(root, facts)
    check(Judge(root, probe(root), judging), "with core ids")


@pytest.mark.extra
def test_captured_trees(capture: Callable[[str], Path], major: int, mpirun: str) -> None:
    for archive in sorted(capture("hwloc-sysfs").glob("*.tar.bz2")):
        root = captured_tree(archive)
        check(Judge(root, probe(root), mpirun_of(major, mpirun)), archive.name)


@pytest.mark.extra
def test_captured_files_of_hwloc(capture: Callable[[str], Path], major: int, mpirun: str, tmp_path: Path) -> None:
    for path in sorted(capture("hwloc-xml").glob("*.xml")):
        text = path.read_text(errors="replace")
        # hwloc 3 has another version number, and equal elements.
        readable = tmp_path / path.name
        readable.write_text(text.replace('<topology version="3.0">', '<topology version="2.0">', 1))
        check(Judge(readable, parse_hwloc(text, path.name), mpirun_of(major, mpirun)), path.name)


def check(judge: Judge, name: str) -> None:
    """Compare plans for each number of ranks on a small machine, and for some on a large one."""
    cores = sum(core.usable for core in judge.machine.cores)
    ranks = [
        number for number in range(1, cores + 1) if number < MOST_SMALL or number in (cores // 2, cores - 1, cores)
    ]
    for judgement in judge_divisions(judge, ranks):
        assert judgement.agrees, f"{name}: {judgement.result.value}\n{judgement.subject}\n{judgement.detail}"
