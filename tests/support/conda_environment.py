"""A conda environment: rattler-build builds its packages, and rattler installs them from a channel on this disk.

This needs no public channel. The Python in it is a copy of the one that runs the tests.
"""

import asyncio
import os
import re
import shutil
import sys
import sysconfig
import warnings
from pathlib import Path
from string import Template

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
# A package with a program, a script and a text that contain the prefix, and a script of activation; and one with a
# console script, which is written at the installation.
RECIPES = {
    "demo": r"""
package: {name: demo, version: '1.0'}
build:
  dynamic_linking: {binary_relocation: false}
  script:
    - mkdir -p $$PREFIX/bin $$PREFIX/etc/conda/activate.d $$PREFIX/share
    - cd $$PREFIX/etc/conda/activate.d
    - echo 'export DEMO_SHARE="$$CONDA_PREFIX/share"; unset DEMO_OLD; echo activated' > demo.sh
    - cd $$SRC_DIR
    - echo 'int puts(const char *); int main(void) { puts(PREFIX "/share:" PREFIX); puts("after"); }' > demo.c
    - gcc -w "-DPREFIX=\"$$PREFIX\"" -o $$PREFIX/bin/prog demo.c
    - echo "#!$$PREFIX/bin/prog" > $$PREFIX/bin/by_prog
    - echo "$$PREFIX/share" > $$PREFIX/share/demo.conf
    - chmod 755 $$PREFIX/bin/by_prog
""",
    "entry": r"""
package: {name: entry, version: '1.0'}
build:
  noarch: python
  python: {entry_points: ['demo-tool = demo_tool:main']}
  script:
    - mkdir -p $$PREFIX/lib/python$version/site-packages
    - echo 'import sys; main = lambda:print(sys.prefix)' > $$PREFIX/lib/python$version/site-packages/demo_tool.py
requirements: {run: [python]}
""",
}
LEFT_OUT = shutil.ignore_patterns("*-packages", "test", "idlelib", "config-*", "__pycache__", "lib2to3", "ensurepip")


def make_conda_environment(folder: Path, environment: Path) -> None:
    """Build the packages in a folder, and install them in another one."""
    asyncio.run(_make(folder, environment))


async def _make(folder: Path, environment: Path) -> None:
    import rattler  # noqa: PLC0415 - not in every environment of the tests
    import rattler.index  # noqa: PLC0415 - the same
    from rattler_build.cli_api import build_recipes  # noqa: PLC0415 - the same

    channel = folder / "channel"
    (channel / "noarch").mkdir(parents=True)
    _package_python(folder / "staged", channel)
    await rattler.index.index_fs(channel)
    for name, recipe in RECIPES.items():
        path = folder / "recipes" / name / "recipe.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(Template(recipe).substitute(version=VERSION))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            build_recipes([path], output_dir=channel, channel=[channel.as_uri()], package_format="conda:min")
    records = await rattler.solve(sources=[channel.as_uri()], specs=["python", *RECIPES])
    await rattler.install(records, environment, cache_dir=folder / "pkgs", show_progress=False)


def _package_python(folder: Path, channel: Path) -> None:
    """Make a package of the interpreter and its standard library; the library of the interpreter is found beside it."""
    from rattler_build import assemble_package  # noqa: PLC0415 - not in every environment of the tests

    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, folder / "lib" / stdlib.name, ignore=LEFT_OUT)
    (folder / "bin").mkdir()
    shared = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME"))
    if shared.is_file() and ".so" in shared.name:
        shutil.copy(shared, folder / "lib")
    own = Path(os.path.realpath(sys.executable)).read_bytes()
    program = folder / "bin" / f"python{VERSION}"
    program.write_bytes(_search_beside(own, os.fsencode(shared.parent)))
    program.chmod(0o755)
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(program.name)
    assemble_package("python", VERSION, "linux-64", "0", channel / "linux-64", files_dir=folder, compression_level=1)


def _search_beside(program: bytes, folder: bytes) -> bytes:
    """Return a program that looks for its library beside it, as packages of conda do, and not in a folder."""
    return re.sub(
        rb"\0" + re.escape(folder) + rb"\0", lambda match: b"\0$ORIGIN/../lib".ljust(len(match[0]), b"\0"), program
    )
