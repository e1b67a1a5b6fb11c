"""A small root file system with this Python, for tests of containers."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDERS = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp")
PROGRAMS = ("sh", "env")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "test", "site-packages", "idlelib", "tkinter", "ensurepip", "config-*")


def build_root(root: Path, *users: Path) -> Path:
    """Write a root file system with sh, env and python3, and the libraries that some files need; return its folder."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    python = Path(sys.executable).resolve()
    standard_library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(standard_library, _inside(root, standard_library), ignore=LEFT_OUT)
    _copy(python, _inside(root, python))
    (root / "usr/bin/python3").symlink_to(python)
    programs = [Path(shutil.which(name) or name) for name in PROGRAMS]
    for program in programs:
        _copy(program, root / "usr/bin" / program.name)
    for file in (python, *users, *programs, *standard_library.glob("lib-dynload/*.so")):
        for library in _libraries(file):
            _copy(library, _inside(root, library))
    return root


def _inside(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _copy(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _libraries(file: Path) -> list[Path]:
    """Return the paths of the shared libraries that a program loads."""
    done = subprocess.run(["ldd", os.fspath(file)], capture_output=True, text=True, check=False)
    return [Path(word) for word in done.stdout.split() if word.startswith("/")]
