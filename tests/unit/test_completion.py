"""Completion of command lines: what ddlrun answers to a shell, and what bash, zsh and fish make of it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from ddlrun.cli import group
from ddlrun.cli.completion import complete_line
from ddlrun.cli.show import VIEWS
from tests.support import needs
from tests.support.terminal import shell_at_terminal

SHARE = Path(__file__).parents[2] / "share"
BASH = SHARE / "bash-completion" / "completions" / "ddlrun"
ZSH = SHARE / "zsh" / "site-functions"
FISH = SHARE / "fish" / "vendor_completions.d" / "ddlrun.fish"
PRESETS = {path.stem for path in (Path(__file__).parents[2] / "configs" / "machines").glob("*.yaml")}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home folder with hosts of ssh, two runs, and files."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu1 gpu2 *.example\n  User me\n")
    (tmp_path / ".ssh" / "known_hosts").write_text("gpu3,10.1.1.3 ssh-ed25519 AAAA\n|1|a|b ssh-rsa AAAA\n")
    (tmp_path / "hosts").write_text("n[1-2] slots=4\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "rank file").write_text("")
    state = tmp_path / ".local" / "state" / "ddlrun"
    (state / "active").mkdir(parents=True)
    record = {
        "run": "20261122-101500-7-ab", "run_dir": "/runs/7", "hosts": ["n1"], "ranks": 2, "pid": 7, "host": "elsewhere",
        "process_start": "", "started": 0.0, "program": ["train.py"],
    }  # fmt: skip
    (state / "active" / str(record["run"])).write_text(json.dumps(record))
    (state / "runs" / "20261121-090000-5-cd").mkdir(parents=True)
    (state / "runs" / "20261121-090000-5-cd" / "plan.json").write_text("{}")
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    names = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "ENV", "BASH_ENV", "ZDOTDIR")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    path = f"{Path(sys.executable).parent}:{environ['PATH']}"
    return environ | {"HOME": str(home), "PATH": path, "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def query(*words: str, shell: str = "bash") -> dict[str, str]:
    """Return the variables by which the script of a shell requests the completions of the last word."""
    place = words[-1] if shell == "fish" else str(len(words))
    return {"_DDLRUN_COMPLETE": f"{shell}_complete", "COMP_WORDS": "\n".join(["ddlrun", *words]), "COMP_CWORD": place}


Answer = Callable[..., list[str]]


@pytest.fixture
def answer(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    """Return a function that returns the answer to a shell; there is nothing on standard error."""
    monkeypatch.chdir(home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))

    def complete(*words: str, shell: str = "bash") -> list[str]:
        for name, value in query(*words, shell=shell).items():
            monkeypatch.setenv(name, value)
        assert complete_line(group, "_DDLRUN_COMPLETE") == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out.splitlines()

    return complete


def plain(lines: list[str]) -> set[str]:
    return {line.partition(",")[2] for line in lines if line.startswith("plain,")}


def test_commands(answer: Answer) -> None:
    assert plain(answer("")) == set(group.list_commands(click.Context(group)))
    assert plain(answer("ch")) == {"check"}


def test_commands_of_a_group(answer: Answer) -> None:
    assert plain(answer("network", "")) == {"racks", "bench", "tune", "plan"}
    assert "--links" in plain(answer("network", "plan", "--l"))


def test_views_come_before_options_and_script(answer: Answer) -> None:
    assert plain(answer("show", "")) == set(VIEWS)
    assert plain(answer("show", "pl")) == {"placement"}
    assert "--machine" in plain(answer("show", "env", "--m"))
    assert answer("show", "env", "tr") == ["file,tr"]


@pytest.mark.parametrize("words", [["launch"], ["show", "env"], ["submit", "4x2"], ["gen-rankfile"], ["lint"]])
def test_presets_and_files_of_machine(answer: Answer, words: list[str]) -> None:
    lines = answer(*words, "--machine", "")
    assert plain(lines) == {*PRESETS, "local"}
    assert "file," in lines


def test_variables_that_are_exported(answer: Answer) -> None:
    assert {"ALL", "NONE", "PATH"} <= plain(answer("launch", "--export", ""))
    assert plain(answer("launch", "--export", "PATH,AL")) == {"PATH,ALL"}


@pytest.mark.parametrize("words", [["--machine", "=", "dgx"], ["--machine", "dgx"]])
def test_a_value_after_a_word_of_its_own(answer: Answer, words: list[str]) -> None:
    assert plain(answer("launch", *words)) == {name for name in PRESETS if name.startswith("dgx")}


def test_a_value_in_the_word_of_its_option(answer: Answer) -> None:
    expected = {f"--machine={name}" for name in PRESETS if name.startswith("dgx")}
    for shell in ("bash", "fish"):
        assert plain(answer("launch", "--machine=dgx", shell=shell)) == expected


@pytest.mark.parametrize("words", [["launch", "-H"], ["check"], ["probe"], ["gen-rankfile", "4x2"], ["clean"]])
def test_hosts_of_ssh(answer: Answer, words: list[str]) -> None:
    assert plain(answer(*words, "gpu")) == {"gpu1", "gpu2", "gpu3"}
    assert plain(answer(*words, "gpu1,g")) == {"gpu1,gpu2", "gpu1,gpu3"}


def test_hosts_of_the_hostfile_on_the_line(answer: Answer) -> None:
    assert plain(answer("launch", "--hostfile", "hosts", "--spare-hosts", "")) == {"extra", "n1", "n2"}
    assert plain(answer("check", "@ho")) == {"@hosts"}


def test_runs(answer: Answer) -> None:
    assert plain(answer("kill", "")) == {"20261122-101500-7-ab"}
    for command in ("report", "logs", "doctor", "rerun"):
        assert plain(answer(command, "2026")) == {"20261122-101500-7-ab", "20261121-090000-5-cd"}
    assert plain(answer("logs", "10")) == {"101500-7-ab"}
    assert plain(answer("logs", "la")) == {"last"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["launch", "--mode", ""], set("bnrmcp")),
        (["launch", "--scheduler", "s"], {"slurm", "sge"}),
        (["submit", "4x2", "--scheduler", "s"], {"slurm", "sge"}),
        (["rerun", "last", "--scheduler", "s"], {"slurm", "sge"}),
        (["rerun", "--mode", ""], set("bnrmcp")),
        (["rerun", "last", "--core"], {"--core-kinds", "--cores-per-rank"}),
        (["launch", "--framework", "torch,j"], {"torch,jax"}),
        (["launch", "--ranks-per-host", "n"], {"numa"}),
        (["check", "--checks", "tc"], {"tcp"}),
        (["network", "plan", "--links", "100gbe,nvlink1"], {"100gbe,nvlink1"}),
        (["launch", "--forward-signals", "USR"], {"USR1", "USR2"}),
        (["launch", "--npernode", "4", "--mode", "b"], {"b"}),
        (["launch", "-x", "COMP_WO"], {"COMP_WORDS"}),
    ],
)
def test_values(answer: Answer, words: list[str], expected: set[str]) -> None:
    assert plain(answer(*words)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["launch", "tr"], ["file,tr"]),
        (["launch", "train.py", "--da"], ["file,--da"]),
        (["launch", "--rankfile", ""], ["file,"]),
        (["launch", "--run-dir", ""], ["dir,"]),
        (["lint", "r"], ["file,r"]),
    ],
)
def test_paths(answer: Answer, words: list[str], expected: list[str]) -> None:
    assert answer(*words) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "--map-by", "node", "--mode", ""],
        ["show", "nonsense", ""],
        ["nonsense", ""],
        ["launch", "--config-file", "/nonexistent", "-H", ""],
        ["check", "--hostfile", "/nonexistent", ""],
        ["check", "@/nonexistent/"],
        ["submit", "--machine", "", "nonsense"],
        ["launch", "'unclosed"],
    ],
)
def test_a_broken_line_prints_no_error(answer: Answer, words: list[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        answer(*words, shell=shell)


def run(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddlrun"], capture_output=True, text=True, check=False, cwd=home,
        env=environment(home) | variables,
    )  # fmt: skip


def test_the_program_answers(home: Path) -> None:
    done = run(home, **query("launch", "--machine", "mi"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "file,mi\nplain,mi250x\n", "")


def test_the_program_prints_no_error(home: Path) -> None:
    done = run(home, **query("launch", "--map-by", "socket", "--mode", ""))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_shell_that_is_not_known_gets_no_answer(home: Path) -> None:
    done = run(home, _DDLRUN_COMPLETE="tcsh_complete")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def in_bash(home: Path, *words: str) -> list[str]:
    """Return COMPREPLY of the function that bash calls."""
    program = f"""
        source {BASH}
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _ddlrun_completion ddlrun
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", "ddlrun", *words], capture_output=True, text=True, check=True,
        env=environment(home), cwd=home,
    )  # fmt: skip
    return done.stdout.split()


def test_the_function_of_bash(home: Path) -> None:
    assert in_bash(home, "show", "") == list(VIEWS)
    assert in_bash(home, "launch", "--machine", "=", "dgx1") == ["dgx1"]
    assert in_bash(home, "kill", "2026") == ["20261122-101500-7-ab"]
    assert in_bash(home, "check", "gpu1,gpu2") == ["gpu1,gpu2"]


def test_bash_at_a_terminal(home: Path) -> None:
    with shell_at_terminal(
        ["bash", "--norc", "--noprofile", "-i"], environment(home) | {"PS1": "READY "}, home
    ) as bash:
        bash.wait_for("READY")
        bash.send(f"source {BASH}\n")
        bash.wait_for("\nREADY")
        bash.send("ddlrun show pl\t")
        bash.wait_for("placement ")
        bash.send("--machine=mi2\t")
        bash.wait_for("mi250x")
        bash.send("\x15ddlrun lint ran\t")
        bash.wait_for(r"rank\\ file ")
        assert "error" not in bash.output


def test_zsh_at_a_terminal(home: Path) -> None:
    needs.program("zsh", apt="zsh")
    environ = environment(home) | {"PS1": "READY "}
    with shell_at_terminal(["zsh", "-f", "-i"], environ, home) as zsh:
        zsh.wait_for("READY")
        zsh.send(f"fpath=({ZSH} $fpath); autoload -Uz compinit; compinit -u -D; PS1='LOADED '\n")
        zsh.wait_for("\nLOADED|\rLOADED")
        zsh.send("ddlrun show pl\t")
        zsh.wait_for("placement")
        zsh.send("--machine=mi2\t")
        zsh.wait_for("mi250x")
        zsh.send("\x15ddlrun lint ran\t")
        zsh.wait_for(r"k\\ file ")  # it may redraw the line
        assert "error" not in zsh.output


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ddlrun show pl", {"placement"}),
        ("ddlrun launch --machine=mi2", {"--machine=mi250x"}),
        ("ddlrun check gpu1,gpu2", {"gpu1,gpu2"}),
        ("ddlrun lint ran", {"rank file"}),
    ],
)
def test_fish(home: Path, line: str, expected: set[str]) -> None:
    needs.program("fish", apt="fish")
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {FISH}; complete -C '{line}'"], capture_output=True, text=True,
        check=True, env=environment(home), cwd=home,
    )  # fmt: skip
    assert done.stderr == ""
    assert {entry.partition("\t")[0] for entry in done.stdout.splitlines()} == expected
