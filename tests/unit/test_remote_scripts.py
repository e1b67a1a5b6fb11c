"""The shell on another host that gets its script through standard input: whole, in time, or not at all."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddlrun.remote.agent import AgentLauncher, run_script
from ddlrun.remote.fan_out import run_on_hosts
from ddlrun.remote.processes import FinishedProcess
from tests.support.processes import mark, running
from tests.support.waiting import wait_until

Shell = subprocess.Popen[bytes]
SCRIPT = b"{\nprintf '%s\\n' '$HOME!' '\\\\'\ncat <<'@end'\n$x\n@end\ncat\nexit 3\n}\n"
LOGIN_SHELLS = ("sh", "bash", "tcsh", "fish", "zsh", "mksh", "busybox")


def start(shell: str, size: int, seconds: int = 60, stdin: int = subprocess.PIPE, **environ: str) -> Shell:
    """Start the command for a script of `size` bytes by a login shell."""
    words = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else []), "-c"]
    return subprocess.Popen(
        [*words, run_script(str(size), seconds)], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **environ}, bufsize=0,
    )  # fmt: skip


@pytest.mark.parametrize("shell", [shell for shell in LOGIN_SHELLS if shutil.which(shell)])
def test_any_login_shell_runs_a_script_that_then_reads_what_follows(shell: str) -> None:
    with start(shell, len(SCRIPT)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(SCRIPT)
        process.stdin.flush()
        first = process.stdout.readline()
        out, errors = process.communicate(b"more\n")
    assert (process.returncode, first + out, errors) == (3, b"$HOME!\n\\\\\n$x\nmore\n", b"")


@pytest.mark.parametrize("arrived", [b"", SCRIPT[:-2]])
@pytest.mark.parametrize("busybox", [False, True])
def test_a_shell_whose_script_does_not_arrive_exits_after_its_limit(
    tmp_path: Path, arrived: bytes, *, busybox: bool
) -> None:
    if busybox:  # whose timeout exits with the signal
        (tmp_path / "timeout").write_text(f'#!/bin/sh\n{shutil.which("timeout")} "$@"\nexit 143\n')
        (tmp_path / "timeout").chmod(0o755)
    reading, writing = os.pipe()
    os.write(writing, arrived)
    path = f"{tmp_path}:{os.environ['PATH']}"
    with start("sh", len(SCRIPT), seconds=1, stdin=reading, PATH=path) as process:
        out, errors = process.communicate()
    os.close(reading)
    os.close(writing)
    assert (process.returncode, out, errors) == (124, b"", b"the script for this host did not arrive in time\n")


def test_an_incomplete_script_does_not_run() -> None:
    for size in range(len(SCRIPT) - 1):
        with start("sh", len(SCRIPT)) as process:
            out, _ = process.communicate(SCRIPT[:size])
        assert (out, process.returncode == 0) == (b"", size == 0), SCRIPT[:size]


def test_the_rest_of_a_script_does_not_run_if_reading_fails(tmp_path: Path) -> None:
    (tmp_path / "head").write_text("#!/bin/sh\nread line\nexit 1\n")
    (tmp_path / "head").chmod(0o755)
    script = b"{\necho begin\necho rest\n}\n"
    with start("sh", len(script), PATH=f"{tmp_path}:{os.environ['PATH']}") as process:
        out, _ = process.communicate(script)
    assert (process.returncode, out) == (124, b"")


@pytest.mark.parametrize("old", [False, True])
def test_without_a_modern_timeout_complete_scripts_alone_run(tmp_path: Path, *, old: bool) -> None:
    for name in ("sh", "cat", "head"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    if old:  # that of BusyBox before 1.30, which takes its seconds as an option
        (tmp_path / "timeout").write_text('#!/bin/sh\n[ "$1" = -t ] || exit 127\n')
        (tmp_path / "timeout").chmod(0o755)
    for size in (len(SCRIPT), len(SCRIPT) - 2):
        with start("sh", size, PATH=str(tmp_path)) as process:
            out, _ = process.communicate(SCRIPT[:size])
        assert out.startswith(b"$HOME!") == (size == len(SCRIPT))


def test_a_terminal_has_no_time_limit() -> None:
    """As with ssh -tt, where a program in the background may not read the terminal."""
    ours, theirs = pty.openpty()
    with start("sh", len(SCRIPT), stdin=theirs) as process:
        os.write(ours, b"echo done; exit\n")
        out, _ = process.communicate(timeout=300)
    os.close(ours)
    os.close(theirs)
    assert out.endswith(b"done\n")


def test_programs_do_not_inherit_the_script() -> None:
    script = b"{\n: %200000d\nenv\n}\n" % 0
    with start("sh", len(script), s="of the user") as process:
        out, _ = process.communicate(script)
    assert b"PATH=" in out
    assert len(out) < len(script)


def test_hosts_get_their_scripts_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    long = f"words='{'ü ' * 100_000}'\necho ${{#words}}\n"
    replies = run_on_hosts({"h1": long, "h2": "cat <<'@end'\n100 %h $HOME\n@end"}, AgentLauncher(), 300.0)
    assert [(reply.code, reply.err) for reply in replies.values()] == [(0, "")] * 2
    assert int(replies["h1"].out) in (200_000, 300_000)
    assert replies["h2"].out == "100 %h $HOME"


def test_the_limit_grows_with_the_number_of_hosts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor command; do :; done\necho "$command" | grep -o "timeout [0-9]*"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    scripts = {f"h{number}": f"# {number}\n" for number in range(3)}
    limits = [run_on_hosts(scripts, AgentLauncher(), 300.0, fanout)["h1"].out for fanout in (3, 128, 10_000)]
    assert limits == ["timeout 60", "timeout 62", "timeout 260"]


def agent(folder: Path, script: str) -> AgentLauncher:
    """Return a launcher whose agent runs a script, of which $1 is the host."""
    path = folder / "agent"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return AgentLauncher("agent", (str(path),))


def test_a_command_is_killed_after_the_limit_and_its_output_is_kept(tmp_path: Path) -> None:
    launcher = agent(tmp_path, "[ $1 = h1 ] || exec echo good\necho begin; sleep 300 & wait")
    replies = run_on_hosts({"h1": "", "h2": ""}, launcher, 1.0)
    assert replies == {"h1": FinishedProcess(None, "begin", ""), "h2": FinishedProcess(0, "good", "")}


def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    launcher = agent(tmp_path, "exec >&- 2>&-\nsleep 0.1; exit 7")
    assert run_on_hosts({"h1": ""}, launcher, 300.0)["h1"] == FinishedProcess(7, "", "")


def test_a_signal_is_an_exit_code_as_in_a_shell(tmp_path: Path) -> None:
    assert run_on_hosts({"h1": ""}, agent(tmp_path, "kill -HUP $$"), 300.0)["h1"].code == 128 + signal.SIGHUP


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    replies = run_on_hosts({"h1": ""}, AgentLauncher("agent", (f"{tmp_path}/missing",)), 300.0)
    assert replies["h1"] == FinishedProcess(127, "", f"{tmp_path}/missing: No such file or directory")


def test_so_many_commands_run_at_once(tmp_path: Path) -> None:
    launcher = agent(tmp_path, f"mkdir {tmp_path}/$1; ls {tmp_path} | grep -c h; sleep 0.1; rmdir {tmp_path}/$1")
    replies = run_on_hosts({f"h{number}": "" for number in range(6)}, launcher, 300.0, 2)
    assert {reply.out for reply in replies.values()} <= {"1", "2"}


RUN = """
import sys
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.fan_out import run_on_hosts
run_on_hosts(dict.fromkeys(("h1", "h2", "h3"), ""), AgentLauncher("agent", (sys.argv[1],)), 300.0)
"""


def test_an_interrupt_ends_all_commands(tmp_path: Path) -> None:
    seconds = mark()
    (path,) = agent(tmp_path, f"exec sleep {seconds}").words
    with subprocess.Popen([sys.executable, "-c", RUN, path], stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(running(seconds)) == 3)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == -signal.SIGINT
    assert not running(seconds)
