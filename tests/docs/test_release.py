"""`make release` from a clone of the repository: equal bytes, a wheel that runs, an SBOM, checksums."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import ddlrun
from tests.support import needs

pytestmark = pytest.mark.extra

ROOT = Path(__file__).parents[2]
NAME = f"ddlrun-{ddlrun.__version__}"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a release, built from the last commit."""
    folder = tmp_path_factory.mktemp("release")
    needs.program("git", apt="git")
    for name in ("build", "cyclonedx_py", "twine"):
        needs.package(name, pip="'.[release]'")
    if not (ROOT / ".git").exists():
        needs.skip("no git repository", "git clone https://github.com/ddlrun/ddlrun")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "hatchling"]
    if subprocess.run(pip, capture_output=True, check=False).returncode:
        needs.skip("no package index", "PIP_INDEX_URL=https://an-index/simple make test-all")
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    done = subprocess.run(
        [".ci/release"],
        cwd=clone,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return clone / "dist"


def test_release_has_its_files_with_checksums(dist: Path) -> None:
    files = [f"{NAME}-py3-none-any.whl", f"{NAME}.cdx.json", f"{NAME}.tar.gz"]
    assert sorted(path.name for path in dist.iterdir()) == ["SHA256SUMS", *files]
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=dist, capture_output=True, text=True, check=True
    )
    assert checked.stdout.splitlines() == [f"{name}: OK" for name in files]


def test_sbom_lists_the_runtime_dependencies_alone(dist: Path) -> None:
    sbom = json.loads((dist / f"{NAME}.cdx.json").read_text())
    names = {component["name"].lower() for component in sbom["components"]}
    assert {"click", "mpi4py", "numpy"} <= names
    assert {"pip", "pytest", "torch"}.isdisjoint(names)


def test_sdist_has_what_a_distributor_needs(dist: Path) -> None:
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "Makefile",
        "tests/conftest.py",
        "docs/index.md",
    }
    assert expected - names == set()
