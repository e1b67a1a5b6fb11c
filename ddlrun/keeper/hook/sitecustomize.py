"""Start-up hook of a Python rank: it starts the duties that DDLRUN_HOOK names, by default all of them.

Python imports this module before the rank's script. It takes its folder off PYTHONPATH and sys.path, and imports the
sitecustomize that it hides. The duties are modules of the folder:

- exit: a failed MPI rank does not wait in MPI_Finalize, and gloo does not abort a rank at its end.
- stacks: ddlrun doctor reads the stacks of the rank, and PyTorch's flight recorder.
- backend: torch.distributed knows the backend "ddl".
- world: a note where PyTorch sees one process, and the job has more. The keeper looks at MPI (keeper/singleton.py).
"""

# ruff: noqa: PLC0415, INP001 - it imports as little as possible, and nothing from the package
# mypy: disable-error-code="import-not-found"

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

TORCH = "torch.distributed.distributed_c10d"
FOLDER = os.path.dirname(os.path.abspath(__file__))


def _load(name: str) -> "Any":  # noqa: ANN401 - a module that mypy cannot import
    """Import a module of this folder."""
    sys.path.insert(0, FOLDER)
    try:
        return __import__(f"ddlrun_{name}")
    finally:
        sys.path.remove(FOLDER)


class _TorchFinder:
    """The first finder of modules until torch.distributed is imported; it finds no other."""

    def __init__(self, duties: "list[str]") -> None:
        self._duties = duties

    def find_spec(self, name: str, *_: object) -> "ModuleSpec | None":
        """Return the module as the other finders find it, with a loader that calls the duties."""
        if name != TORCH:
            return None
        sys.meta_path.remove(self)
        spec: ModuleSpec | None = _load("torch").find(name, self._duties, _load)
        return spec


def _install() -> None:
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if FOLDER not in before:  # imported by something other than a rank
        return
    paths = [path for path in before if path != FOLDER]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if not paths:
        del os.environ["PYTHONPATH"]
    sys.path[:] = [path for path in sys.path if path != FOLDER]
    duties = os.environ.get("DDLRUN_HOOK", "exit,stacks,backend,world").split(",")
    for duty in ("exit", "stacks"):
        if duty in duties:
            _load(duty).start()
    sys.meta_path.insert(0, _TorchFinder(duties))
    _import_hidden()


def _import_hidden() -> None:
    """Import the sitecustomize that Python would have found without this one."""
    this = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


_install()
