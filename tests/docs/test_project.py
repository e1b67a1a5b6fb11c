"""The files for contributors name files, make targets and tests that exist; the version is the same everywhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ddlrun
from ddlrun.cli.serving import PACKAGE
from ddlrun.report.hints import PACKAGES as OTHER_NAMES
from tests.support.cpu_group import autogroup_folder

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


def test_messages_and_pages_install_what_a_clone_can_install() -> None:
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "ddlrun").rglob("*.py")]
    assert [path for path in paths if re.search(r"pip install '?ddlrun(?!-)", path.read_text())] == []
    assert f'["{PACKAGE}>=' in (ROOT / "pyproject.toml").read_text()


def test_the_tutorial_installs_what_its_script_imports() -> None:
    page, project = (ROOT / "docs/tutorial/first-job.md").read_text(), (ROOT / "pyproject.toml").read_text()
    path, extras = re.findall(r"(docs/examples/digits_torch\w*\.py)[^[]*pip install '\.\[([\w,]+)\]'", page)[0]
    lists = [re.search(rf"(?ms)^{name} = \[(.*?)\]$", project) for name in ["dependencies", *extras.split(",")]]
    installed = {name for found in lists if found for name in re.findall(r'"([\w-]+)', found[1])}
    modules = set(re.findall(r"(?m)^(?:import|from) (\w+)", (ROOT / path).read_text())) - {*sys.stdlib_module_names}
    assert {OTHER_NAMES.get(module, module) for module in modules - {"ddlrun"}} <= installed


def test_citation_has_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == ddlrun.__version__


def test_workflows_run_each_supported_python() -> None:
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["ubuntu"]["strategy"]["matrix"]["python"] == classifiers


def test_a_group_of_tests_stays_in_one_process(tmp_path: Path) -> None:
    """tests/conftest.py relies on groups, and pytest-xdist ignores them with some versions of pytest."""
    (tmp_path / "test_groups.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('number', range(20))\n"
        "@pytest.mark.xdist_group('group')\n"
        "def test_group(number):\n"
        f"    open('{tmp_path}/workers', 'a').write(os.environ['PYTEST_XDIST_WORKER'] + '\\n')\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-c", os.devnull, str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    workers = (tmp_path / "workers").read_text().split()
    assert (len(workers), len(set(workers))) == (20, 1)


def test_no_session_of_the_tests_can_starve_another() -> None:
    folder = autogroup_folder()
    assert folder is None or not os.access(folder, os.W_OK)


def test_a_test_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("from ddlrun.units import nothing_of_this_name\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "-p", "tests.conftest", str(broken)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 error" in done.stdout, done.stdout
