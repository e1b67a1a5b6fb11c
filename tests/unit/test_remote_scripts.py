"""The shell on another host that gets its script through standard input: whole, in time, or not at all."""

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from ddlrun.remote.agent import RUN_SCRIPT, AgentLauncher
from ddlrun.remote.fan_out import run_on_hosts

SCRIPT = b"{\nprintf '%s\\n' '$HOME!' '\\\\'\ncat <<'@end'\n$x\n@end\ncat\nexit 3\n}\n"
Shell = subprocess.Popen[bytes]
LOGIN_SHELLS = ("sh", "bash", "tcsh", "fish", "zsh", "mksh", "busybox")


def start(shell: str, size: int, seconds: int = 60, stdin: int = subprocess.PIPE, **environ: str) -> Shell:
    """Start the shell of a script of some bytes by a login shell."""
    assert "@bytes" in RUN_SCRIPT
    assert "timeout 60" in RUN_SCRIPT
    command = RUN_SCRIPT.replace("@bytes", str(size)).replace("timeout 60", f"timeout {seconds}")
    words = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else []), "-c", command]
    return subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], **environ})


@pytest.mark.parametrize("shell", [shell for shell in LOGIN_SHELLS if shutil.which(shell)])
def test_any_login_shell_runs_a_script_that_then_reads_what_follows(shell: str) -> None:
    with start(shell, len(SCRIPT)) as process:
        out, _ = process.communicate(SCRIPT + b"more\n")
    assert (process.returncode, out) == (3, b"$HOME!\n\\\\\n$x\nmore\n")


@pytest.mark.parametrize("arrived", [b"", SCRIPT[:-2]])
def test_a_shell_whose_script_does_not_arrive_ends_in_time(arrived: bytes) -> None:
    with start("sh", len(SCRIPT), seconds=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(arrived)
        process.stdin.flush()
        assert (process.wait(300), process.stdout.read()) == (124, b"")


def test_no_part_of_a_script_runs_if_its_end_is_missing() -> None:
    for size in range(len(SCRIPT) - 1):
        with start("sh", len(SCRIPT)) as process:
            out, _ = process.communicate(SCRIPT[:size])
        assert out == b"", SCRIPT[:size]


@pytest.mark.parametrize("old", [False, True])
def test_a_host_without_a_modern_timeout_runs_whole_scripts_alone(tmp_path: Path, *, old: bool) -> None:
    for name in ("sh", "cat", "head"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    if old:  # that of BusyBox before 1.30, which takes its seconds as an option
        (tmp_path / "timeout").write_text('#!/bin/sh\n[ "$1" = -t ] || exit 127\n')
        (tmp_path / "timeout").chmod(0o755)
    for size in (len(SCRIPT), len(SCRIPT) - 2):
        with start("sh", size, PATH=str(tmp_path)) as process:
            out, _ = process.communicate(SCRIPT[:size])
        assert out.startswith(b"$HOME!") == (size == len(SCRIPT))


def test_a_terminal_is_read_as_one() -> None:
    """As with ssh -tt: the program in the background that reads a terminal would be stopped."""
    ours, theirs = pty.openpty()
    with start("sh", len(SCRIPT), stdin=theirs) as process:
        os.write(ours, b"echo done; exit\n")
        out, _ = process.communicate()
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
