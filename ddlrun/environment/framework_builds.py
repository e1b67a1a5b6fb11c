"""Framework builds: the versions and features of installed libraries, as the libraries report them."""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

# Name -> title. That a library can be imported proves little: plain `pip install horovod` installs a shell without it.
LIBRARIES = {
    "torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "mpi4py": "mpi4py",
    "horovod.torch": "Horovod for PyTorch", "horovod.tensorflow": "Horovod for TensorFlow",
}  # fmt: skip

# Python program that queries the library named in its argument, and prints a line of JSON after @build.
PROGRAM = r"""
import importlib, importlib.metadata, importlib.util, json, sys
name = sys.argv[1]
top = name.partition(".")[0]
def report(**build):
    sys.stdout.write("\n@build " + json.dumps(build) + "\n")
    sys.stdout.flush()
def query():
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
    report(version=None)
else:
    try:
        version = importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        version = "?"
    try:
        report(version=version, has=query())
    except BaseException as error:
        why = type(error).__name__ + ": " + " ".join(str(error).split())[:200]
        # Without its library, horovod.tensorflow raises an error; horovod.torch only lacks these functions.
        if "has not been built" in why or "no attribute 'mpi_built'" in why:
            why = "its library is not built: see docs/how-to/install-horovod.sh"
        report(version=version, problem=why)
"""


class FrameworkBuild(NamedTuple):
    """The build of a library, as the library reports it."""

    version: str | None
    """None: it is not installed."""
    features: Mapping[str, bool]
    """Feature -> whether it is built in: mpi, gloo, nccl, ddl, ccl, cuda, rocm; the library's name for MPI, the
    backend for JAX."""
    problem: str = ""
    """Why it does not work."""

    @property
    def works(self) -> bool:
        """Whether it is installed and can be used."""
        return self.version is not None and not self.problem


def parse_build(out: str, err: str = "", code: int | None = 0) -> FrameworkBuild:
    r"""Parse the output of PROGRAM; without a report, the problem is the last line of its errors.

    >>> parse_build('noise\n@build {"version": "2.1", "has": {"gloo": true}}\n')
    FrameworkBuild(version='2.1', features={'gloo': True}, problem='')
    >>> parse_build("", "Segmentation fault", -11).problem
    'ended with -11: Segmentation fault'
    """
    reports = re.findall(r"(?m)^@build (.*)$", out)
    if not reports:
        line = (err.strip().splitlines() or ["no word"])[-1]
        problem = "its import took too long" if code is None else f"ended with {code}: {line[:200]}"
        return FrameworkBuild("?", {}, problem)
    report = json.loads(reports[-1])
    return FrameworkBuild(report["version"], report.get("has", {}), report.get("problem", ""))


def render_builds(builds: Mapping[str, FrameworkBuild], heading: str) -> str:
    """Render builds in the format of horovodrun --check-build: one box per item, crossed where it works."""
    plain = [name for name in builds if not name.startswith("horovod")]
    horovods = {name: build for name, build in builds.items() if name not in plain}
    version = next((build.version for build in horovods.values() if build.version), None)
    features = {name for build in horovods.values() for name, on in build.features.items() if on}
    lines = [heading, "", "Available Frameworks:", *(_line(LIBRARIES[name], builds[name]) for name in plain)]
    lines += ["", f"Horovod {version}:" if version else "Horovod: not installed"]
    if version:
        lines += [_line(LIBRARIES[name].removeprefix("Horovod for "), build) for name, build in horovods.items()]
        for title, names in (("Controllers", "MPI Gloo"), ("Tensor Operations", "NCCL DDL CCL MPI Gloo")):
            lines += ["", f"Available {title}:", *(_box(name, on=name.lower() in features) for name in names.split())]
    return "".join(f"{line}\n" for line in lines)


def _box(text: str, *, on: bool) -> str:
    return f"    [{'X' if on else ' '}] {text}"


def _line(title: str, build: FrameworkBuild) -> str:
    if build.version is None:
        return _box(title, on=False)
    features = ", ".join(name for name, on in build.features.items() if on)
    details = f"does not work: {build.problem}" if build.problem else features
    text = f"{title} {build.version}"
    return _box(f"{text}: {details}" if details else text, on=build.works)
