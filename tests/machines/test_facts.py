"""Descriptions of machines: every file, and errors in them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import InputError
from ddlrun.ranges import render_ranges
from tests.machines.cpu_groups import parse_groups
from tests.machines.facts import FOLDER, NAMES, Description, load, parse_facts

PAGE = FOLDER / "README.md"

SMALL = "about: a test\npackages: 0-7/4\ncores: 0-7/2\nnodes: {0: 0-3, 8: 4-7, 252-253: ''}\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_description_is_complete_and_short(name: str) -> None:
    facts = load(name)
    assert facts.about
    assert facts.allowed
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert len(lines) <= 12 + len(facts.distances) + 2 * len(facts.devices)
    assert max(map(len, lines)) <= 120


def test_the_page_has_an_existing_example_and_every_key() -> None:
    text = PAGE.read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    assert example == (FOLDER / "xeon-2x20.yaml").read_text()
    table = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    keys = set(re.findall(r"`([a-z_]+)`", "".join(table)))
    assert keys == set(Description.__struct_fields__)


def test_groups_and_numbers() -> None:
    facts = parse_facts(f"{SMALL}memory: {{0: 100, 8: 90, 252-253: 16}}\n", "test")
    assert {node: render_ranges(cpus) for node, cpus in facts.nodes.items()} == {0: "0-3", 8: "4-7", 252: "", 253: ""}
    assert facts.memory == {0: 100, 8: 90, 252: 16, 253: 16}
    assert list(facts.packages) == [0, 1]
    assert [render_ranges(core) for core in facts.cores] == ["0-1", "2-3", "4-5", "6-7"]


def test_devices_and_links() -> None:
    text = f"""{SMALL}links: {{2: 0-1}}
devices:
  node 8:
    pci0000:17/0000:17:00.0/0000:18:00.0: nvidia
    pci0000:17/0000:17:01.0: nvidia
    pci0000:17/0000:17:02.0: net ib0 rdma mlx5_0
"""
    facts = parse_facts(text, "test")
    assert [gpu.address for gpu in facts.gpus] == ["0000:17:01.0", "0000:18:00.0"]
    assert facts.links == {(0, 1): 2, (1, 0): 2}
    assert [(nic.nets, nic.rdma, render_ranges(nic.near)) for nic in facts.nics] == [(("ib0",), "mlx5_0", "4-7")]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("cores: 0-3\n", "missing required field `about`"),
        (f"{SMALL}cors: 0-7\n", "unknown field `cors`"),
        ("about: a\npackages: 0-3 2-5\ncores: 0-5/1\n", "packages overlap"),
        ("about: a\ncores: 0-3 2-5\n", "cores overlap"),
        ("about: a\npackages: 0-7\ncores: 0-5/2\n", "CPUs 6-7 are in no core"),
        ("about: a\ncores: 0-6/2\n", "'0-6/2': 7 CPUs cannot be divided into groups of 2"),
        ("about: a\ncores: 0..6\n", "'0..6' is not a group of CPUs"),
        (f"{SMALL}offline: 7-9\n", "offline: there are no CPUs 8-9"),
        (f"{SMALL}forbidden: 0-7\n", "no CPU is left"),
        (f"{SMALL}memory: {{1: 5}}\n", "a node is not among the nodes"),
        (f"{SMALL}distances: [10 20, 20 10]\n", "distances: 4 rows of 4 numbers"),
        (f"{SMALL}devices: {{node 1: {{}}, node 3: {{pci0000:00/a: nvidia}}}}\n", "'node 1' is not the place"),
        (f"{SMALL}devices: {{node 8: {{0000/a: nvidia}}}}\n", "'0000/a' is not a path"),
        (f"{SMALL}devices: {{node 8: {{pci0000:00/a: voodoo}}}}\n", "'voodoo' is neither nvidia"),
        (f"{SMALL}links: {{1: 0-1}}\n", "links: there are 0 GPUs"),
        ("about: a\npackages: {0-2: 0-7/4}\n", "2 groups for 3 numbers"),
        ("", "machine test"),
        ("[", "machine test"),
    ],
)
def test_a_wrong_description_is_an_error_that_names_the_machine(text: str, part: str) -> None:
    with pytest.raises(InputError, match=re.escape(part)) as caught:
        parse_facts(text, "test")
    assert str(caught.value).startswith("machine test: ")
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="0123456789-,/+: ", max_size=20))
def test_any_text_is_groups_or_an_error(text: str) -> None:
    try:
        groups = parse_groups(text)
    except ValueError:
        return
    assert all(groups)
