"""Wrappers, debuggers and standard input of chosen ranks: options to values, and values to command lines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.application.options.supervision import parse_wrapper, read_input
from ddlrun.errors import InputError
from ddlrun.keeper.command_line import WRAPPERS, wrap
from ddlrun.keeper.program_streams import VARIABLE, ProgramInput, read_request
from ddlrun.plan.supervision import InputMode, RankInput
from ddlrun.plan.wrappers import DEBUGGER, Wrapper, highest_rank, make_debugger, render_wrappers
from ddlrun.wire.loop import Loop

NO_INPUT = {"stdin_rank": None, "debug_rank": None, "pty": False, "processes": None}


def test_wrappers_reach_their_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    wrappers = (parse_wrapper("0,2-3:perf record -o '{run}/perf {rank}'"), parse_wrapper("all:env A={host}"))
    monkeypatch.setenv("DDLRUN_RUN_DIR", str(run))
    commands = []
    for rank in (1, 2):
        monkeypatch.setenv(WRAPPERS, render_wrappers(wrappers)[WRAPPERS])
        commands.append(wrap(["train"], rank, 0))
        assert WRAPPERS not in os.environ
        assert run.exists() == (rank == 2)
    inner = ["env", f"A={os.uname().nodename}", "train"]
    assert commands == [inner, ["perf", "record", "-o", f"{run}/perf 2", *inner]]
    assert wrap(["train"], 0, 0) == ["train"]
    assert (highest_rank(wrappers), highest_rank([Wrapper(None, ("x",))])) == (3, -1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("perf record", "--wrap 'perf record': no ranks; write RANKS:COMMAND, such as"),
        ("0:", "--wrap '0:': no command; write RANKS:COMMAND"),
        ("3-1:perf", "--wrap '3-1': '3-1' is not a rank; write a list such as 0,3-5"),
        ("0:perf 'x", '--wrap "0:perf \'x": No closing quotation'),
    ],
)
def test_wrappers_that_cannot_be_read(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_wrapper(text)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (("/v/bin/python", "train.py", "-m"), ["/v/bin/python", DEBUGGER, "train.py", "-m"]),
        (("python3.11", "-u", "-m", "train", "x"), ["python3.11", "-u", DEBUGGER, "-m", "train", "x"]),
        (("./a.out", "x"), ["gdb", "--args", "./a.out", "x"]),
    ],
)
def test_debugged_programs(program: tuple[str, ...], words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WRAPPERS, render_wrappers((make_debugger(program, 2),))[WRAPPERS])
    assert wrap(list(program), 2, 0) == words


@pytest.mark.parametrize("program", ["python", "python -m", "python -c pass"])
def test_programs_that_cannot_be_debugged(program: str) -> None:
    with pytest.raises(InputError, match="--debug-rank: no script in"):
        make_debugger(tuple(program.split()), 0)


def test_the_rank_that_gets_standard_input() -> None:
    program = ("train.py",)
    assert read_input(NO_INPUT, program) is None
    assert read_input(NO_INPUT | {"stdin_rank": 3}, program) == RankInput(3, InputMode.PIPE)
    assert read_input(NO_INPUT | {"stdin_rank": 3, "pty": True}, program) == RankInput(3, InputMode.TERMINAL)
    assert read_input(NO_INPUT | {"pty": True}, program) == RankInput(0, InputMode.TERMINAL)
    assert read_input(NO_INPUT | {"debug_rank": 1, "pty": True}, program) == RankInput(1, InputMode.DEBUGGER)
    with pytest.raises(InputError, match="rank 1 has the terminal; omit --stdin-rank 3"):
        read_input(NO_INPUT | {"debug_rank": 1, "stdin_rank": 3}, program)


def test_other_ranks_ignore_breakpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "")  # so that the end of the test removes it
    monkeypatch.delenv("PYTHONBREAKPOINT")
    monkeypatch.setenv(VARIABLE, "1 pipe 24 80")
    assert read_request(0) is None
    assert "PYTHONBREAKPOINT" not in os.environ
    monkeypatch.setenv(VARIABLE, "1 debugger 24 80")
    assert read_request(0) is None
    assert os.environ["PYTHONBREAKPOINT"] == "0"
    monkeypatch.setenv(VARIABLE, "1 debugger 24 80")
    request = read_request(1)
    assert request is not None
    assert (request.terminal, request.rows, request.columns) == (True, 24, 80)
    assert "PYTHONBREAKPOINT" not in os.environ


def test_input_waits_for_the_program() -> None:
    reader, writer = os.pipe()
    stdin = ProgramInput(writer, terminal=False)
    taken = 0
    loop, requests = Loop(), list[int]()
    stdin.begin(loop, lambda: requests.append(taken))
    stdin.add(b"x" * 200_000)
    while stdin.waiting:
        taken += len(os.read(reader, 1 << 16))
        loop.wait()
    assert (len(requests), requests[0]) == (2, 0)
    stdin.add(b"")
    assert len(requests) == 2  # nothing follows the end
    with open(reader, "rb") as rest:
        assert taken + len(rest.read()) == 200_000
    loop.close()


def test_input_of_a_program_that_does_not_read() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stdin = ProgramInput(writer, terminal=False)
    loop, requests = Loop(), list[bool]()
    stdin.begin(loop, lambda: requests.append(bool(stdin.waiting)))
    stdin.add(b"x")
    assert (requests, stdin.waiting) == ([False], b"")
    loop.close()
    stdin.resize(24, 80)


SCRIPT = """import sys
print(__name__, sys.argv[1:])
def divide(a):
    return a / 0
if sys.argv[1:]:
    divide(3)
"""


@pytest.mark.parametrize("target", [["-m", "work"], ["work.py"]])
def test_the_debugger_runs_a_script_once(tmp_path: Path, target: list[str]) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)

    def debug(commands: str, *args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, DEBUGGER, *target, *args]
        return subprocess.run(argv, input=commands, cwd=tmp_path, capture_output=True, text=True, check=False)

    whole = debug("n\nc\n")
    assert (whole.returncode, whole.stdout.count("__main__ []")) == (0, 1)
    assert "work.py(1)<module>()" in whole.stdout
    failed = debug("c\np a + 39\nq\n", "x")
    assert (failed.returncode, "42\n" in failed.stdout) == (1, True)
    assert failed.stderr.count("ZeroDivisionError") == 1
    assert "debugger.py" not in failed.stderr
    assert debug("q\n").returncode == 1


def test_the_variable_is_json() -> None:
    (record,) = json.loads(render_wrappers((Wrapper(frozenset((2, 0)), ("a b", "é")),))[WRAPPERS])
    assert record == {"ranks": [[0, 0], [2, 2]], "words": ["a b", "é"], "replaced": 0, "literal": False}
    assert render_wrappers(()) == {}
