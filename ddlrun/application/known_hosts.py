"""Names of hosts that this user's files know: of a hostfile, of ssh, and of the system."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from ddlrun.errors import InputError
from ddlrun.hosts import parse_hostfile

SSH_CONFIG = "~/.ssh/config"
SSH_KNOWN_HOSTS = "~/.ssh/known_hosts"
SYSTEM_HOSTS = "/etc/hosts"


def known_hosts(hostfile: str | None) -> list[str]:
    """Return the hosts of a hostfile; without one, those of ssh's files and of /etc/hosts."""
    if hostfile is not None:
        with suppress(InputError):
            return list(parse_hostfile(_read(hostfile), hostfile).names)
        return []
    names = [
        *parse_ssh_config(_read(SSH_CONFIG)),
        *parse_known_hosts(_read(SSH_KNOWN_HOSTS)),
        *parse_system_hosts(_read(SYSTEM_HOSTS)),
    ]
    return sorted(dict.fromkeys(names))


def hostfile_names(word: str) -> list[str]:
    """Return @FILE for each file that a word such as @dir/ho may become; folders end with a slash."""
    folder, slash, _ = word[1:].rpartition("/")
    try:
        names = sorted(os.listdir(folder + slash or "."))
    except OSError:
        return []
    paths = [f"{folder}{slash}{name}" for name in names if not name.startswith(".")]
    return [f"@{path}/" if os.path.isdir(path) else f"@{path}" for path in paths]


def _read(path: str) -> str:
    """Return the text of a file; empty where it cannot be read."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def parse_ssh_config(text: str) -> list[str]:
    r"""Return the hosts of ssh_config(5), without patterns.

    >>> parse_ssh_config("Host n1 n2 *.example !x\n  HostName 10.0.0.1\nhost=n3")
    ['n1', 'n2', 'n3']
    """
    lines = re.findall(r"(?mi)^[ \t]*host(?:[ \t]*=[ \t]*|[ \t]+)(.+)$", text)
    return [name for line in lines for name in line.split() if not re.search(r"[*?!\"#]", name)]


def parse_known_hosts(text: str) -> list[str]:
    r"""Return the hosts of ssh's known_hosts, without those that are hashed or patterns.

    >>> parse_known_hosts("n1,10.0.0.1 ssh-rsa AA\n|1|abc|def ssh-rsa AA\n@revoked n2 ssh-rsa AA\n[n3]:2222 ssh-rsa AA")
    ['n1', '10.0.0.1', 'n3']
    """
    fields = [line.split(" ", 1)[0] for line in text.splitlines() if line[:1] not in ("#", "|", "@", "")]
    names = (name for field in fields for name in field.split(","))
    return [re.sub(r"^\[(.*)\]:\d+$", r"\1", name) for name in names if not re.search(r"[*?!]", name)]


def parse_system_hosts(text: str) -> Iterator[str]:
    r"""Yield the names of hosts(5), without those of loopback and multicast addresses.

    >>> list(parse_system_hosts("127.0.0.1 localhost\n10.0.0.1 n1.example n1 # first\nff02::1 ip6-allnodes"))
    ['n1.example', 'n1']
    """
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if not re.match(r"127\.|::1$|f[ef]0", address):
            yield from names
