"""Namespaces of the test cluster: network, UTS and mount namespaces of root, or of an ordinary user.

Root makes them directly. An ordinary user makes them in a user namespace in which he is root. The programs of his hosts
run in a second user namespace, in which he is himself and has no privileges, as sshd needs it.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.cluster.reaper import PATIENCE, processes

SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
REAPER = Path(__file__).with_name("reaper.py")
SWITCH = "switch"
# Each program, and Debian's package of it.
PROGRAMS = {"nsenter": "util-linux", "unshare": "util-linux", "mount": "mount", "hostname": "hostname"}
USER_NAMESPACE = ("--user", "--map-root-user")
# The settings that forbid user namespaces, with the value that does.
FORBIDDING = {
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user/max_user_namespaces": ("0", "10000"),
}


class ClusterError(Exception):
    """The cluster cannot be built; the text is the output of the program that failed."""


def program(name: str) -> str:
    """Return a program's path, from PATH or sbin; the bare name where it is missing."""
    return shutil.which(name, path=SYSTEM_PATH) or name


def missing(programs: dict[str, str]) -> str:
    """Return the first missing program with the command that installs its package; empty if none is missing."""
    absent = (
        f"no {name}: sudo apt-get install {package}" for name, package in programs.items() if program(name) == name
    )
    return next(absent, "")


@functools.cache
def why_not() -> str:
    """Return the reason why this process cannot make hosts, and the command that remedies it; empty if it can."""
    if reason := missing(PROGRAMS):
        return reason
    # A mount shows that the user is root there: a user namespace without privileges is of no use.
    argv = [
        program("unshare"),
        *_user_namespace(),
        "--net",
        "--uts",
        "--mount",
        "mount",
        "-t",
        "sysfs",
        "sysfs",
        "/sys",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return f"no namespaces: {_remedy()}" if done.returncode else ""


def _remedy() -> str:
    for name, (forbids, allows) in FORBIDDING.items():
        with suppress(OSError):
            if os.geteuid() and Path("/proc/sys", name).read_text().strip() == forbids:
                return f"sudo sysctl {name.replace('/', '.')}={allows}"
    return "docker run --privileged (this seems to be a container without privileges)"


def _user_namespace() -> tuple[str, ...]:
    return () if os.geteuid() == 0 else USER_NAMESPACE


def output(command: Sequence[str], stdin: str = "") -> str:
    """Run a program on the real machine and return its output. Raises ClusterError if it fails."""
    argv = [program(command[0]), *command[1:]]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Namespaces:
    """The namespaces of hosts, and a network namespace SWITCH; they last until `close` or the end of this Python."""

    def __init__(self, folder: Path) -> None:
        """Start the reaper, which removes the folder too."""
        self._folder = folder
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._inodes: dict[str, int] = {}
        python = [sys.executable, "-IS", str(REAPER), str(folder)]
        self._start(SWITCH, [program("unshare"), *_user_namespace(), "--net", *python])

    def hold(self, name: str, script: str, *words: str) -> None:
        """Make the namespaces of a host, and set it up by a shell script, which runs as root there.

        The script gets `words` as $1, $2, ... It must end without `exec`.
        """
        waiting = ["sh", "-c", "echo ready; exec cat >/dev/null"]  # until this Python ends
        if os.geteuid():
            ids = [f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
            waiting = [program("unshare"), "--user", *ids, *waiting]
        tail = f'{script}\nshift {len(words)}\nexec "$@"'
        enter = [*self._enter_root(), program("unshare"), "--net", "--uts", "--mount", "sh", "-ec", tail, name]
        self._start(name, [*enter, *words, *waiting])
        reaper = self._holders[SWITCH].stdin
        assert reaper is not None
        reaper.write(f"{self.pid(name)}\n".encode())
        reaper.flush()

    def close(self) -> None:
        """Kill all processes in the namespaces, and remove them and the folder."""
        reaper = self._holders.get(SWITCH)
        if reaper is not None:
            assert reaper.stdin is not None
            reaper.stdin.close()
            reaper.wait(2 * PATIENCE)
        for holder in self._holders.values():
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait(PATIENCE)
        self._holders, self._inodes = {}, {}
        shutil.rmtree(self._folder, ignore_errors=True)  # where there was no reaper

    def pid(self, name: str) -> int:
        """Return the process that holds the namespaces of a host or of SWITCH."""
        return self._holders[name].pid

    def as_root(self, name: str) -> list[str]:
        """Return the beginning of a command line: run a program as root on a host, or in the namespace of SWITCH."""
        return [*self._enter_root(), *self.from_root(name)]

    def from_root(self, name: str) -> list[str]:
        """Return the beginning of a command line for a program that is already root on another host."""
        kinds = ["-n"] if name == SWITCH else ["-n", "-u", "-m"]
        return [program("nsenter"), "-t", str(self.pid(name)), *kinds, "--"]

    def as_user(self, name: str) -> list[str]:
        """Return the beginning of a command line: run a program on a host without more privileges than we have."""
        if os.geteuid() == 0:
            return self.as_root(name)
        return [*self.as_root(name)[:-1], "-U", "--preserve-credentials", "--"]

    def processes(self, *names: str) -> set[int]:
        """Return the processes on hosts, by default on all."""
        return processes(self._inodes[name] for name in names or self._inodes)

    def _enter_root(self) -> list[str]:
        """Return the beginning of a command line: be root, in the namespace of SWITCH, where the reaper kills it."""
        user = ["-U", "--preserve-credentials"] if os.geteuid() else []
        return [program("nsenter"), "-t", str(self.pid(SWITCH)), "-n", *user, "--"]

    def _start(self, name: str, argv: Sequence[str]) -> None:
        """Start a process that holds namespaces and prints "ready" in them; it does not get Ctrl-C."""
        log = self._folder / f"{name}.log"
        with log.open("w") as errors:
            holder = self._holders[name] = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        assert holder.stdout is not None
        with holder.stdout as lines:
            if lines.readline() != b"ready\n":
                raise ClusterError(log.read_text())
        self._inodes[name] = os.stat(f"/proc/{holder.pid}/ns/net").st_ino
