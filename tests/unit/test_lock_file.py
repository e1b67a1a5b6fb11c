"""Environments from lock files, made by the real uv and pip from a wheel on this disk."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ddlrun.application.options.ship import read_ship, use_locked_environment
from ddlrun.application.shipping import make_archives
from ddlrun.cli.console import ConsoleReporter
from ddlrun.errors import InputError
from ddlrun.ship.environment import find_editable, find_environment
from ddlrun.ship.lock_file import make_environment, read_lock
from tests.support.wheels import write_wheel

SCRIPT = (sys.executable, "train.py")


def value_of(python: str) -> str:
    done = subprocess.run([python, "-c", "import demo; print(demo.value)"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_environment_of_pinned_requirements_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"# pinned\ndemo @ file://{tmp_path}/demo-1.0-py3-none-any.whl\n")
    with pytest.raises(InputError, match="was not installed; see above"):
        use_locked_environment({"ship": f"code,env={lock}"}, SCRIPT, ConsoleReporter())
    assert "demo-1.0-py3-none-any.whl" in capsys.readouterr().err
    (state,) = (tmp_path / "cache").rglob("*.state")
    os.utime(state, (1, 1))  # as if that had been long ago
    write_wheel(tmp_path)
    options, program = use_locked_environment({"ship": f"code,env={lock}"}, SCRIPT, ConsoleReporter())
    assert (options["ship"], program[1:]) == ("code,env", SCRIPT[1:])
    assert value_of(program[0]) == "7"
    assert find_environment(program[0]) == os.path.dirname(os.path.dirname(program[0]))
    assert "making the environment of" in capsys.readouterr().err
    folder = Path(program[0]).parents[1]
    before = os.stat(folder).st_mtime_ns
    assert use_locked_environment({"ship": f"env={lock}"}, SCRIPT, ConsoleReporter())[1] == program
    assert capsys.readouterr().err == ""
    assert os.stat(folder).st_mtime_ns == before  # so that it does not travel again


def test_files_of_an_environment_are_looked_at_again_if_its_packages_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    write_wheel(tmp_path)
    (tmp_path / "lock.txt").write_text(f"demo @ file://{tmp_path}/demo-1.0-py3-none-any.whl\n")
    options, program = use_locked_environment({"ship": f"env={tmp_path}/lock.txt"}, SCRIPT, ConsoleReporter())
    request = read_ship(options, program)
    assert request is not None
    (first,) = make_archives(request)
    assert first.files == len(first.entries or ()) > 0
    assert make_archives(request) == [replace(first, entries=None)]
    assert make_archives(request, whole=True) == [first]
    assert make_archives(request._replace(locked=False)) == [first]
    site = next(Path(program[0]).parents[1].glob("lib/python3*/site-packages"))
    (site / "demo.py").rename(site / "other.py")
    (other,) = make_archives(request)
    assert other.digest != first.digest
    assert make_archives(request) == [replace(other, entries=None)]


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
def test_the_environment_of_a_uv_project_imports_its_package(tmp_path: Path) -> None:
    write_wheel(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["demo"]\n'
        '[tool.uv.sources]\ndemo = { path = "demo-1.0-py3-none-any.whl" }\n'
    )
    subprocess.run(["uv", "lock", "--offline", "--quiet", "--project", str(tmp_path)], check=True)
    folder = make_environment(read_lock(f"{tmp_path}/uv.lock"), f"{tmp_path}/cache", print)
    assert value_of(f"{folder}/bin/python") == "7"
    assert find_editable(folder) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("requirements.txt", "torch==2.5.1\nnumpy>=2\n", "line 2, 'numpy>=2', has no exact version"),
        ("requirements.txt", "torch\n", "line 1, 'torch', has no exact version"),
        ("requirements.txt", "# nothing\n", "it has no requirements"),
        ("requirements.txt", "torch==2.5.1\n-r other==1.txt\n", "line 2, '-r other==1.txt', has no exact version"),
        ("requirements.txt", "torch==2.5.1\n-cother.txt\n", "line 2, '-cother.txt', has no exact version"),
        ("requirements.txt", "torch==2.5.1\n -e mine @ .\n", "line 2, '-e mine @ .', has no exact version"),
        ("requirements.txt", "--requirement=x\n", "line 1, '--requirement=x', has no exact version"),
        ("requirements.txt", "--constraint x\n", "line 1, '--constraint x', has no exact version"),
        ("requirements.txt", "--editable .\n", "line 1, '--editable .', has no exact version"),
        ("requirements.txt", "torch==2.5.1\n./mine\n", "line 2, './mine', has no exact version"),
        ("requirements.txt", "torch==2.5.1\n/src/mine\n", "line 2, '/src/mine', has no exact version"),
        ("uv.lock", "version = 1\n", "pyproject.toml: No such file"),
        ("missing.txt", None, "No such file"),
    ],
)
def test_what_is_no_lock_file_is_refused(name: str, text: str | None, problem: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=problem):
        read_lock(str(tmp_path / name))


def test_locked_requirements_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text(
        "--index-url https://pypi.org/simple\n--extra-index-url https://example.org\n--find-links /wheels\n"
        "torch==2.5.1 \\\n    --hash=sha256:ab \\\n    --hash=sha256:cd\n"
        "numpy==2.1.0 ; python_version >= '3.10'  # via torch\nmine @ file:///src/mine\nextra[a,b]===1.0\n"
    )
    assert not read_lock(str(tmp_path / "lock.txt")).of_uv


@pytest.mark.parametrize(
    ("ship", "program", "message"),
    [
        ("env,env=a.txt", SCRIPT, "several environments"),
        ("env=a.txt,env=b.txt", SCRIPT, "several environments"),
        ("env=a.txt", ("hostname",), "hostname is not a Python script"),
    ],
)
def test_wrong_elements_are_refused(ship: str, program: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        use_locked_environment({"ship": ship}, program, ConsoleReporter())
