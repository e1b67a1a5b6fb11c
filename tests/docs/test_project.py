"""The files for contributors name files, make targets and tests that exist; the version is the same everywhere."""

import re
from pathlib import Path

import pytest
import yaml

import ddlrun

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
PLACEHOLDERS = ("NAME", "TOOL", "VERSION")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    paths = re.findall(r"`((?:ddlrun|tests|docs|configs)/[\w./-]+)`", page.read_text())
    missing = [path for path in paths if not (ROOT / path).exists() and not any(word in path for word in PLACEHOLDERS)]
    assert missing == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    texts = [page.read_text() for page in (*PAGES, *(ROOT / ".github").rglob("*.*"))]
    targets = set(re.findall(r"(?:`|run: |^    )make ([\w-]+)", "\n".join(texts), re.MULTILINE))
    assert {"dev", "check", "test", "test-all", "release"} <= targets
    assert [target for target in targets if not re.search(rf"(?m)^{target}:", makefile)] == []


def test_citation_has_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == ddlrun.__version__


def test_workflows_run_each_supported_python() -> None:
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["ubuntu"]["strategy"]["matrix"]["python"] == classifiers
