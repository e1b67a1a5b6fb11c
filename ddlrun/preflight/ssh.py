"""Failures of ssh: the reason why a script could not be run on a host, and the remedy."""

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ddlrun.remote.processes import FinishedProcess


class SshRule(NamedTuple):
    """The texts of one problem, with {fields} for its values.

    `pattern` matches ssh's own message; None: the problem is recognised otherwise. {line} is that message.
    """

    pattern: str | None
    message: str
    remedy: str


_TRY = "try: {ssh} {host} true"


class SshProblem(Enum):
    """The reasons why ssh runs no script; the first whose pattern matches is reported."""

    HOST_KEY_CHANGED = SshRule(
        r"IDENTIFICATION HAS CHANGED|host key for .* has changed|Offending .* key in",
        "its host key is not the one in known_hosts: {host} is another machine, or was changed",
        "if it was installed anew: ssh-keygen -R {entry}, then {ssh} {host} once by hand, and compare the fingerprint",
    )
    HOST_KEY_UNKNOWN = SshRule(
        r"Host key verification failed|No \S+ host key is known",
        "Host key verification failed: known_hosts has no key of {host}",
        "{ssh} {host} once by hand, and compare the fingerprint before you accept it (ddlrun never does)",
    )
    UNKNOWN_NAME = SshRule(
        r"Could not resolve hostname",
        "{line}",
        "correct the name, or add it to /etc/hosts or DNS: getent hosts {host}",
    )
    KEY_REJECTED = SshRule(
        r"Permission denied|Too many authentication failures",
        "{line}",
        "ssh-copy-id {options}{host} (or name the key: `-i` FILE; a key with a passphrase needs ssh-agent)",
    )
    REFUSED = SshRule(r"Connection refused", "{line}", f"{_TRY} (start sshd there, or name its port: `-p`)")
    NO_ROUTE = SshRule(r"No route to host|Network is unreachable", "{line}", f"{_TRY} (is it up, and on your network?)")
    TIMED_OUT = SshRule(r"timed? ?out", "{line}", f"{_TRY} (is it up, does a firewall drop port {{port}}?)")
    CLOSED = SshRule(
        r"Connection (closed|reset)|kex_exchange_identification",
        "{line}",
        f"see its sshd's log (MaxStartups, hosts.deny, AllowUsers); {_TRY}",
    )
    NO_SHELL = SshRule(
        r"command not found|: not found", "{line}", "its login shell finds no sh: {ssh} {host} 'echo $PATH'"
    )
    NO_ANSWER = SshRule(
        None, "no answer in time ({seconds:g} s)", f"{_TRY} (is it up, does a firewall drop port {{port}}?)"
    )
    SHELL_ENDED = SshRule(None, "{line}", "see what its shell's start files do: {ssh} {host} true")
    OTHER = SshRule(None, "{line}", _TRY)
    NO_CLIENT = SshRule(None, "ssh is not on this machine's PATH", "install openssh-client on this machine")
    NO_LAUNCHER = SshRule(
        None, "{launcher} is not on this machine's PATH", "put it on PATH, or start programs by ssh: `--launcher` ssh"
    )


class SshFailure(NamedTuple):
    """ssh's failure on one host; `values` fill in the texts of its problem."""

    problem: SshProblem
    values: Mapping[str, object]

    @property
    def message(self) -> str:
        """The problem."""
        return self.problem.value.message.format_map(self.values)

    @property
    def remedy(self) -> str:
        """How to correct it."""
        return self.problem.value.remedy.format_map(self.values)


def missing_client(launcher: str) -> SshFailure:
    """Return the failure on every host where ssh, or the launcher of a scheduler, is not on PATH."""
    problem = SshProblem.NO_CLIENT if launcher == "ssh" else SshProblem.NO_LAUNCHER
    return SshFailure(problem, {"launcher": launcher})


def explain_failure(host: str, reply: FinishedProcess, ssh: Sequence[str], seconds: float) -> SshFailure:
    """Return the reason why a host's reply is missing or incomplete; `ssh` is the command line without the host."""
    lines = [line.strip() for line in reply.err.splitlines() if line.strip()]
    port = ssh[ssh.index("-p") + 1] if "-p" in ssh else "22"
    problem, line = _recognise(lines) or _guess(reply, lines)
    values = {
        "host": host,
        "line": line,
        "seconds": seconds,
        "ssh": shlex.join(ssh),
        "port": port,
        "options": "".join(f"{word} " for word in map(shlex.quote, ssh[1:])),
        "entry": host if port == "22" else shlex.quote(f"[{host}]:{port}"),
    }
    return SshFailure(problem, values)


def _recognise(lines: Sequence[str]) -> tuple[SshProblem, str] | None:
    """Return the problem that ssh's messages name, and the message."""
    for problem in SshProblem:
        pattern = problem.value.pattern
        line = next((line for line in lines if pattern is not None and re.search(pattern, line)), None)
        if line is not None:
            return problem, line
    return None


def _guess(reply: FinishedProcess, lines: Sequence[str]) -> tuple[SshProblem, str]:
    """Return the problem that the exit code and the output show, and ssh's last message."""
    if reply.code is None:
        return SshProblem.NO_ANSWER, ""
    if reply.code == 0 or "@" in reply.out:
        return SshProblem.SHELL_ENDED, lines[-1] if lines else f"its shell ended early (exit code {reply.code})"
    return SshProblem.OTHER, lines[-1] if lines else f"exit code {reply.code}"
