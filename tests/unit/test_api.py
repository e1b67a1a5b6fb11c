"""The Python interface without a job: its names, options, errors and records."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddlrun
from ddlrun.api.options import OptionValue, render_environment, render_options
from ddlrun.errors import InputError
from ddlrun.plan.outcome import Outcome, RankEnd, parse_outcome


def test_import_of_the_package_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import ddlrun; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ddlrun"]


def test_public_names_are_those_of_the_stub() -> None:
    stub = Path(ddlrun.__file__).with_suffix(".pyi").read_text()
    imported = {words[3]: words[1] for words in map(str.split, stub.splitlines()) if words[:1] == ["from"]}
    assert imported == ddlrun.PUBLIC
    assert set(ddlrun.PUBLIC) <= set(dir(ddlrun))
    for name, module in ddlrun.PUBLIC.items():
        assert getattr(ddlrun, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'ddlrun' has no attribute 'lunch'"):
        getattr(ddlrun, "lunch")  # noqa: B009 - the name is unknown on purpose


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topology": "4x2x3"}, ["--topology=4x2x3"]),
        ({"H": ["n1", "n2"]}, ["-H", "n1,n2"]),
        ({"cores_per_rank": 2, "grace": 0.5}, ["--cores-per-rank=2", "--grace=0.5"]),
        ({"mpiarg": ["--mca", "btl"]}, ["--mpiarg=--mca", "--mpiarg=btl"]),
        ({"x": "SEED"}, ["-x", "SEED"]),
        ({"quiet": "yes"}, ["--quiet=yes"]),
        ({"env": {"A": "1", "B": "2"}}, ["-x", "A", "-x", "B"]),
        ({"quiet": True, "bind_threads": False, "hostfile": None}, ["--quiet", "--no-bind-threads"]),
    ],
)
def test_words_of_options(options: dict[str, OptionValue], words: list[str]) -> None:
    assert render_options(options) == words


def test_values_of_variables_are_not_on_the_command_line() -> None:
    options: dict[str, OptionValue] = {"env": {"TOKEN": "secret"}}
    assert "secret" not in " ".join(render_options(options))
    assert render_environment(options) == {"TOKEN": "secret"}


@pytest.mark.parametrize("name", ["dry_run", "json", "check_build"])
def test_options_that_start_no_job_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        ddlrun.launch("train.py", **{name: True})


def test_variables_are_a_mapping() -> None:
    with pytest.raises(InputError, match="env='A=1': give a mapping"):
        ddlrun.launch("train.py", env="A=1")


def test_a_variable_without_a_value_is_refused() -> None:
    with pytest.raises(InputError, match="env: A is None; give a string"):
        render_environment({"env": {"A": None}})  # type: ignore[dict-item]


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InputError, match="5 is not a function"):
        ddlrun.run(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"or launch a script: ddlrun.launch\('train.py'\)$"):
        ddlrun.run("train.py")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"h1", {"h1"}, {"h1": 2}])
def test_values_without_an_order_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^hosts=.*: give a string, a number, or a list of them$"):
        ddlrun.launch("train.py", hosts=value)


def test_arguments_of_a_function_are_no_option() -> None:
    with pytest.raises(InputError, match=r"args: give the arguments of the function after it: run\(train, 0.5\)"):
        ddlrun.run(print, args=("text",), np=2)


def test_a_command_line_is_no_list() -> None:
    with pytest.raises(InputError, match=r"write 'train.py', '3'$"):
        ddlrun.launch(["train.py", 3])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"call ddlrun.run with a function$"):
        ddlrun.launch(print)  # type: ignore[arg-type]


def test_arguments_of_a_script_are_strings() -> None:
    with pytest.raises(InputError, match="3: the script and its arguments are strings; write '3'"):
        ddlrun.launch("train.py", "--epochs", 3)  # type: ignore[arg-type]


def test_a_function_that_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be pickled"):
        ddlrun.run(len, sys._getframe())  # noqa: SLF001 - no pickler takes a frame


def test_a_function_of_a_script_needs_cloudpickle() -> None:
    code = "import sys; sys.modules['cloudpickle'] = None; import ddlrun; ddlrun.run(lambda: 0)"  # as if not installed
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith(f"which needs cloudpickle: {sys.executable} -m pip install cloudpickle")


def test_a_host_without_the_function_is_named(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ddlrun.api.call", "train", str(tmp_path)]
    environ = os.environ | {"OMPI_COMM_WORLD_RANK": "1"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"ddlrun: {tmp_path} on {os.uname().nodename}: No such file or directory; ddlrun.run passes the function"
    )


ENDS = st.builds(RankEnd, rank=st.integers(0, 99), signal=st.none() | st.integers(1, 64), seconds=st.floats(0, 1e6))
OUTCOMES = st.builds(
    Outcome,
    root=st.none() | ENDS,
    ends=st.lists(ENDS, max_size=3).map(tuple),
    seconds=st.floats(0, 1e6),
    until_end=st.floats(0, 1e6),
    reason=st.none() | st.text().filter(lambda text: "`" not in text),  # a record spells options
)


@given(OUTCOMES)
def test_an_outcome_survives_its_record(outcome: Outcome) -> None:
    record: dict[str, Any] = json.loads(json.dumps(outcome.as_dict()))
    assert parse_outcome(record) == outcome
    assert parse_outcome({**record, "of_a_later_version": 1}) == outcome
