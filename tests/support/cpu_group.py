"""A CPU cgroup of the tests' own, in which the kernel's autogroup has no effect.

Autogroup divides each CPU among the sessions of the root cgroup. Under Linux 6.18 a session whose processes spin, as
ranks of MPI do, may keep a CPU for minutes, while runnable processes of other sessions get none of it. Below systemd
and in containers, processes are in other cgroups than the root, and autogroup does not concern them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def autogroup_folder() -> Path | None:
    """Return the folder of the root CPU cgroup if autogroup concerns this process; otherwise None."""
    if not AUTOGROUP.exists() or AUTOGROUP.read_text().strip() != "1":
        return None
    mounts = [line.split()[1:4] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if path == "/" and "cpu" in controllers.split(","):
            return next(
                (Path(at) for at, kind, options in mounts if kind == "cgroup" and "cpu" in options.split(",")), None
            )
        if path == "/" and not controllers:
            unified = [Path(at) for at, kind, _ in mounts if kind == "cgroup2"]
            enabled = [at for at in unified if "cpu" in (at / "cgroup.subtree_control").read_text().split()]
            if enabled:
                return enabled[0]
    return None


@contextmanager
def own_cpu_group() -> Iterator[None]:
    """Move this process, and so its later children, into a cgroup of its own where autogroup concerns it."""
    root = autogroup_folder()
    folder = root / f"ddlrun-tests-{os.getpid()}" if root else None
    if root is None or folder is None or not os.access(root, os.W_OK):
        yield
        return
    folder.mkdir()
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):  # a process that a failed test has left
            folder.rmdir()
