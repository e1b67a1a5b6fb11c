"""House rules that no linter checks: how docstrings begin, which names are used, and that each class name is unique."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ddlrun"
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}

# A docstring names its object: "Return the ranks on each host", not "Say which ranks are where".
QUESTION = re.compile(r"(What|How|Where|Whether|Which|Who|Why)\b")
VAGUE = re.compile(r"(Say|Tell|Return (what|whether|which|why|how|who|where))\b")
# A name says what its value is.
NO_NAMES = {"one", "found", "said", "told", "asked"}
# What runs on hosts, beside each rank: modules that cost start-up time are imported late, or not at all.
ON_HOSTS = ("rank/", "agent/", "ship/host/", "ranges.py", "unauthenticated.py")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

each_module = pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(PACKAGE)))


@each_module
def test_docstrings_name_their_object(path: Path) -> None:
    tree = TREES[path]
    assert not QUESTION.match(ast.get_docstring(tree) or "")
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    assert [docstring for docstring in docstrings if VAGUE.match(docstring)] == []


@each_module
def test_names_are_nouns(path: Path) -> None:
    assert set(bound_names(TREES[path])) & NO_NAMES == set()


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of variables, parameters, fields and attributes that a module assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.strip("_")


def test_a_class_name_occurs_once() -> None:
    names = [node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_type_checking_comes_from_typing_above_hosts() -> None:
    names = [str(path.relative_to(PACKAGE)) for path, tree in TREES.items() if "TYPE_CHECKING" in bound_names(tree)]
    assert [name for name in names if not name.startswith(ON_HOSTS)] == []
