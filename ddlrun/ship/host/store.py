"""The shipped files on a host's disk.

objects/DIGEST/     what an archive contains, below its absolute path; the time of the folder is its last use
runs/RUN/           the files of a run below their absolute paths, as links to objects; ranks write here
runs/RUN.objects    the objects that the run uses, and the copies and links of shipped files in its folder
incoming/           archives that are being extracted: DIGEST.HOST.PID
lock                held while objects are chosen for removal, or marked as used
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time

from ddlrun.ship.host.results import is_wanted
from ddlrun.ship.host.unpack import link_files, make_link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

DAY_SECONDS = 86400
# Objects that no run has used for this time are removed; one that was used in the last hour is not, whatever is short.
DAYS, LEAST_SECONDS = 14.0, 3600.0
# The processes of a run start this long after its objects were marked as used, at the latest.
STARTING_SECONDS = 60.0
OBJECTS, RUNS, INCOMING = "objects", "runs", "incoming"
# The end of the name of the file that lists what a run uses.
LIST = ".objects"
# Code up to this size is copied, so that ranks may change it; larger files are links.
MOST_COPIED = 1 << 20


class StoreError(Exception):
    """The folder cannot be used; the text says why."""


class Store:
    """The folder of shipped files of this user on this host."""

    def __init__(self, folder: str) -> None:
        """Make the folder. Raises StoreError where it is another user's, OSError where it cannot be made."""
        self.folder = folder
        self.stuck: list[str] = []
        """Folders that were to be removed, and have parts of another user, such as root in a container."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise StoreError(f"{folder} is not a folder that this user alone can write to")
        for name in (OBJECTS, RUNS, INCOMING):
            os.makedirs(f"{folder}/{name}", mode=0o700, exist_ok=True)

    def object(self, digest: str) -> str:
        """Return the path of an object."""
        return f"{self.folder}/{OBJECTS}/{digest}"

    def run(self, name: str) -> str:
        """Return the path of a run's folder."""
        return f"{self.folder}/{RUNS}/{name}"

    @property
    def free(self) -> int:
        """The bytes that this user may still write."""
        return shutil.disk_usage(self.folder).free

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder."""
        with open(f"{self.folder}/lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Return the objects that are not here; mark the others as used."""
        with self.locked():
            absent = []
            for digest in digests:
                try:
                    os.utime(self.object(digest))
                except FileNotFoundError:
                    absent.append(digest)
            return absent

    def incoming(self, digest: str) -> str:
        """Return the path of a new folder, in which an archive can be extracted."""
        path = self._incoming(f"{digest}-{os.urandom(4).hex()}")  # containers on a host may have equal process numbers
        os.mkdir(path, 0o700)
        return path

    def _incoming(self, name: str) -> str:
        return f"{self.folder}/{INCOMING}/{name}.{os.uname().nodename}.{os.getpid()}"

    def put(self, path: str, digest: str) -> None:
        """Put an extracted archive in its place; another run may have been faster."""
        try:
            os.rename(path, self.object(digest))
        except OSError:
            if not os.path.isdir(self.object(digest)):
                raise
            remove_tree(path)
        os.utime(self.object(digest))

    def make_run(
        self, name: str, working_folder: str, sources: Sequence[dict[str, Any]], fetched: Sequence[str] = ()
    ) -> None:
        """Make the folder of a run, with the contents of its sources; another host may have made it in this folder.

        Ranks may change small files of code, and those at the paths that are `fetched`, which are relative to the
        working folder.
        """
        run = self.run(name)
        folder = run + working_folder

        def is_copied(place: str, size: int) -> bool:
            return size <= MOST_COPIED or is_wanted(os.path.relpath(place, folder), fetched)

        with self.locked():
            os.makedirs(folder, mode=0o700, exist_ok=True)
            places: dict[str, int] = {}
            for source in sources:
                path, content = run + source["path"], self.object(source["digest"]) + source["path"]
                if source["whole"] or not os.path.isdir(content):
                    places[path] = _replace_by_link(path, content)
                else:
                    places.update(link_files(content, path, is_copied))
            shipped = {os.path.relpath(path, folder): changed for path, changed in places.items()}
            objects = [source["digest"] for source in sources]
            listed = {"objects": objects, "shipped": {**self.shipped(name), **shipped}}
            with open(f"{run}{LIST}", "w", encoding="ascii") as file:
                json.dump(listed, file)

    def shipped(self, name: str) -> dict[str, int]:
        """Return the copies and links of shipped files below the working folder of a run, with their times of change.

        The times are in ns.
        """
        shipped: dict[str, int] = self._list(name)["shipped"]
        return shipped

    def _list(self, name: str) -> dict[str, Any]:
        """Return the list of what a run uses; an empty one where it cannot be read."""
        try:
            with open(f"{self.run(name)}{LIST}", encoding="ascii") as file:
                listed: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            return {"objects": [], "shipped": {}}
        return listed

    # -- removal ----------------------------------------------------------------------------------

    def remove_old(self, days: float = DAYS, most_bytes: int | None = None) -> tuple[int, int]:
        """Remove runs and objects that were not used for some days, and more of them if these have too many bytes.

        Those of runs with processes on this host stay. Returns the number of removed objects and runs, and the bytes
        of the objects that are left; these are counted for `most_bytes` alone.
        """
        with self.locked():
            alive = _living_runs()
            ended = [name for name in os.listdir(f"{self.folder}/{RUNS}") if name.partition(LIST)[0] not in alive]
            removed = sum(self._remove_run(name, days) for name in ended)
            removed += self._remove_incoming()
            before = time.time() - max(days * DAY_SECONDS, STARTING_SECONDS)
            digests = [] if most_bytes is None else os.listdir(f"{self.folder}/{OBJECTS}")
            sizes = {digest: _bytes_of(self.object(digest)) for digest in digests}
            left = sum(sizes.values())
            for digest, used in self._unused(alive):
                if used >= before and left <= (most_bytes or 0):
                    break
                self._remove_object(digest)
                left -= sizes.get(digest, 0)
                removed += 1
            return removed, left

    def make_room(self, needed: int) -> None:
        """Remove objects that have not been used for the longest time, until some bytes are free."""
        with self.locked():
            for digest, used in self._unused(_living_runs()):
                if self.free >= needed or used > time.time() - LEAST_SECONDS:
                    return
                self._remove_object(digest)

    def _remove_object(self, digest: str) -> None:
        """Remove an object; what cannot be removed of it has another name then, and no run uses it."""
        removed = self._incoming(f"{digest}-removed")
        os.rename(self.object(digest), removed)
        self._remove(removed)

    def _remove(self, path: str) -> bool:
        """Remove a folder as far as possible; return whether it is gone."""
        remove_tree(path)
        if os.path.lexists(path):
            self.stuck.append(path)
        return not os.path.lexists(path)

    def _unused(self, alive: set[str]) -> list[tuple[str, float]]:
        """Return the objects that no living run uses, with the time of their last use, the oldest first."""
        used = {digest for name in alive for digest in self._list(name)["objects"]}
        objects = [digest for digest in os.listdir(f"{self.folder}/{OBJECTS}") if digest not in used]
        times = [(digest, os.stat(self.object(digest)).st_mtime) for digest in objects]
        return sorted(times, key=lambda item: item[1])

    def _remove_run(self, name: str, days: float) -> int:
        """Remove the folder of an ended run if it is old; return 1 if it is gone."""
        path = f"{self.folder}/{RUNS}/{name}"
        before = time.time() - days * DAY_SECONDS
        if os.lstat(path).st_mtime > before or _changed_at(path) > before:
            return 0
        if os.path.isdir(path):
            return int(self._remove(path))
        os.unlink(path)
        return 0

    def _remove_incoming(self) -> int:
        """Remove what processes of this host that are gone have not finished; hosts may share the folder."""
        names = os.listdir(f"{self.folder}/{INCOMING}")
        own = [name for name in names if name.partition(".")[2].rpartition(".")[0] == os.uname().nodename]
        gone = [name for name in own if not os.path.exists(f"/proc/{name.rpartition('.')[2]}")]
        return sum(self._remove(f"{self.folder}/{INCOMING}/{name}") for name in gone)


def remove_tree(path: str) -> None:
    """Remove a folder, whose parts may be read-only, except for those of another user."""
    folders = [path]
    for folder in folders:
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
            folders += [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    shutil.rmtree(path, ignore_errors=True)


def _replace_by_link(path: str, target: str) -> int:
    """Make a symbolic link, in place of a folder of links, too; return its time of change in ns."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    return make_link(target, path)


def _changed_at(folder: str) -> float:
    """Return the time of the last change in a folder: ranks write their results there."""
    paths = [os.path.join(above, name) for above, folders, names in os.walk(folder) for name in (*folders, *names)]
    return max((os.lstat(path).st_mtime for path in paths if not os.path.islink(path)), default=0.0)


def _bytes_of(folder: str) -> int:
    return sum(os.lstat(os.path.join(above, name)).st_size for above, _, names in os.walk(folder) for name in names)


def _living_runs() -> set[str]:
    """Return the names of runs that have a process of this user on this host."""
    names = set()
    for process in os.listdir("/proc"):
        if process.isdigit():
            try:
                with open(f"/proc/{process}/environ", "rb") as file:
                    variables = file.read().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            names |= {
                word[len("DDLRUN_RUN=") :].decode(errors="replace")
                for word in variables
                if word.startswith(b"DDLRUN_RUN=")
            }
    return names
