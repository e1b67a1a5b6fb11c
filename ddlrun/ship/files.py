"""The files of a source: those of git, or of a folder without caches and environments."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ddlrun.errors import InputError
from ddlrun.remote.processes import start_command
from ddlrun.ship.host.unpack import FILE, FOLDER, LINK

# Folders of a folder without git that do not travel with code.
LEFT_OUT = frozenset((
    ".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".tox", ".nox", ".ipynb_checkpoints",
))  # fmt: skip
ENVIRONMENT_MARK, CONDA_MARK = "pyvenv.cfg", "conda-meta"
# The start of the name of a folder in which another launch receives its results.
INCOMING = ".ddlrun-fetch-"
MOST_CODE_FILES = 200_000
GIT_SECONDS = 120.0
READ_ONLY = ~0o222


@dataclass(frozen=True, slots=True)
class EmbeddedPrefix:
    """The path of a conda environment in one of its files, which the host replaces by the one there."""

    path: str
    longest: int | None
    """The bytes that a binary file has for it; None: the file is a text."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or symbolic link of an archive."""

    kind: str
    path: str
    """Its absolute path on the hosts, below the folder of the run."""
    mode: int
    mtime: int
    size: int
    target: str
    """The target of a symbolic link."""
    source: str
    """The file that is read."""
    identity: tuple[int, ...]
    """Numbers that change when the file does."""
    content: bytes | None = None
    """What travels in place of the content of the file."""
    prefix: EmbeddedPrefix | None = None


def find_repository(folder: str) -> str | None:
    """Return the top folder of the git repository around a folder; None where there is none."""
    done = start_command(["git", "-C", folder, "rev-parse", "--show-toplevel"], errors="surrogateescape")()
    return done.out.rstrip("\n") if done.code == 0 else None


def list_code(folder: str) -> list[str]:
    """Return the paths of the files of a folder of code: those that git does not ignore, or by simple rules.

    Raises InputError where these are very many.
    """
    paths = _list_by_git(folder)
    if paths is None:
        paths = []
        for path in _walk(folder, skip=_is_left_out):
            paths.append(path)
            if len(paths) > MOST_CODE_FILES:
                break
    if len(paths) > MOST_CODE_FILES:
        raise InputError(
            f"`--ship` code: {folder} has more than {MOST_CODE_FILES} files; put the script into a folder of its own, "
            "or name what travels: `--ship` PATH,..."
        )
    return paths


def _list_by_git(folder: str) -> list[str] | None:
    """Return the files of a folder that git tracks or does not ignore; None outside of a repository."""
    argv = ["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = start_command(argv, timeout=GIT_SECONDS, errors="surrogateescape")()
    if done.code != 0:
        return None
    paths = []
    for name in dict.fromkeys(filter(None, done.out.split("\0"))):
        if any(part.startswith(INCOMING) for part in name.split("/")):
            continue
        path = os.path.join(folder, name.rstrip("/"))
        if os.path.isdir(path) and not os.path.islink(path):  # another repository, as of a submodule
            paths += list_code(path)
        elif os.path.lexists(path):
            paths.append(path)
    return paths


def list_tree(folder: str, skipped: frozenset[str] = frozenset()) -> list[str]:
    """Return the paths of all files of a folder, without those of some folders in it; or of a file itself."""
    if not os.path.isdir(folder):
        return [folder]
    return list(_walk(folder, skip=skipped.__contains__))


def _walk(folder: str, skip: Callable[[str], bool]) -> Iterator[str]:
    """Yield the files and links below a folder, and the folders that have nothing in them. Raises InputError."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except FileNotFoundError:  # it has just been removed
        return
    except OSError as error:
        raise InputError(f"`--ship`: {folder}: {error.strerror}") from error
    if not entries:
        yield folder
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            yield entry.path
        elif not skip(entry.path):
            yield from _walk(entry.path, skip)


def _is_left_out(path: str) -> bool:
    name = os.path.basename(path)
    marks = (f"{path}/{ENVIRONMENT_MARK}", f"{path}/{CONDA_MARK}")
    return name in LEFT_OUT or name.startswith(INCOMING) or any(map(os.path.exists, marks))


def read_entries(paths: Iterable[str], root: str, *, keep_times: bool, read_only: str = "") -> list[Entry]:
    """Return the entries of files and of the folders above them, from `root` on, in the order of their paths.

    `read_only` has the kinds of entries that nobody may write to on the hosts.

    Sockets, devices, pipes and files that have just been removed are left out. Raises InputError for a file that cannot
    be read.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        if path != root and not os.path.lexists(path):
            continue
        above = os.path.dirname(path)
        while above not in entries and len(above) >= len(root):
            entries[above] = _read_entry(above, root, keep_times=keep_times, read_only=read_only)
            above = os.path.dirname(above)
        entries[path] = _read_entry(path, root, keep_times=keep_times, read_only=read_only)
    return sorted((entry for entry in entries.values() if entry.kind), key=lambda entry: entry.path)


def _read_entry(path: str, root: str, *, keep_times: bool, read_only: str) -> Entry:
    try:
        status = os.stat(path) if path == root else os.lstat(path)  # a source that is a link travels as its target
        target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
        if stat.S_ISREG(status.st_mode) and not os.access(path, os.R_OK):
            raise InputError(f"`--ship`: {path}: Permission denied")
    except OSError as error:
        raise InputError(f"`--ship`: {path}: {error.strerror}") from error
    kinds = {stat.S_IFDIR: FOLDER, stat.S_IFREG: FILE, stat.S_IFLNK: LINK}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "")
    mode = stat.S_IMODE(status.st_mode)
    return Entry(
        kind=kind,
        path=path,
        mode=mode & READ_ONLY if kind in read_only else mode,
        mtime=int(status.st_mtime) if keep_times else 0,
        size=status.st_size if kind == FILE else 0,
        target=_inside_target(path, target, root),
        source=path,
        identity=(status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino) if kind == FILE else (),
    )


def _inside_target(path: str, target: str, root: str) -> str:
    """Return the target of a link, relative where it is in the source, too."""
    inside = os.path.isabs(target) and target.startswith(f"{root}/")
    return os.path.relpath(target, os.path.dirname(path)) if inside else target
