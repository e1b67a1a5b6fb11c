"""Machines of every kind that concerns the notation of rank files: packages of equal size or not, SMT mixed or not."""

from functools import cache
from typing import Any

import pytest

from ddlrun.machine import Machine
from ddlrun.machine.hwloc import parse_hwloc
from tests.machines.facts import parse_facts
from tests.machines.render_hwloc import render_hwloc

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
    "a hidden package": "packages: 0-11/4\ncores: 0-11/2\nnodes: 0-11/4\nforbidden: 0-3\nforbidden_nodes: 0",
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


@cache
def xml_of(kind: str) -> str:
    return render_hwloc(parse_facts(f"about: {kind}\n{KINDS[kind]}\n", "machine"))


@cache
def machine_of(kind: str) -> Machine:
    return parse_hwloc(xml_of(kind), "machine")


# Kinds that every run of the tests takes; the others are for `make test-all`.
_VARIED = frozenset(
    {
        "equal packages",
        "packages of 4 and 2 cores",
        "a package without cores",
        "one thread first, equal packages",
        "one thread first, unequal packages",
        "one thread first, no packages",
    }
)


def kinds() -> list[Any]:
    """Return parameters, of which most are marked `extra`."""
    return [kind if kind in _VARIED else pytest.param(kind, marks=pytest.mark.extra) for kind in KINDS]
