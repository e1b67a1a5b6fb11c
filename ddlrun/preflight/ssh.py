"""Why ssh could not bring a script to a host, and the line that mends it."""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from ddlrun.remote.processes import FinishedProcess


class SshFailure(NamedTuple):
    """What ssh's failure is, as `kind`, what it said, and what mends it."""

    kind: str
    what: str
    remedy: str


NO_CLIENT = SshFailure(
    "no ssh here", "there is no ssh on this machine's PATH", "install openssh-client on this machine"
)
# What ssh says -> kind and remedy; {ssh} is its command line without the host.  The first wins.
_TROUBLES = (
    (
        r"IDENTIFICATION HAS CHANGED|host key for .* has changed|Offending .* key in",
        "host key changed",
        "if it was installed anew: ssh-keygen -R {entry}, then {ssh} {host} once by hand, and compare the fingerprint",
    ),
    (
        r"Host key verification failed|No \S+ host key is known",
        "host key unknown",
        "{ssh} {host} once by hand, and compare the fingerprint before you accept it (ddlrun never does)",
    ),
    (r"Could not resolve hostname", "name", "correct the name, or add it to /etc/hosts or DNS: getent hosts {host}"),
    (
        r"Permission denied|Too many authentication failures",
        "key not accepted",
        "ssh-copy-id {options}{host} (or name the key: -i FILE; a key with a passphrase needs ssh-agent)",
    ),
    (r"Connection refused", "refused", "try: {ssh} {host} true (start sshd there, or name its port: -p)"),
    (r"No route to host|Network is unreachable", "no route", "try: {ssh} {host} true (is it up, and on your network?)"),
    (r"timed? ?out", "timed out", "try: {ssh} {host} true (is it up, does a firewall drop port {port}?)"),
    (
        r"Connection (closed|reset)|kex_exchange_identification",
        "closed",
        "see its sshd's log (MaxStartups, hosts.deny, AllowUsers); try: {ssh} {host} true",
    ),
    (r"command not found|: not found", "command not found", "its login shell finds no sh: {ssh} {host} 'echo $PATH'"),
)


def trouble(host: str, answer: FinishedProcess, ssh: Sequence[str], seconds: float) -> SshFailure:
    """Say why there is no whole answer of a host; `ssh` is the command line without the host."""
    said = [line.strip() for line in answer.err.splitlines() if line.strip()]
    port = ssh[ssh.index("-p") + 1] if "-p" in ssh else "22"
    fields = {
        "host": host,
        "ssh": shlex.join(ssh),
        "port": port,
        "options": "".join(f"{word} " for word in map(shlex.quote, ssh[1:])),
        "entry": host if port == "22" else shlex.quote(f"[{host}]:{port}"),
    }
    for pattern, kind, remedy in _TROUBLES:
        line = next((line for line in said if re.search(pattern, line)), None)
        if line is not None:
            return SshFailure(kind, _worded(kind, host, line), remedy.format(**fields))
    if answer.code is None:
        remedy = "try: {ssh} {host} true (is it up, does a firewall drop port {port}?)".format(**fields)
        return SshFailure("timed out", f"no answer in time ({seconds:g} s)", remedy)
    if answer.code == 0 or "@" in answer.out:
        what = f"its shell ended early (exit code {answer.code})"
        return SshFailure(
            "shell",
            said[-1] if said else what,
            "see what its shell's start files do: {ssh} {host} true".format(**fields),
        )
    last = said[-1] if said else f"exit code {answer.code}"
    return SshFailure("other", last, "try: {ssh} {host} true".format(**fields))


def _worded(kind: str, host: str, line: str) -> str:
    """Say in one line what ssh says in a banner of @."""
    return {
        "host key changed": f"its host key is not the one in known_hosts: {host} is another machine, or was changed",
        "host key unknown": f"Host key verification failed: known_hosts has no key of {host}",
    }.get(kind, line)
