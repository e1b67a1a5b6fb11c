"""The order of imports between folders, and the only places that touch the world: read from the source."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ddlrun"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Each folder or module at the top, and what it may import beside itself. A line names only lines above it, so that
# imports run one way. No folder of the launcher imports `ddl`, which training scripts import, or `measure`, a script of
# that kind.
ALLOWED = {
    "errors": set(),
    "wording": set(),
    "topology": {"errors"},
    "units": {"errors"},
    "ranges": set(),
    "listening": {"errors"},
    "host_names": {"errors"},
    "hosts": {"errors", "host_names", "ranges"},
    "allreduce_algorithms": set(),
    "block_sizing": set(),
    "machine": {"errors", "ranges", "wording"},
    "mapping": {"errors", "hosts", "machine", "ranges", "topology", "wording"},
    "plugins": {"errors"},
    "environment": {"errors", "machine", "mapping", "ranges", "topology", "units", "wording"},
    "schedulers": {"environment", "errors", "host_names", "hosts", "plugins", "ranges", "topology", "units"},
    "network": {
        "allreduce_algorithms", "block_sizing", "environment", "errors", "hosts", "topology", "units", "wording",
    },
    "wire": set(),
    "keeper": {"errors", "ranges", "wire"},
    "hangs": {"hosts", "keeper", "ranges", "units", "wording"},
    "agent": {"errors", "keeper", "wire"},
    "remote": {
        "agent", "environment", "errors", "host_names", "hosts", "machine", "keeper", "schedulers", "wire",
        "wording",
    },
    "ship": {"errors", "hosts", "listening", "remote", "units", "wire", "wording"},
    "managers": {"agent", "environment", "errors", "hosts", "machine", "plugins", "remote", "schedulers"},
    "plan": {
        "allreduce_algorithms", "hangs", "environment", "errors", "hosts", "machine", "managers", "mapping",
        "network", "ranges", "keeper", "remote", "schedulers", "ship", "topology", "units", "wording",
    },
    "report": {
        "environment", "errors", "hosts", "machine", "managers", "mapping", "network", "plan", "ranges", "topology",
        "units", "wording",
    },
    "preflight": {
        "environment", "errors", "hosts", "keeper", "machine", "managers", "network", "plan", "remote", "report",
        "units", "wire", "wording",
    },
    "runs": {
        "hangs", "environment", "errors", "hosts", "managers", "mapping", "network", "plan", "ranges", "keeper",
        "remote", "report", "units", "wording",
    },
    "metrics": {"errors", "ranges", "keeper", "units", "wording"},
    "page": {"errors", "hosts", "metrics", "plan", "ranges", "report", "runs", "units", "wording"},
    "supervise": {
        "agent", "hangs", "errors", "hosts", "listening", "managers", "metrics", "network", "plan", "keeper", "remote",
        "runs", "units", "wire", "wording",
    },
    "ddl": {"allreduce_algorithms", "block_sizing", "errors", "ranges", "topology", "units", "wire"},
    "measure": {"allreduce_algorithms", "ddl", "network", "topology", "units"},
    "application": {
        "block_sizing", "hangs", "environment", "errors", "hosts", "listening", "machine", "managers", "mapping",
        "network", "page", "plan", "preflight", "ranges", "remote", "report", "runs", "schedulers", "ship", "supervise",
        "topology", "units", "wording",
    },
    "cli": {
        "allreduce_algorithms", "application", "hangs", "environment", "errors", "hosts",
        "mapping", "metrics", "network", "page", "plan", "plugins", "preflight", "managers", "remote", "report", "runs",
        "schedulers", "ship", "topology", "units", "wording",
    },
    "api": {"cli", "environment", "errors", "plan", "remote", "runs", "wording"},
    "__main__": {"cli", "keeper"},
    "__init__": set(),
}  # fmt: skip

# The import of the version.
VERSION = {"ddlrun", "ddlrun.__version__"}

# Modules of the start-up hook, which are found on a path of their own.
HOOKS = ("sitecustomize",)
# Modules that import a package for --encrypt alone.
ENCRYPTION = {PACKAGE / "wire/authentication.py"}

# The folders that may read the environment of the process.
ENVIRONS = {"cli", "application", "keeper", "agent", "ddl", "measure", "api"}
# A module that passes it on to commands, as posix_spawn does not do so by itself, and those that describe it on hosts.
OTHER_ENVIRONS = {PACKAGE / "remote/processes.py", *PACKAGE.glob("preflight/host_*.py")}

# What -> the folders that may import or name it.
ALONE = {
    "subprocess": {"remote", "keeper", "ship"},
    "click": {"cli"},
    "mpi4py": {"ddl", "measure"},
    "numpy": {"ddl", "measure"},
    "torch": {"ddl", "measure"},
    "keras": {"ddl"},
    "rich": {"report"},
    "jinja2": {"schedulers"},
    "cryptography": {"wire"},
    "matplotlib": {"report"},
}


# Frameworks -> the files below ddl that may import them; flat needs one dtype of a tensor that it received.
FRAMEWORKS = {
    "torch": {
        "torch", "transports/nccl", "lms/block.py", "lms/device.py", "lms/hooks.py",
        "lms/swap.py", "transports/tcp/store_exchange.py",
    },
    "keras": {"keras.py"},
}  # fmt: skip


def part(path: Path) -> str:
    """Return the top-level module or package below ddlrun that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def names(path: Path) -> set[str]:
    """Return attributes of os that a file uses."""
    return {
        node.attr
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }


def folder_imports(path: Path) -> set[str]:
    """Return the folders and modules at the top of ddlrun that a file imports, beside its own."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("ddlrun.")}
    return names - {"__version__", part(path)}


def test_a_folder_imports_only_folders_above_it_in_the_table() -> None:
    seen: set[str] = set()
    for folder, allowed in ALLOWED.items():
        assert allowed <= seen
        seen.add(folder)


def test_the_table_of_imports_is_exact() -> None:
    used: dict[str, set[str]] = {folder: set() for folder in ALLOWED}
    for path in MODULES:
        used[part(path)] |= folder_imports(path)
    assert used == ALLOWED


def test_the_page_on_the_design_lists_every_folder() -> None:
    page = (PACKAGE.parent / "docs" / "explanation" / "design.md").read_text()
    listed = re.findall(r"`(\w+/?)`", "".join(re.findall(r"(?m)^\| (.*?) \|", page.partition("## Folders")[2])))
    # A folder that a move has left in a checkout has compiled modules alone.
    kept = (path for path in PACKAGE.iterdir() if path.name != "__pycache__" and any(path.glob("*.*")))
    folders = {f"{path.name}/" for path in kept}
    modules = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    assert sorted(listed) == sorted(folders | modules)


def test_each_touch_of_the_world_stands_alone() -> None:
    for what, where in ALONE.items():
        others = [path for path in MODULES if part(path) not in where]
        assert [path for path in others if any(f"{name}.".startswith(f"{what}.") for name in imports(path))] == []
    others = [path for path in MODULES if part(path) not in ENVIRONS and path not in OTHER_ENVIRONS]
    assert [path for path in others if "environ" in names(path)] == []
    others = [path for path in MODULES if part(path) not in {"keeper", "agent"}]
    assert [path for path in others if any(name.startswith("exec") for name in names(path))] == []


# Profiles record the major version of Open MPI that they were measured with.
PROFILES = PACKAGE / "plan/tuning_profile.py"


def test_no_other_room_asks_which_process_manager_it_has() -> None:
    others = [path for path in MODULES if part(path) != "managers" and path != PROFILES]
    nodes = [(path, node) for path in others for node in ast.walk(syntax(path))]
    assert [path for path, node in nodes if isinstance(node, ast.Attribute) and node.attr == "major"] == []
    kinds = {"OpenMpi", "OpenMpi4", "OpenMpi5", "OpenMpi6", "DIALECTS", "OwnManager", "Srun"}
    assert [path for path in others if kinds & {name.rpartition(".")[2] for name in imports(path)}] == []


# The rooms that know Open MPI's daemons and variables; what runs on hosts or in a training script imports no other.
OPEN_MPI_ROOMS = ("managers/openmpi/", "environment/", "keeper/", "ddl/launch_context.py")


def test_open_mpis_daemons_and_variables_are_known_in_few_rooms() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".sh")]
    naming = {path for path in files if re.search(r"\b(?:orted|prted)\b|\b(?:OMPI|PRTE)_", path.read_text())}
    names = {str(path.relative_to(PACKAGE)) for path in naming}
    assert sorted(name for name in names if not name.startswith(OPEN_MPI_ROOMS)) == []


# What waits for events of descriptors: one loop for all. select.select waits for one descriptor, for a moment.
POLLERS = {"select.poll", "select.epoll", "select.kqueue", "select.devpoll", "selectors", "asyncio"}


def test_the_event_loop_is_the_only_one() -> None:
    using = {str(path.relative_to(PACKAGE)) for path in MODULES if POLLERS & (imports(path) | qualified_names(path))}
    assert using == {"wire/loop.py"}


def qualified_names(path: Path) -> set[str]:
    """Return the attributes of modules that a file uses, as module.attribute."""
    nodes = ast.walk(syntax(path))
    return {
        f"{it.value.id}.{it.attr}" for it in nodes if isinstance(it, ast.Attribute) and isinstance(it.value, ast.Name)
    }


def test_planning_looks_nothing_up() -> None:
    for path in sorted((PACKAGE / "plan").glob("*.py")):
        calls = [node.func for node in ast.walk(syntax(path)) if isinstance(node, ast.Call)]
        used = {name for name in imports(path) if name.startswith(("ddlrun.remote.processes", "ddlrun.remote.probe"))}
        opened = {call.id for call in calls if isinstance(call, ast.Name)} & {"open"}
        assert (path, names(path) - {"path", "devnull"} | opened | used) == (path, set())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_framework_stands_in_a_module_of_its_own(framework: str) -> None:
    below = PACKAGE / "ddl"
    using = {p for p in below.rglob("*.py") if framework in {i.split(".")[0] for i in imports(p)}}
    assert {module_or_package(p.relative_to(below)) for p in using} == FRAMEWORKS[framework]


def module_or_package(path: Path) -> str:
    """Return the path of a module, or its package where that is for one framework."""
    return next((room for room in ("torch", "transports/nccl") if path.is_relative_to(room)), str(path))


def test_what_runs_on_each_host_is_the_standard_library_alone() -> None:
    own = ("ddlrun.wire", "ddlrun.keeper", "ddlrun.errors", "ddlrun.ranges", "ddlrun.agent")
    on_hosts = [path for folder in ("wire", "keeper", "agent") for path in (PACKAGE / folder).rglob("*.py")]
    for path in (*on_hosts, PACKAGE / "errors.py", PACKAGE / "ranges.py"):
        others = {name.split(".")[0] for name in imports(path) - VERSION if not name.startswith(own)}
        optional = {"cryptography"} if path in ENCRYPTION else set()
        assert others <= {*sys.stdlib_module_names, *HOOKS, *optional}
    modules = [path for path in on_hosts if path.parent.name != "hook" and path not in ENCRYPTION]
    every_time = {name for path in modules for name in at_the_top(path)}
    assert {name for name in every_time if not name.startswith((*own, "ddlrun"))} == {
        "__future__", "_ctypes", "_operator", "_socket", "binascii", "errno", "gc", "itertools", "os", "select",
        "struct", "sys", "time",
    }  # fmt: skip


def test_what_runs_on_hosts_needs_no_newer_python_than_3_8() -> None:
    newer = {"removeprefix", "removesuffix", "bit_count", "randbytes", "is_relative_to"}
    paths = [path for folder in ("wire", "keeper", "agent", "ship/host") for path in (PACKAGE / folder).rglob("*.py")]
    for path in (*paths, PACKAGE / "ranges.py", PACKAGE / "preflight/peer.py", *PACKAGE.glob("preflight/host_*.py")):
        nodes = ast.walk(ast.parse(path.read_text(), feature_version=(3, 8)))
        assert not newer & {node.attr for node in nodes if isinstance(node, ast.Attribute)}, path


def test_agents_and_keepers_load_no_enum_and_only_what_all_hosts_need() -> None:
    begin = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})"
    later = {
        "ddlrun.agent.root",
        "ddlrun.agent.child",
        "ddlrun.agent.pmi",
        "ddlrun.keeper.keeper",
        "ddlrun.keeper.program",
    }
    not_needed = {"enum", "signal", "typing", "re", *later}
    code = f"import ddlrun.agent.main, ddlrun.agent.agent, ddlrun.keeper.entry; print(*{not_needed} & set(sys.modules))"
    argv = [sys.executable, "-I", "-S", "-c", f"{begin}; {code}"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize(
    ("line", "commands"),
    [("--help", set()), ("launch --help", {"launch"}), ("gen-rankfile 4x2 a,b --machine dgx1", {"gen_rankfile"})],
)
def test_a_start_loads_only_what_its_command_needs(line: str, commands: set[str]) -> None:
    names = {"gen_rankfile", "launch", "run_history", "submit"} - commands
    others = {"numpy", "mpi4py", "rich", "jinja2", "psutil", "http"}
    others |= {f"ddlrun.cli.{name}" for name in names}
    code = f"""if True:
        import sys
        from ddlrun.cli import run_command
        print(run_command({line.split()!r}), *{others!r} & set(sys.modules), file=sys.stderr)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0"


def test_the_runtime_loads_frameworks_and_mpi_when_they_are_used() -> None:
    code = "import sys; from ddlrun import ddl; print(*{'torch', 'numpy', 'mpi4py'} & set(sys.modules))"
    alone = "; ddl.init(); ddl.all_reduce(1.0); print(*{'torch', 'mpi4py'} & set(sys.modules))"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI"))}
    done = subprocess.run([sys.executable, "-c", code + alone], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports: at its top, in functions and for type checking.

    `from package import name` imports the module package.name if there is one, else the package. Modules that are
    loaded by a computed name (`importlib`) are left out.
    """
    modules = {module_name(path): path for path in MODULES}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Import):
                graph[module] |= {alias.name for alias in node.names} & modules.keys()
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[module] |= {name if name in modules else node.module for name in names} & modules.keys()
    return graph


def circles(graph: Mapping[str, AbstractSet[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module, by Kosaraju's algorithm."""
    finished: list[str] = []
    seen: set[str] = set()
    for module in graph:
        visit(module, graph, seen, finished)
    reverse = {module: {other for other in graph if module in graph[other]} for module in graph}
    components, assigned = list[set[str]](), set[str]()
    for module in reversed(finished):
        component: list[str] = []
        visit(module, reverse, assigned, component)
        components.append(set(component))
    return [component for component in components if len(component) > 1]


def visit(module: str, graph: Mapping[str, AbstractSet[str]], seen: set[str], finished: list[str]) -> None:
    """Append the modules that can be reached from one, and are not seen yet, in the order in which they finish."""
    if module not in seen:
        seen.add(module)
        for other in sorted(graph[module]):
            visit(other, graph, seen, finished)
        finished.append(module)


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert circles(graph) == [{"a", "b", "c"}]


def test_no_import_circle() -> None:
    assert circles(import_graph()) == []


def at_the_top(path: Path) -> set[str]:
    """Return what a module imports as soon as it is imported itself."""
    found = ast.Module([node for node in syntax(path).body if not isinstance(node, ast.FunctionDef)], [])
    return {
        name
        for node in found.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [f"{node.module}"])
    }
