"""A wheel, for tests of installers without a package index."""

import zipfile
from pathlib import Path


def write_wheel(folder: Path) -> None:
    """Write a wheel with one module."""
    path = folder / "demo-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
    wheel = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo.py", "value = 7\n")
        archive.writestr("demo-1.0.dist-info/METADATA", metadata)
        archive.writestr("demo-1.0.dist-info/WHEEL", wheel)
        archive.writestr("demo-1.0.dist-info/RECORD", "demo.py,,\ndemo-1.0.dist-info/METADATA,,\n")
