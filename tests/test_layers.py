"""Imports run one way, and each touch of the world stands in one module: read from the source."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ddlrun"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module may import from its own layer and those before it.
LAYERS = [
    ["errors"],
    ["topology", "hosts", "machine", "ways"],
    ["placement", "rankfile", "lint"],
    [
        "schedulers", "shape", "batch", "environment", "frameworks", "ports", "builds", "hierarchical", "mpirun",
        "network", "rank", "output",
    ],
    ["launchers", "racks", "spares", "profiles", "settings", "plan", "report", "watch"],
    ["shell"],
    ["probe", "preflight", "installed", "follow"],
    ["surroundings"],
    ["planning"],
    ["supervise", "run_folder", "known"],
    ["launch", "leftovers"],
    ["cli", "__main__"],
]  # fmt: skip
# What training scripts import: beside the launcher, which knows nothing of it.
RUNTIME = "ddl"
RUNTIME_KNOWS = {"errors", "topology", "ways", RUNTIME}
# Ranks that measure a network: a training script of ours, which nobody imports.
MEASURING = "measure"
MEASURING_KNOWS = {*RUNTIME_KNOWS, "network", MEASURING}
RANK = {name: level for level, layer in enumerate(LAYERS) for name in layer}

# What -> the modules that may import or name it.
ALONE = {
    "subprocess": {"shell", "rank"},
    "ClusterShell.Task": {"shell"},
    "click": {"cli"},
    "mpi4py": {"ddl", "measure"},
    "numpy": {"ddl", "measure"},
    "torch": {"ddl", "measure"},
    "keras": {"ddl"},
    "rich": {"report"},
    "jinja2": {"batch", "report"},
    "matplotlib": {"report"},
}


# Frameworks -> the files below ddl that may import them; arrays asks for one dtype of a tensor that it was given.
FRAMEWORKS = {
    "torch": {
        "torch.py", "optimizer.py", "hook.py", "process_groups.py", "wavefront.py", "devices.py", "staging.py",
        "arrays.py", "lms/block.py", "lms/device.py", "lms/hooks.py", "lms/swap.py",
    },
    "keras": {"keras.py"},
}  # fmt: skip


def part(path: Path) -> str:
    """Return the top-level module or package below ddlrun that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def names(path: Path) -> set[str]:
    """Return attributes of os that a file uses."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("ddlrun.")} - {"__version__"}
    if part(path) == RUNTIME:
        assert ours <= RUNTIME_KNOWS
    elif part(path) == MEASURING:
        assert ours <= MEASURING_KNOWS
    elif part(path) != "__init__":
        assert not {RUNTIME, MEASURING} & ours
        assert {name for name in ours if RANK[name] > RANK[part(path)]} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_touch_of_the_world_stands_alone(path: Path) -> None:
    for what, where in ALONE.items():
        used = {name for name in imports(path) if name == what or name.startswith(f"{what}.")}
        assert not used or part(path) in where
    assert "environ" not in names(path) or part(path) in {"cli", "rank", "ddl", "measure"}
    assert not {name for name in names(path) if name.startswith("exec")} or part(path) == "rank"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_framework_stands_in_a_module_of_its_own(framework: str) -> None:
    below = PACKAGE / RUNTIME
    using = {p for p in below.rglob("*.py") if framework in {i.split(".")[0] for i in imports(p)}}
    assert {str(p.relative_to(below)) for p in using} == FRAMEWORKS[framework]


def test_what_runs_on_each_host_is_the_standard_library_alone() -> None:
    used = {name for path in (PACKAGE / "rank").rglob("*.py") for name in imports(path)}
    assert {name.split(".")[0] for name in used if not name.startswith("ddlrun.rank")} <= {
        *sys.stdlib_module_names, "sitecustomize",
    }  # fmt: skip
    every_time = {name for path in sorted((PACKAGE / "rank").glob("*.py")) for name in at_the_top(path)}
    assert {name for name in every_time if not name.startswith("ddlrun.rank")} == {
        "__future__", "_socket", "os", "select", "signal", "sys", "time",
    }  # fmt: skip


def test_the_runtime_loads_frameworks_and_mpi_when_they_are_used() -> None:
    code = "import sys; from ddlrun import ddl; print(*{'torch', 'numpy', 'mpi4py'} & set(sys.modules))"
    alone = "; ddl.init(); ddl.all_reduce(1.0); print(*{'torch', 'mpi4py'} & set(sys.modules))"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))}
    done = subprocess.run([sys.executable, "-c", code + alone], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"


def at_the_top(path: Path) -> set[str]:
    """Return what a module imports as soon as it is imported itself."""
    found = ast.Module([node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.FunctionDef)], [])
    return {
        name
        for node in found.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [f"{node.module}"])
    }
