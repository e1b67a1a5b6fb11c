"""The shell on another host that gets its script through standard input: whole, in time, or not at all."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ddlrun.remote.agent import RUN_SCRIPT, AgentLauncher
from ddlrun.remote.fan_out import run_on_hosts

SCRIPT = b"{\nprintf '%s\\n' '$HOME!' '\\\\'\ncat <<'@end'\n$x\n@end\ncat\nexit 3\n}\n"
LOGIN_SHELLS = ("sh", "bash", "tcsh", "fish", "zsh", "mksh", "busybox")


def start(shell: str, size: int, seconds: int = 60, path: str = os.environ["PATH"]) -> subprocess.Popen[bytes]:
    """Start the shell of a script of some bytes by a login shell."""
    command = RUN_SCRIPT.replace("@bytes", str(size)).replace("timeout 60", f"timeout {seconds}")
    words = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else []), "-c", command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": path})


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


def test_a_host_without_timeout_runs_scripts(tmp_path: Path) -> None:
    for name in ("sh", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    with start("sh", len(SCRIPT), path=str(tmp_path)) as process:
        out, _ = process.communicate(SCRIPT)
    assert out.startswith(b"$HOME!")


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
