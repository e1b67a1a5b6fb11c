"""What the installed frameworks can do, as their libraries themselves say it: a program, and what it prints."""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

# Name -> title. Importing says little: plain `pip install horovod` gives an empty shell that imports well.
LIBRARIES = {
    "torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "mpi4py": "mpi4py",
    "horovod.torch": "Horovod for PyTorch", "horovod.tensorflow": "Horovod for TensorFlow",
}  # fmt: skip

# Python that asks the library named in its argument, and prints a line of JSON after @build.
PROGRAM = r"""
import importlib, importlib.metadata, importlib.util, json, sys
name = sys.argv[1]
top = name.partition(".")[0]
def say(**known):
    sys.stdout.write("\n@build " + json.dumps(known) + "\n")
    sys.stdout.flush()
def ask():
    if name == "mpi4py":
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        return {MPI.Get_library_version().split(",")[0].strip(" \0"): True}
    library = importlib.import_module(name)
    if name == "torch":
        d = library.distributed
        able = d.is_available()
        return {
            "gloo": able and d.is_gloo_available(), "mpi": able and d.is_mpi_available(),
            "nccl": able and d.is_nccl_available(), "cuda": library.version.cuda is not None,
            "rocm": getattr(library.version, "hip", None) is not None,
        }
    if name == "tensorflow":
        return {"cuda": library.test.is_built_with_cuda(), "rocm": library.test.is_built_with_rocm()}
    if name == "jax":
        return {library.default_backend(): True}
    kinds = "mpi gloo nccl ddl ccl cuda rocm".split()
    return {kind: bool(getattr(library, kind + "_built")()) for kind in kinds}
if importlib.util.find_spec(top) is None:
    say(version=None)
else:
    try:
        version = importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        version = "?"
    try:
        say(version=version, has=ask())
    except BaseException as error:
        why = type(error).__name__ + ": " + " ".join(str(error).split())[:200]
        # horovod.tensorflow raises where its library is missing; horovod.torch merely lacks these.
        shell = "has not been built" in why or "no attribute 'mpi_built'" in why
        say(version=version, problem="its library is not built: see docs/how-to/install-horovod.sh" if shell else why)
"""


class FrameworkBuild(NamedTuple):
    """What a library says of itself: its version (None: it is not installed), what it was built with, or what is wrong.

    `has` maps kinds (mpi, gloo, nccl, ddl, ccl, cuda, rocm; for MPI and JAX its name) to whether they are in it.
    """

    version: str | None
    has: Mapping[str, bool] = {}
    problem: str = ""

    @property
    def works(self) -> bool:
        """Whether it is there and answers."""
        return self.version is not None and not self.problem


def parse_build(out: str, err: str = "", code: int | None = 0) -> FrameworkBuild:
    r"""Parse what PROGRAM printed; of one that died, the last that it said.

    >>> parse_build('noise\n@build {"version": "2.1", "has": {"gloo": true}}\n')
    FrameworkBuild(version='2.1', has={'gloo': True}, problem='')
    >>> parse_build("", "Segmentation fault", -11).problem
    'ended with -11: Segmentation fault'
    """
    found = re.findall(r"(?m)^@build (.*)$", out)
    if not found:
        said = (err.strip().splitlines() or ["no word"])[-1]
        return FrameworkBuild(
            "?", problem=("no answer in time" if code is None else f"ended with {code}: {said[:200]}")
        )
    known = json.loads(found[-1])
    return FrameworkBuild(known["version"], known.get("has", {}), known.get("problem", ""))


def render_builds(builds: Mapping[str, FrameworkBuild], heading: str) -> str:
    """Write what is there as horovodrun --check-build does: a box a thing, crossed where it works."""
    plain = [name for name in builds if not name.startswith("horovod")]
    horovods = {name: build for name, build in builds.items() if name not in plain}
    version = next((build.version for build in horovods.values() if build.version), None)
    has = {kind: on for build in horovods.values() for kind, on in build.has.items() if on}
    lines = [heading, "", "Available Frameworks:", *(_line(LIBRARIES[name], builds[name]) for name in plain)]
    lines += ["", f"Horovod {version}:" if version else "Horovod: not installed"]
    if version:
        lines += [_line(LIBRARIES[name].removeprefix("Horovod for "), build) for name, build in horovods.items()]
        for title, kinds in (("Controllers", "MPI Gloo"), ("Tensor Operations", "NCCL DDL CCL MPI Gloo")):
            lines += ["", f"Available {title}:", *(_box(kind, on=kind.lower() in has) for kind in kinds.split())]
    return "".join(f"{line}\n" for line in lines)


def _box(text: str, *, on: bool) -> str:
    return f"    [{'X' if on else ' '}] {text}"


def _line(title: str, build: FrameworkBuild) -> str:
    if build.version is None:
        return _box(title, on=False)
    kinds = ", ".join(kind for kind, on in build.has.items() if on)
    why = f": does not work: {build.problem}" if build.problem else f": {kinds}" * bool(kinds)
    return _box(f"{title} {build.version}{why}", on=build.works)
