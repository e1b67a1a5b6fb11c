"""The record of an environment's archive, beside the environment of a lock file.

ddlrun makes such an environment, and another one for another lock file. With the record, a launch need not look at its
thousands of files: it looks at the folders in which an installer makes or removes something for each package.
"""

import glob
import json
import os
from contextlib import suppress

from ddlrun.ship.archive import Archive
from ddlrun.ship.request import ShipSource

# The end of the name of the file beside the environment.
RECORD = ".archive"


def read_marks(folder: str) -> list[list[int]]:
    """Return numbers that change when a package is installed, removed or replaced. Raises OSError."""
    folders = [folder, f"{folder}/bin", *sorted(glob.glob(f"{glob.escape(folder)}/lib/python3*/site-packages"))]
    return [[status.st_mtime_ns, status.st_ctime_ns] for status in map(os.stat, folders)]


def read_record(source: ShipSource) -> Archive | None:
    """Return the archive of an environment without its files; None where this is not known, or no longer true."""
    try:
        with open(f"{source.path}{RECORD}", encoding="ascii") as file:
            record = json.load(file)
        if record["marks"] != read_marks(source.path):
            return None
        return Archive(source, None, str(record["digest"]), int(record["size"]), int(record["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_record(archive: Archive, marks: list[list[int]]) -> None:
    """Write the record of an archive; `marks` are from before its files were read. Where this fails, there is none."""
    record = {"digest": archive.digest, "size": archive.size, "files": archive.files, "marks": marks}
    path = f"{archive.source.path}{RECORD}"
    with suppress(OSError):
        with open(f"{path}.{os.getpid()}", "w", encoding="ascii") as file:
            json.dump(record, file)
        os.replace(file.name, path)
