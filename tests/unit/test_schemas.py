"""The schemas: generated from the types, and true of real output and files."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.cli.launch import command as launch
from ddlrun.errors import InputError
from ddlrun.machine.preset import MachineDescription, parse_machine
from ddlrun.network.fabric import LEVELS, Fabric, Link, parse_fabric, render_fabric
from ddlrun.plan.config_file import parse_config
from ddlrun.plan.outcome import Outcome, RankEnd
from docs.reference.schemas import FOLDER, render_schemas
from tests.support.json_schemas import NAMES, errors, read_schema, validate

ROOT = Path(__file__).parents[2]
DDLRUN = [sys.executable, "-m", "ddlrun"]
JOB = ["--machine", "ac922-4gpu", "--topology", "4x2x3", "-H", "n[1-6]"]
# The YAML that pages show, by its schema; None: it has none.
PAGES = {
    "how-to/kubernetes.md": None,
    "how-to/plan-a-network.md": None,
    "reference/config-file.md": "config",
    "reference/schemas.md": "machine",
}


def ddlrun(*words: str, code: int = 0) -> str:
    done = subprocess.run([*DDLRUN, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_committed_schemas_are_those_of_the_types() -> None:
    assert {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == render_schemas(), (
        "make reference"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_valid_and_names_its_version(name: str) -> None:
    schema = read_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert re.fullmatch(rf"urn:ddlrun:{name}:[1-9][0-9]*", schema["$id"])
    assert schema["title"]
    if "schema" in schema.get("properties", {}):
        assert schema["properties"]["schema"]["enum"] == [schema["$id"]]
        assert "schema" in schema["required"]


def test_show_schema() -> None:
    listed = json.loads(ddlrun("show", "schema", "--json"))
    assert list(listed["schemas"]) == NAMES
    assert [line.split()[0] for line in ddlrun("show", "schema").splitlines()] == NAMES
    for words in (["plan"], ["--json", "plan"]):
        assert json.loads(ddlrun("show", "schema", *words)) == read_schema("plan")
    done = subprocess.run([*DDLRUN, "show", "schema", "plann"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "ddlrun: error: schema 'plann': no such schema (did you mean plan?); there are check, config, event, machine, "
        "metrics, outcome, placement, plan\n"
    )
    assert "name one schema" in subprocess.run(
        [*DDLRUN, "show", "schema", "check", "plan"], capture_output=True, text=True, check=False
    ).stderr  # fmt: skip


def test_a_dry_run(tmp_path: Path) -> None:
    plan = json.loads(ddlrun("launch", "--dry-run", "--json", *JOB, "true"))
    validate(plan, "plan")
    assert "written" not in plan
    ddlrun("launch", "--dry-run", "--run-dir", f"{tmp_path}/run", *JOB, "true")
    written = json.loads((tmp_path / "run" / "plan.json").read_text())
    validate(written, "plan")
    assert written.keys() == {*plan, "written"}


RANK_END = st.builds(
    RankEnd,
    rank=st.integers(0), host=st.text(), local_rank=st.integers(0), exit_code=st.integers(0, 255),
    signal=st.none() | st.integers(1, 64), seconds=st.floats(0, 1e9), max_rss_kib=st.integers(0), ordered=st.booleans(),
    reason=st.text(), tail=st.text(),
)  # fmt: skip


@given(
    st.builds(
        Outcome, exit_code=st.integers(0, 255), signal=st.none() | st.integers(1, 64), seconds=st.floats(0, 1e9),
        reason=st.none() | st.text(), root=st.none() | RANK_END, ends=st.lists(RANK_END, max_size=3).map(tuple),
        lost_ranks=st.lists(st.text(), max_size=2).map(tuple), lost_hosts=st.lists(st.text(), max_size=2).map(tuple),
    )
)  # fmt: skip
def test_every_outcome_is_valid_and_can_be_read_back(outcome: Outcome) -> None:
    read = json.loads(json.dumps(outcome.as_dict()))
    validate(read, "outcome")
    ends = tuple(RankEnd(**end) for end in read["ends"])
    assert ends == outcome.ends


RATES = st.integers(1, 10**12).map(float)
LINKS = st.builds(
    Link, bandwidth=RATES, latency=st.integers(0, 10**6).map(lambda us: us / 1e6),
    payload=st.floats(0.01, 1), parallel=st.integers(1, 16), burst=st.integers(0, 10**9),
)  # fmt: skip


@given(links=st.lists(LINKS, min_size=len(LEVELS), max_size=len(LEVELS)), hosts=st.none() | st.integers(1, 10**9))
def test_every_rendered_network_can_be_read_back(links: list[Link], hosts: int | None) -> None:
    text = render_fabric(Fabric(tuple(links), name="lab", hosts_per_rack=hosts))
    parsed = parse_fabric(text, "the network")
    assert (parsed.name, parsed.hosts_per_rack) == ("lab", hosts)
    assert [link.parallel for link in parsed.links] == [link.parallel for link in links]


COUNTS = st.integers(1, 64)
MACHINES = st.builds(
    MachineDescription, packages=st.lists(COUNTS, min_size=1, max_size=4), smt=st.integers(1, 8),
    numa_per_package=st.integers(1, 4), gpus=st.integers(0, 16), gpus_by=st.sampled_from(["package", "numa"]),
    gpu_vendor=st.sampled_from(["nvidia", "amd", "intel"]), rdma=st.none() | st.booleans(),
)  # fmt: skip


@given(MACHINES)
def test_every_described_machine_is_valid(description: MachineDescription) -> None:
    text = msgspec.yaml.encode(description).decode()
    validate(yaml.safe_load(text), "machine")
    parse_machine(text, "the machine")


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*/*.yaml")), ids=lambda path: path.name)
def test_files_in_configs_are_valid_and_name_their_schema(path: Path) -> None:
    name = {"machines": "machine", "jobs": "config"}[path.parent.name]
    text = path.read_text()
    validate(yaml.safe_load(text), name)
    first = text.splitlines()[0]
    assert first == f"# yaml-language-server: $schema=../../ddlrun/schemas/{name}.json"
    assert (path.parent / first.partition("=")[2]).resolve() == FOLDER / f"{name}.json"


RECORDS = {"ddlrun.cli.show", "ddlrun.network.measurements", "ddlrun.plan.records", "ddlrun.preflight.records"}


@pytest.mark.parametrize("words", [["--help"], ["gen-rankfile", "1x2", "a,b"], ["launch", "--dry-run", *JOB, "true"]])
def test_records_are_no_part_of_a_start(words: list[str]) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "ddlrun", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ddlrun.cli" in imported
    assert imported & RECORDS == set()
    assert {importlib.import_module(name).__name__ for name in RECORDS} == RECORDS


def test_the_page_lists_every_schema_with_its_title() -> None:
    rows = re.findall(r"(?m)^\| `([a-z-]+)` \| (.*) \|$", (ROOT / "docs" / "reference" / "schemas.md").read_text())
    assert [name for name, _ in rows] == NAMES
    for name, text in rows:
        title = read_schema(name)["title"]
        assert [output for output in re.findall(r"`([^`]*json(?:l)?)`", text) if output not in title] == []


def test_the_program_on_the_page_validates_a_plan(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "schemas.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ddlrun("launch", "--dry-run", "--run-dir", f"{tmp_path}/run", *JOB, "true")
    run = [sys.executable, "-W", "error::ResourceWarning", "-c", program]
    done = subprocess.run(run, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    (tmp_path / "run" / "plan.json").write_text(json.dumps({**plan, "ranks": None}))
    done = subprocess.run(run, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert "ValidationError: None is not of type 'array'" in done.stderr


def yaml_blocks(path: Path) -> list[str]:
    text = re.sub(r"(?m)^ +(?=```)", "", path.read_text())
    return re.findall(r"(?ms)^```yaml\n(.*?)^```", text)


def test_yaml_in_pages_is_valid() -> None:
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)): yaml_blocks(path) for path in sorted(docs.rglob("*.md"))}
    assert {page for page, blocks in pages.items() if blocks} == set(PAGES)
    for page, name in PAGES.items():
        for block in pages[page]:
            if name is not None:
                validate(yaml.safe_load(block), name)


# Schema, document, the place that the schema names, and the words of ddlrun's own error.
WRONG = [
    ("config", "placement: {bindd: core}", "$.placement", "key 'placement.bindd' is not known (did you mean"),
    ("config", "network: {tcp: [1]}", "$.network.tcp", "network.tcp: [1]; write true or false"),
    ("config", "env: {A: [1]}", "$.env.A", "env.A: one value is wanted"),
    ("config", "controller: nccl", "$.controller", "controller: 'nccl'"),
    ("config", "[1, 2]", "$", "a list of 'key: value' is wanted"),
    ("machine", "{packages: 2, cores_per_package: 0}", "$.cores_per_package", "`cores_per_package`"),
    ("machine", "{packages: [8, 0]}", "$.packages", "`packages["),
    ("machine", "{packages: 1, cores_per_package: 4, gpuss: 1}", "$", "unknown field `gpuss`"),
]
PARSERS = {"config": parse_config, "machine": parse_machine}


@pytest.mark.parametrize(("name", "text", "place", "message"), WRONG)
def test_a_wrong_file_is_wrong_for_both_at_the_same_place(name: str, text: str, place: str, message: str) -> None:
    problems = errors(yaml.safe_load(text), name)
    assert {problem.partition(": ")[0] for problem in problems} == {place}
    with pytest.raises(InputError) as error:
        PARSERS[name](text, "the file")
    assert message in str(error.value)


def config_leaves(schema: dict[str, Any], above: str = "") -> dict[str, dict[str, Any]]:
    """Return the schema of each key of the config file, by the dotted key."""
    leaves: dict[str, dict[str, Any]] = {}
    for name, part in schema["properties"].items():
        key = f"{above}{name}"
        leaves |= config_leaves(part, f"{key}.") if "properties" in part else {key: part}
    return leaves


CONFIG = config_leaves(read_schema("config"))


def samples(part: dict[str, Any]) -> list[object]:
    """Return values that a schema of a key allows."""
    kinds = {"string": ["1"], "integer": [part.get("minimum", 1)], "number": [part.get("minimum", 1)], "null": [None],
             "boolean": [True, False], "array": [["1", 2]]}  # fmt: skip
    alternatives = part.get("anyOf", [part])
    named = [kind for alternative in alternatives for kind in alternative.get("type", [])]
    values = [value for alternative in alternatives for value in alternative.get("enum", [])]
    return values + [value for kind in named for value in kinds[kind]]


@pytest.mark.parametrize("key", sorted({*CONFIG} - {"env", "controller"}))
def test_values_that_the_schema_of_the_config_file_allows_are_accepted(key: str) -> None:
    parameters = {parameter.name: parameter for parameter in launch.params}
    values = samples(CONFIG[key])
    assert len(values) > 1
    for value in values:
        content: Any = value
        for section in reversed(key.split(".")):
            content = {section: content}
        validate(content, "config")
        for name, text in parse_config(yaml.safe_dump(content), "the file").values.items():
            parameters[name].type_cast_value(click.Context(launch), text)
