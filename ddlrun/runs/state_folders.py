"""The folders of runs: in the state folder, and in /tmp where that cannot be written or is full."""

import errno
import itertools
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from ddlrun.plan.plan import Plan
from ddlrun.plan.run_dir import RunDir

# The folder in /tmp of a user's runs is this and the user's number; the path of the state folder goes on in it.
ELSEWHERE = "/tmp/ddlrun-state-"  # noqa: S108 - one of another user is not used
# The beginning of the names of folders of runs that are being deleted: a disk of their own may hold those of runs.
TRASH = "removed-"
# The space that the folder of a run needs at least, and the part of it that is tried.
LEAST_BYTES = 8 << 20
TRIED_BYTES = 1 << 18


def elsewhere(path: str) -> str:
    """Return the path in /tmp that stands for a path of the state folder, or for a run folder."""
    return path if path.startswith(f"{_root()}/") else f"{_root()}{os.path.abspath(path)}"


def find_path(path: str) -> str:
    """Return a path, or the one in /tmp that stands for it where only that exists."""
    other = elsewhere(path)
    return other if not os.path.lexists(path) and os.path.lexists(other) and _is_own_root() else path


def state_folders(state: str) -> tuple[str, ...]:
    """Return the state folder, and the one in /tmp that stands for it if there is one."""
    other = elsewhere(state)
    return (state, other) if os.path.isdir(other) and _is_own_root() else (state,)


def write_state(state: str, write: Callable[[str], None]) -> None:
    """Write files in the state folder, or else in the one in /tmp; ignore errors."""
    for folder in (state, elsewhere(state)):
        with suppress(OSError):
            make_folder(folder)
            write(folder)
            return


def make_folder(path: str) -> None:
    """Make a folder that only its user can read. Raises OSError, also where its place in /tmp is another user's."""
    if path == elsewhere(path):
        with suppress(FileExistsError):
            os.mkdir(_root(), 0o700)
        if not _is_own_root():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    os.makedirs(path, mode=0o700, exist_ok=True)


def _root() -> str:
    return f"{ELSEWHERE}{os.geteuid()}"


def _is_own_root() -> bool:
    """Return True if the folder in /tmp is a private one of this user."""
    with suppress(OSError):
        status = os.lstat(_root())
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return False


def lacks_room(path: str) -> str | None:
    """Return the reason why a folder cannot be written, as of a full disk or a quota; None where it can."""
    above = os.path.dirname(path)
    try:
        make_folder(above)
        disk = os.statvfs(above)
        if disk.f_bavail * disk.f_frsize < LEAST_BYTES:
            return os.strerror(errno.ENOSPC)
        _try_write(f"{path}.{os.getpid()}")
    except OSError as error:
        return error.strerror
    return None


def choose_path(path: str) -> str:
    """Return a path, or the one in /tmp that stands for it if only that can be written."""
    other = elsewhere(path)
    return other if lacks_room(path) is not None and lacks_room(other) is None else path


def _try_write(path: str) -> None:
    """Write some bytes to a file, which is removed. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, bytes(TRIED_BYTES))
    finally:
        os.close(file)
        os.unlink(path)


def run_paths(state: str) -> dict[str, str]:
    """Return the folders of runs, and links to them, by name, without those that are being deleted."""
    paths: dict[str, str] = {}
    for folder in reversed(state_folders(state)):
        with suppress(OSError):
            names = [name for name in os.listdir(f"{folder}/runs") if not name.startswith(TRASH)]
            paths |= {name: f"{folder}/runs/{name}" for name in names}
    return paths


def newest_first(state: str) -> dict[str, str]:
    """Return the folders of runs and links to them by name, the latest first."""
    paths = run_paths(state)
    return {name: paths[name] for name in sorted(paths, key=lambda name: _written_at(paths[name]), reverse=True)}


def _written_at(path: str) -> float:
    """Return the time of a run's start, or of its link if its folder is gone."""
    try:
        return os.path.getmtime(RunDir(path).plan)
    except OSError:
        return changed_at(path)


def changed_at(path: str) -> float:
    """Return the time of the last change of a folder or link; 0 where it has just been removed."""
    with suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0


def last_run(state: str) -> str | None:
    """Return the folder of the run that was started last; None where there is none."""
    links = [f"{folder}/last" for folder in state_folders(state)]
    paths = itertools.chain(sorted(links, key=_written_at, reverse=True), newest_first(state).values())
    return next((os.path.realpath(path) for path in paths if os.path.exists(RunDir(path).plan)), None)


def link_last_run(plan: Plan, state: str) -> None:
    """Link to the last run, wherever its folder is, for `last_run`; ddlrun's own measurements are left out."""
    if "ddlrun.measure" not in plan.argv:
        write_state(state, lambda folder: _link(f"{folder}/last", plan.run_dir.path))


def _link(link: str, path: str) -> None:
    new = f"{link}-{os.getpid()}-{os.urandom(4).hex()}"
    os.symlink(os.path.realpath(path), new)
    os.replace(new, link)
