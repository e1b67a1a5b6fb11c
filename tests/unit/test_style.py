"""House rules that no linter checks: how docstrings begin, which names are used, and that each class name is unique."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.argv import options_by_name

PACKAGE = Path(__file__).parents[2] / "ddlrun"
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}

# A docstring names its object: "Return the ranks on each host", not "Say which ranks are where".
QUESTION = re.compile(r"(What|How|Where|Whether|Which|Who|Why)\b")
VAGUE = re.compile(r"(Say|Tell|Return (what|whether|which|why|how|who|where))\b")
# A name says what its value is.
NO_NAMES = {"one", "found", "said", "told", "asked"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# What runs on hosts, beside each rank, pays for its start once per rank.
ON_HOSTS = (
    "__init__.py",
    "agent/",
    "ddl/transports/tcp/",
    "errors.py",
    "keeper/",
    "preflight/host_",
    "preflight/peer.py",
    "ranges.py",
    "ship/host/",
    "unauthenticated.py",
    "wire/",
)
ABOVE_HOSTS = [name for path in TREES if not (name := str(path.relative_to(PACKAGE))).startswith(ON_HOSTS)]
# Imports that are not ordinary ones at the top, at most, and what each says: the time that it would cost there.
MOST_LATE = 60
LATE = re.compile(r" - (\d[\d.]* m?s|seconds)\b")
# Modules whose records are NamedTuples: a launch defines those of these rooms, which as dataclasses would take 37 ms of
# its start, and those of ddl are made or compared per message, per tensor or per call. All others are dataclasses.
NAMED_TUPLES = (
    "allreduce_algorithms.py", "application/", "cli/options/argv.py", "cli/options/translation.py", "hangs/",
    "environment/", "hosts.py", "machine/", "managers/", "mapping/", "network/addresses.py",
    "network/subnet_selection.py", "plan/", "preflight/", "remote/agent.py", "remote/probe.py", "remote/processes.py",
    "report/boxes.py", "report/picture.py",
    "remote/tasks.py",
    "runs/history.py", "runs/orphans.py", "runs/output_order.py", "runs/registry.py", "runs/retention.py",
    "schedulers/__init__.py",
    "ship/request.py", "supervise/", "topology.py",
    "ddl/group/block_chunks.py", "ddl/group/flat.py", "ddl/group/operation.py", "ddl/group/reduce_ops.py", "ddl/lms/",
    "ddl/schedules/", "ddl/torch/backend/works.py", "ddl/transports/nccl/pipeline.py",
)  # fmt: skip


def test_docstrings_name_their_object() -> None:
    trees = [(path, tree) for path, tree in TREES.items() if QUESTION.match(ast.get_docstring(tree) or "")]
    nodes = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    vague = [(path, node) for path, node in nodes if VAGUE.match(ast.get_docstring(node) or "")]
    assert [(path, ast.get_docstring(node)) for path, node in [*trees, *vague]] == []


def test_names_are_nouns() -> None:
    assert [(path, name) for path, tree in TREES.items() for name in bound_names(tree) if name in NO_NAMES] == []


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of variables, parameters, fields and attributes that a module assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.strip("_")


# What wire/ replaces, which has classes of the same names.
REPLACED = ("ddl/transports/tcp/connection.py",)


def test_a_class_name_occurs_once() -> None:
    trees = [tree for path, tree in TREES.items() if str(path.relative_to(PACKAGE)) not in REPLACED]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_type_checking_comes_from_typing_above_hosts() -> None:
    assert [path for path in ABOVE_HOSTS if "TYPE_CHECKING" in bound_names(TREES[PACKAGE / path])] == []


def test_late_imports_above_hosts_are_few_and_give_their_cost() -> None:
    lines = [line for path in ABOVE_HOSTS for line in (PACKAGE / path).read_text().splitlines()]
    reasons = [line.partition("PLC0415")[2] for line in lines if "# noqa: PLC0415" in line]
    assert [reason for reason in reasons if not LATE.match(reason)] == []
    assert len(reasons) <= MOST_LATE


def test_errors_name_options_of_launch_in_backticks() -> None:
    names = {name for name in options_by_name(launch.params) if name.startswith("--")}
    raised = [node for path, tree in TREES.items() for node in raises(path, tree)]
    texts = [
        n.value for node in raised for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    assert [text for text in texts if names.intersection(re.findall(r"(?<![`\w-])--[a-z][a-z-]*", text))] == []


def raises(path: Path, tree: ast.Module) -> list[ast.Raise]:
    """Return the statements that raise an error in a module that runs in a launch."""
    in_launch = path.relative_to(PACKAGE).parts[0] not in {"agent", "cli", "ddl", "measure", "metrics", "keeper"}
    return [node for node in ast.walk(tree) if isinstance(node, ast.Raise)] if in_launch else []


def test_records_above_hosts_are_frozen() -> None:
    nodes = [(path, node) for path in ABOVE_HOSTS for node in ast.walk(TREES[PACKAGE / path])]
    classes = [(path, node) for path, node in nodes if isinstance(node, ast.ClassDef)]
    named = [(path, node.name) for path, node in classes if "NamedTuple" in map(ast.unparse, node.bases)]
    assert [(path, name) for path, name in named if not path.startswith(NAMED_TUPLES)] == []
    decorators = [(path, ast.unparse(part)) for path, node in classes for part in node.decorator_list]
    dataclasses = [(path, text) for path, text in decorators if text.startswith("dataclass")]
    assert [(path, text) for path, text in dataclasses if text != "dataclass(frozen=True, slots=True)"] == []
