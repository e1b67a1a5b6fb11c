"""The places of files that came back: in the working folder, where nothing is overwritten that may be needed."""

import enum
import filecmp
import itertools
import os
import stat
from dataclasses import dataclass

from ddlrun.ship.request import is_inside
from ddlrun.ship.results import ResultFile

# The end of the name of a file that was replaced, before a number where several were.
FORMER = "~"


class PlacingError(Exception):
    """A file cannot be put in its place; the text says why."""


class Placing(enum.Enum):
    """How a file was put in its place."""

    NEW = "new"
    SAME = "same"
    """A file with this content was there already."""
    REPLACED = "replaced"
    """The former file has another name."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file that came back."""

    result: ResultFile
    name: str
    """The path that it has now, relative to the working folder."""
    placing: Placing
    other: str | None
    """The host whose file has the name that this one had there; empty: it has changed here; None: this one has it."""
    former: str = ""
    """The name that a replaced file has now."""


class ResultPlacer:
    """The working folder, into which files come back."""

    def __init__(self, folder: str, since: float) -> None:
        """Keep the folder; files that have changed there `since` a time are not replaced."""
        self._folder, self._since = folder, since
        self._hosts: dict[str, str] = {}

    def place(self, result: ResultFile) -> PlacedFile:
        """Move a file to its path; where that is taken, the name of its host is added. Raises PlacingError."""
        other = None
        self._check_inside(result.path)
        for name in (result.path, add_host(result.path, result.host)):
            try:
                placing, former = self._place_at(result, name)
            except OSError as error:
                raise PlacingError(f"{name}: {error.strerror}") from error
            if placing is not None:
                self._hosts.setdefault(name, result.host)
                return PlacedFile(result, name, placing, other, former)
            other = self._hosts.get(name, "") if other is None else other
        raise PlacingError(f"{result.path}: it and {name} have changed here during the run")

    def _check_inside(self, path: str) -> None:
        """Raise PlacingError where a link here leads a path out of the working folder."""
        parent = os.path.realpath(os.path.dirname(f"{self._folder}/{path}"))
        if not is_inside(parent, os.path.realpath(self._folder)):
            raise PlacingError(f"{path}: a link in the current folder leads it to {parent}, outside of that folder")

    def _place_at(self, result: ResultFile, name: str) -> tuple[Placing | None, str]:
        """Move a file to a path; return how, None where it is taken, and the name of a replaced one. Raises OSError."""
        target = f"{self._folder}/{name}"
        placing, former = Placing.NEW, ""
        if os.path.lexists(target):
            status = os.lstat(target)
            regular = stat.S_ISREG(status.st_mode)
            if regular and filecmp.cmp(target, result.received, shallow=False):
                return Placing.SAME, ""
            if not regular or name in self._hosts or status.st_ctime >= self._since:
                return None, ""
            former = self._free_name(name)
            os.rename(target, f"{self._folder}/{former}")
            placing = Placing.REPLACED
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:  # another run's results come back at the same time
            return None, ""
        os.replace(result.received, target)
        return placing, former

    def _free_name(self, name: str) -> str:
        """Return a name for a file that is replaced, which no other file has."""
        names = (f"{name}{FORMER}{number if number > 1 else ''}" for number in itertools.count(1))
        return next(free for free in names if not os.path.lexists(f"{self._folder}/{free}"))


def add_host(path: str, host: str) -> str:
    """Return a path with a host's name in it, before the ending.

    >>> add_host("out/log.txt", "n02"), add_host("out.d/log", "n02")
    ('out/log.n02.txt', 'out.d/log.n02')
    """
    start, ending = os.path.splitext(path)
    return f"{start}.{host.replace('/', '_')}{ending}"
