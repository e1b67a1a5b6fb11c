"""The files of a job that were shipped to this host: where the program finds them, and how its output names them."""

from __future__ import annotations

import os

# Variables with lists of folders.
LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
# An end of output of at most this length, such as /tmp/, is not held back.
LEAST_HELD = 5
# The scripts that activate a conda environment; their output is not output of the program.
RUN_SCRIPTS = 'for ddlrun_script; do . "$ddlrun_script" >&2; done; unset ddlrun_script; exec /usr/bin/env -0'


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
                os.environ[name] = os.pathsep.join(map(self._place_folder, os.environ[name].split(os.pathsep)))
        if self._environment is not None:
            activate(self.place(self._environment))

    def place(self, word: str) -> str:
        """Return a word of a command line with the place of the file that it names, also as in NAME=PATH.

        A program that did not travel, such as the Python of an ignored environment, keeps its path.
        """
        name, equals, value = word.rpartition("=")
        place = f"{self._root}{value}"
        shipped = any(value == source or value.startswith(source + "/") for source in self._sources)
        is_program = os.path.isfile(value) and os.access(value, os.X_OK)
        return f"{name}{equals}{place}" if shipped and (not is_program or os.path.exists(place)) else word

    def _place_folder(self, folder: str) -> str:
        """Return the place of a folder in a list; one that did not travel, but is on this host, as it is."""
        place = self.place(folder)
        return place if os.path.isdir(place) or not os.path.isdir(folder) else folder


def activate(prefix: str) -> None:
    """Set the variables of an environment. Raises OSError where this fails."""
    if not os.path.isdir(f"{prefix}/conda-meta"):
        os.environ["VIRTUAL_ENV"] = prefix
        return
    _activate_conda(prefix)


def _activate_conda(prefix: str) -> None:
    """Set the variables of an environment, also those that its scripts in activate.d set. Raises OSError."""
    os.environ["CONDA_PREFIX"] = prefix
    own = f"{prefix}/bin"
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([own, *(folder for folder in folders if folder != own)])
    folder = f"{prefix}/etc/conda/activate.d"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    scripts = [f"{folder}/{name}" for name in names if name.endswith(".sh")]
    if scripts:
        _run_scripts(scripts)


def _run_scripts(scripts: list[str]) -> None:
    """Take over the variables that scripts set and unset. Raises OSError where they fail."""
    import shutil  # noqa: PLC0415 - for such environments alone
    import subprocess  # noqa: PLC0415 - the same

    shell = shutil.which("bash") or "sh"  # scripts of packages are often written for bash
    argv = [shell, "-c", RUN_SCRIPTS, "activate", *scripts]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)  # noqa: S603
    variables = dict(word.split(b"=", 1) for word in done.stdout.split(b"\0") if b"=" in word)
    if done.returncode or not variables:
        raise OSError(0, f"a script ended with exit code {done.returncode}", os.path.dirname(scripts[0]))
    for name in set(os.environ) - set(map(os.fsdecode, variables)):
        if name.isidentifier():  # a shell does not pass on others
            del os.environ[name]
    os.environb.update(variables)


class OwnPaths:
    """An output stream of a program with the user's own paths in place of those on this host."""

    def __init__(self, cache: str) -> None:
        """Take the folder of all shipped files."""
        import re  # noqa: PLC0415 - for such jobs alone

        self._cache = os.fsencode(cache)
        start = re.escape(self._cache)
        self._place = re.compile(start + rb"/(?:objects|runs)/[A-Za-z0-9._-]+(?=/)")
        self._unfinished = re.compile(start + rb"(?:/[a-z]*(?:/[A-Za-z0-9._-]*)?)?\Z")
        self._held = b""

    def restore(self, data: bytes) -> bytes:
        """Return output of the stream with the user's paths; what may be the beginning of a path is held back.

        At the end of the stream, `data` is empty, and nothing is held back.
        """
        text = self._place.sub(b"", self._held + data)
        length = len(text) - (self._count_unfinished(text) if data else 0)
        self._held = text[length:]
        return text[:length]

    def _count_unfinished(self, text: bytes) -> int:
        """Return the number of bytes at the end of a text with which a path on this host may begin."""
        match = self._unfinished.search(text)
        if match is not None:
            return len(text) - match.start()
        lengths = range(min(len(self._cache) - 1, len(text)), LEAST_HELD, -1)
        return next((length for length in lengths if self._cache.startswith(text[-length:])), 0)
