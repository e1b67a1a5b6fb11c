"""The wheel: man pages and completion scripts, the same bytes twice, and man finds the pages of an installation."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import needs

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.extra


def build(folder: Path) -> Path:
    """Build the source distribution, and the wheel from it; return the wheel."""
    needs.package("build")
    needs.package("hatchling")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], check=True, capture_output=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1600000000"},
    )  # fmt: skip
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_has_every_file_of_share(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.partition(".data/data/")[2]: archive.read(name) for name in archive.namelist()}
    share = [path for path in (ROOT / "share").rglob("*") if path.is_file()]
    assert {str(path.relative_to(ROOT)): path.read_bytes() for path in share} == {
        name: text for name, text in packed.items() if name
    }


def test_a_second_build_has_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    def digests(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    build(tmp_path)
    assert digests(tmp_path) == digests(wheel.parent)


def test_man_finds_the_pages_of_an_environment(wheel: Path, tmp_path: Path) -> None:
    man = needs.program("man", apt="man-db")
    prefix = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    install = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "--python", prefix / "bin" / "python", *install, wheel], check=True)
    environ = {name: value for name, value in os.environ.items() if name != "MANPATH"}
    environ["PATH"] = f"{prefix}/bin:{environ['PATH']}"
    for page in ("ddlrun", "ddlrun-launch"):
        done = subprocess.run([man, "-w", page], capture_output=True, text=True, check=True, env=environ)
        assert done.stdout.strip() == f"{prefix}/share/man/man1/{page}.1"
