"""The files that travel to the hosts of a job, and their places there."""

import enum
import json
import os
from collections.abc import Iterable
from typing import NamedTuple

from ddlrun.errors import InputError

CODE_WORD, ENVIRONMENT_WORD = "code", "env"


class SourceKind(enum.Enum):
    """What a source is, which decides which of its files travel and how the host has them."""

    CODE = "code"
    PACKAGE = "package"
    DATA = "data"
    ENVIRONMENT = "environment"


class ShipSource(NamedTuple):
    """A folder or file that travels."""

    kind: SourceKind
    path: str
    """Its absolute path."""

    @property
    def whole(self) -> bool:
        """Whether a run has it as one link, so that ranks cannot write there."""
        return self.kind in (SourceKind.DATA, SourceKind.ENVIRONMENT)


class ShipRequest(NamedTuple):
    """The sources of a job, and the folder of each host to which they travel."""

    sources: tuple[ShipSource, ...]
    folder: str
    """The folder on the local disk of each host."""
    working_folder: str
    """The current folder, in which ranks start."""
    import_folders: tuple[str, ...] = ()
    """Folders of packages that are installed in editable mode, which PYTHONPATH replaces."""
    fetched: tuple[str, ...] = ()
    """Paths relative to the working folder whose files come back after the run."""
    locked: bool = False
    """Whether the environment is that of a lock file, which tells whether it has changed."""

    @property
    def environment(self) -> str | None:
        """The virtual or conda environment that travels, if one does."""
        return next((source.path for source in self.sources if source.kind is SourceKind.ENVIRONMENT), None)

    @property
    def has_code(self) -> bool:
        """Whether the code travels."""
        return any(source.kind is SourceKind.CODE for source in self.sources)

    def run_folder(self, run_id: str) -> str:
        """Return the folder on each host below which a run has its files, by their absolute paths."""
        return f"{self.folder}/runs/{run_id}"

    def contains(self, path: str) -> bool:
        """Return True if a path is in one of the sources."""
        return any(is_inside(path, source.path) for source in self.sources)

    def place(self, path: str, run_id: str) -> str:
        """Return the path on the hosts of a file that travels; any other path as it is."""
        return self.run_folder(run_id) + path if self.contains(path) else path

    def variable(self, run_id: str) -> str:
        """Return the variable by which keepers and programs know the places of the files."""
        record = {
            "root": self.run_folder(run_id),
            "cache": self.folder,
            "folder": (self.run_folder(run_id) if self.has_code else "") + self.working_folder,
            "sources": [source.path for source in self.sources],
            "environment": self.environment,
            "imports": self.import_folders,
        }
        return json.dumps(record)


def is_inside(path: str, folder: str) -> bool:
    """Return True for a folder itself, and for a path below it.

    >>> is_inside("/a/b", "/a"), is_inside("/a", "/a"), is_inside("/ab", "/a")
    (True, True, False)
    """
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def arrange_sources(sources: Iterable[ShipSource]) -> tuple[ShipSource, ...]:
    """Return sources without those that travel with another one, code first.

    Raises InputError for an environment inside of data, where its scripts would stay as they are.
    """
    order = list(SourceKind)
    by_path: dict[str, ShipSource] = {}
    for source in sorted(sources, key=lambda source: order.index(source.kind)):
        by_path.setdefault(source.path, source)
    distinct = list(by_path.values())
    whole = [source for source in distinct if source.whole]
    arranged = []
    for source in distinct:
        above = [other for other in whole if other is not source and is_inside(source.path, other.path)]
        if above and source.kind is SourceKind.ENVIRONMENT:
            raise InputError(f"`--ship`: {above[0].path} contains the environment {source.path}; name other paths")
        if not above:
            arranged.append(source)
    return tuple(sorted(arranged, key=lambda source: (order.index(source.kind), source.path)))


def parse_ship(text: str) -> tuple[bool, bool, tuple[str, ...]]:
    """Parse the list of --ship: whether code and environment travel, and the paths, as they are written.

    Raises InputError for an empty element.

    >>> parse_ship("code,env,/data/mnist")
    (True, True, ('/data/mnist',))
    """
    words = text.split(",")
    if not all(words):
        raise InputError(f"`--ship` {text!r}: an element is empty; write code, env or paths, such as code,data")
    paths = tuple(os.path.normpath(word) for word in words if word not in (CODE_WORD, ENVIRONMENT_WORD))
    return CODE_WORD in words, ENVIRONMENT_WORD in words, paths


def parse_fetch(text: str, folder: str) -> tuple[str, ...]:
    """Parse the list of --fetch: paths in the working folder, relative to it. Raises InputError for any other.

    >>> parse_fetch("out/,./*.csv,/work/log", "/work"), parse_fetch(".", "/work")
    (('out', '*.csv', 'log'), ('.',))
    """
    paths = []
    for word in text.split(","):
        path = os.path.normpath(os.path.join(folder, word))
        if not word or not is_inside(path, folder):
            raise InputError(
                f"`--fetch` {text!r}: {word or 'an empty element'!r} is not a path in the current folder, where ranks "
                "start; write paths such as out, or . for all files"
            )
        paths.append(os.path.relpath(path, folder))
    return tuple(paths)
