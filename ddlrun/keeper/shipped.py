"""The files of a job that were shipped to this host: where the program finds them, and how its output names them."""

from __future__ import annotations

import os

# Variables with lists of folders.
LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
# An end of output of at most this length, such as /tmp/, is not held back.
LEAST_HELD = 5


class Places:
    """The places of the files of a run on this host."""

    def __init__(self, text: str) -> None:
        """Take the value of the variable."""
        import json  # noqa: PLC0415 - for such jobs alone

        record = json.loads(text)
        self._root, self._sources = record["root"], record["sources"]
        self.cache: str = record["cache"]
        self._folder = record["folder"]
        self._environment, self._imports = record["environment"], record["imports"]

    def enter(self) -> None:
        """Go to the working folder, and let the variables name the places of the files."""
        os.chdir(self._folder)
        os.environ["PWD"] = self._folder
        if self._imports:
            before = filter(None, (os.environ.get("PYTHONPATH"),))
            os.environ["PYTHONPATH"] = os.pathsep.join([*self._imports, *before])
        for name in LISTS:
            if name in os.environ:
                os.environ[name] = os.pathsep.join(map(self.place, os.environ[name].split(os.pathsep)))
        if self._environment is not None:
            activate(self.place(self._environment))

    def place(self, word: str) -> str:
        """Return a word of a command line with the place of the file that it names, also as in NAME=PATH."""
        name, equals, value = word.rpartition("=")
        shipped = any(value == source or value.startswith(source + "/") for source in self._sources)
        return f"{name}{equals}{self._root}{value}" if shipped else word


def activate(prefix: str) -> None:
    """Set the variables of an environment. Raises OSError where this fails."""
    if not os.path.isdir(f"{prefix}/conda-meta"):
        os.environ["VIRTUAL_ENV"] = prefix
        return
    from ddlrun.keeper.conda import activate_conda  # noqa: PLC0415 - for such jobs alone

    activate_conda(prefix)


class OwnPaths:
    """The output of a program with the user's own paths in place of those on this host."""

    def __init__(self, cache: str) -> None:
        """Take the folder of all shipped files."""
        import re  # noqa: PLC0415 - for such jobs alone

        self._cache = os.fsencode(cache)
        start = re.escape(self._cache)
        self._place = re.compile(start + rb"/(?:objects|runs)/[A-Za-z0-9._-]+(?=/)")
        self._unfinished = re.compile(start + rb"(?:/[a-z]*(?:/[A-Za-z0-9._-]*)?)?\Z")
        self._held: dict[int, bytes] = {}

    def restore(self, stream: int, data: bytes) -> bytes:
        """Return output of a stream with the user's paths; what may be the beginning of a path is held back.

        At the end of the stream, `data` is empty, and nothing is held back.
        """
        text = self._place.sub(b"", self._held.pop(stream, b"") + data)
        held = self._count_unfinished(text) if data else 0
        if held:
            self._held[stream] = text[-held:]
        return text[: len(text) - held]

    def _count_unfinished(self, text: bytes) -> int:
        """Return the number of bytes at the end of a text with which a path on this host may begin."""
        match = self._unfinished.search(text)
        if match is not None:
            return len(text) - match.start()
        lengths = range(min(len(self._cache) - 1, len(text)), LEAST_HELD, -1)
        return next((length for length in lengths if self._cache.startswith(text[-length:])), 0)
