import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.argv import options_by_name
from ddlrun.cli.options.configuration import OTHER_VARIABLES, variable_of
from ddlrun.cli.options.foreign import RENAMED, SWITCHES, VALUES
from ddlrun.plan.config_file import LAUNCH_KEYS, parse_config
from docs.reference.__main__ import CAUSES_PAGE, PAGE, SETTINGS_PAGE, render_causes, render_page, render_settings
from docs.reference.tables import read_table
from tests.hosts import fault_page
from tests.hosts.fault_results import ROWS, read_results
from tests.hosts.fault_table import FAULTS
from tests.hosts.random_faults_results import first_line
from tests.support import needs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_reference_is_what_the_program_says() -> None:
    assert PAGE.read_text() == render_page(), "make reference"
    assert SETTINGS_PAGE.read_text() == render_settings(), "make reference"
    assert CAUSES_PAGE.read_text() == render_causes(), "make reference"


def test_the_table_of_faults_has_the_results_that_the_tests_expect() -> None:
    assert fault_page.PAGE.read_text() == fault_page.render_page(), "python -m tests.hosts.fault_page"
    results = read_results()
    assert set(results) == {*ROWS.values(), *map(str, FAULTS)}
    for fault in FAULTS:
        expected = {"openmpi": (fault.code, fault.line), "own": fault.own or (fault.code, fault.line)}
        for manager, result in results[fault.name].items():
            code, line = expected[manager]
            assert result.code == (128 - code if code < 0 else code)
            assert re.search(line, first_line(f"ddlrun: {result.line}")), fault.name


def test_help_fits_a_terminal_and_names_its_values() -> None:
    lines = render_page().partition("```text")[2].splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if re.match(r"  [a-z-]+  .*\.\.\.$", line)] == []  # a summary that click has cut
    assert [line for line in lines if re.search(r"\b(INTEGER|FLOAT|TEXT|RANGE|None)\b", line)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_the_index_names_every_page_by_its_title() -> None:
    folder = ROOT / "docs"
    listed = {(path, text) for text, path in re.findall(r"\[([^]]+)\]\(([^)#]+)\)", (folder / "index.md").read_text())}
    pages = [path for path in sorted(folder.rglob("*.md")) if path.name != "index.md"]
    titles = {(str(path.relative_to(folder)), path.read_text().partition("\n")[0].lstrip("# ")) for path in pages}
    assert titles - listed == set()


def test_the_readme_is_one_screen_and_sets_up() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert all(f"`{command}`" in text for command in ("make demo", "make test", "ddlrun doctor", "ddlrun top"))


def test_the_comparison_with_others_is_what_the_program_prints() -> None:
    needs.program("gcc", "gcc libc6-dev")
    argv = [sys.executable, "-m", "tests.bench.placements"]
    printed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    table = printed[printed.index("| machine") :]
    assert table in (ROOT / "docs" / "explanation" / "placement.md").read_text()


def test_what_plan_prints_is_what_it_prints() -> None:
    text = "".join(
        (ROOT / "docs" / page).read_text() for page in ("how-to/plan-a-network.md", "explanation/network.md")
    )
    blocks = re.findall(r"```console\n\$ ddlrun (network plan .*)\n((?:.*\n)*?)```", text)
    assert blocks
    for line, shown in blocks:
        argv = [sys.executable, "-m", "ddlrun", *shlex.split(line)]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == shown


def test_the_page_on_unequal_hosts_quotes_what_show_prints() -> None:
    text = (ROOT / "docs" / "how-to" / "unequal-hosts.md").read_text()
    blocks = re.findall(r"```console\n\$ ddlrun (show .*)\n((?:.*\n)*?)```", text)
    assert [line.split()[0:2] for line, _ in blocks] == [["show", "hosts"], ["show", "rankfile"]]
    for line, shown in blocks:
        argv = [sys.executable, "-m", "ddlrun", *shlex.split(line), "--scheduler", "none"]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == shown


def test_the_scripts_of_submit_are_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    text = "".join((ROOT / "docs" / "how-to" / f"{name}.md").read_text() for name in ("submit-a-job", "kubernetes"))
    blocks = re.findall(r"```\w+\n\$ ddlrun (submit .*)\n((?:.*\n)*?)```", text)
    environ = {**os.environ, "PATH": str(tmp_path)}  # no scheduler, which could say that it has no GPUs
    assert len(blocks) == 2
    for line, shown in blocks:
        argv = [sys.executable, "-m", "ddlrun", *shlex.split(line)]
        printed = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path, env=environ).stdout
        assert neutral(printed) == neutral(shown)


def neutral(script: str) -> str:
    """Leave out what differs between machines, versions and jobs: folders, our version, a name's end."""
    script = re.sub(r"By ddlrun \S+:", "By ddlrun:", re.sub(r"-[0-9a-f]{6}\"", '"', script))
    return re.sub(r"(?m)^cd \S+", "cd", re.sub(r"(?m)^exec \S*/", "exec ", script))


def test_options_that_the_pages_name_exist() -> None:
    known = set(re.findall(r"--[a-z][a-z-]+", render_page()))
    known |= {*options_by_name(launch.params), *RENAMED, *SWITCHES, *VALUES}
    foreign = {"--logdir", "--mca", "--version", "--epochs", "--data", "--nv", "--constraint"}
    for path in PAGES:
        named = {
            option for line in re.findall(r"ddlrun[^\n`]*", path.read_text())
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)
        }  # fmt: skip
        assert named - known - foreign == set(), path


def test_the_variables_on_their_page_are_known() -> None:
    table = read_table("reference/environment-variables.md", "Variables that you may set")
    named = {name for row in table for name in re.findall(r"DDLRUN_\w+", row[0])}
    options = {variable_of(param) for param in launch.params if isinstance(param, click.Option)}
    assert named - options - {*OTHER_VARIABLES} == set()


def test_the_config_files_page_names_every_key() -> None:
    text = (ROOT / "docs" / "reference" / "config-file.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    named = {key for key, _ in leaves(yaml.safe_load(example))}
    assert {key for key in LAUNCH_KEYS if key not in text} - named == set()
    parse_config(example, "the page")  # no key there is unknown


def leaves(found: dict[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in found.items():
        if isinstance(value, dict) and key != "env":
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
