"""Conda environments that move: the prefix in their files, and their activation."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import InputError
from ddlrun.keeper.shipped import activate
from ddlrun.ship.archive import make_archive
from ddlrun.ship.environment import (
    check_prefixes,
    find_environment,
    find_interpreter,
    read_conda,
    read_environment,
    relocate_script,
)
from ddlrun.ship.files import list_code
from ddlrun.ship.host.unpack import replace_prefix, unpack
from ddlrun.ship.request import ShipSource, SourceKind
from tests.support.conda_environment import make_conda_environment

# What a file was built for, and a folder of 20 bytes.
PLACEHOLDER = "/build/" + "placehold_" * 8


def install(content: bytes, prefix: str) -> bytes:
    """Return a binary file as conda installs it: each string with the placeholder keeps its length."""

    def replace(match: re.Match[bytes]) -> bytes:
        return match[0].replace(PLACEHOLDER.encode(), prefix.encode()).ljust(len(match[0]), b"\0")

    return re.sub(re.escape(PLACEHOLDER.encode()) + rb"[^\0]*\0", replace, content)


PREFIXES = st.integers(1, len(PLACEHOLDER) - 4).map(lambda length: "/opt" + "x" * length)
PIECES = st.lists(st.sampled_from([*(PLACEHOLDER + end for end in "/:\0"), "lib", "\0\0", "-I", "\x7f"]), max_size=12)


@given(PIECES, PREFIXES, PREFIXES)
def test_a_binary_file_is_as_if_conda_had_installed_it_there(pieces: list[str], here: str, there: str) -> None:
    built = "".join(pieces).encode() + b"\0"
    assert replace_prefix(install(built, here), here, there, len(PLACEHOLDER)) == install(built, there)


def test_strings_that_conda_has_not_written_stay() -> None:
    content = b"/opt/env\0next\0/opt/env2/lib\0\0\0\0\0\0\0\0\0\0\0\0"
    assert replace_prefix(content, "/opt/env", "/opt/envs/long", 20) == content


def test_texts_have_any_length() -> None:
    content = b"#!/opt/env/bin/perl -w\n-L/opt/env/lib /opt/environment /opt/env-2 \\x2\n"
    expected = content.replace(b"/opt/env/", b"/new\\1/").replace(b"/opt/env ", b"/new\\1 ")
    assert replace_prefix(content, "/opt/env", "/new\\1", None) == expected
    long = "/long" * 40
    assert replace_prefix(content, "/opt/env", long, None).startswith(b"#!/usr/bin/env -S perl -w\n-L/long/long")


@pytest.mark.parametrize("end", ["\n' '''\n", " #'''\n"])
def test_console_scripts_with_a_long_path_start_the_python_beside_them(end: str) -> None:
    script = f'#!/bin/sh\n\'\'\'exec\' "/opt/env/bin/python3.11" "$0" "$@"{end}import x\n'.encode()
    moved = relocate_script(script, "/opt/env")
    assert moved.endswith(b'/python3.11" "$0" "$@"\n\' \'\'\'\nimport x\n')
    assert b"/opt" not in moved


def write_record(folder: Path, text: str) -> Path:
    """Write a conda environment with one package; return its folder."""
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "conda-meta" / "demo-1.0-0.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "Expecting property name"), ('{"files": ["a"]}', "does not list prefixes"), ("[]", "does not list")],
)
def test_unreadable_records_are_named(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"demo-1\.0-0\.json.*{problem}"):
        read_conda(str(write_record(tmp_path / "env", text)))


def test_a_path_that_is_too_long_for_a_binary_file_is_refused(tmp_path: Path) -> None:
    item = {"_path": "prog", "file_mode": "binary", "prefix_placeholder": PLACEHOLDER}
    env = write_record(tmp_path / "e", json.dumps({"files": ["prog"], "paths_data": {"paths": [item]}}))
    (env / "prog").write_bytes(f"{env}/lib\0".encode() + bytes(len(PLACEHOLDER)))
    entries = tuple(read_conda(str(env)))
    room = len(PLACEHOLDER) - len(f"/objects/d{env}")
    check_prefixes(entries, "/" * room, "d")
    with pytest.raises(InputError, match=rf"prog has room for a path of 87 bytes.* have 88: .*{env}; name a shorter"):
        check_prefixes(entries, "/" * (room + 1), "d")


def test_other_environments_of_the_base_stay(tmp_path: Path) -> None:
    base = write_record(tmp_path / "base", '{"paths_data": null}')
    for name in ("pkgs", "envs/train/bin", "lib/pkgs"):
        (base / name).mkdir(parents=True)
        (base / name / "file").touch()
    paths = [os.path.relpath(entry.path, base) for entry in read_environment(str(base))]
    assert paths == [".", "conda-meta", "conda-meta/demo-1.0-0.json", "lib", "lib/pkgs", "lib/pkgs/file"]
    assert find_environment(f"{base}/bin/python") == str(base)
    assert find_interpreter(str(base)) is None
    assert list_code(str(tmp_path)) == []


def test_scripts_of_activation_set_variables(tmp_path: Path) -> None:
    env = write_record(tmp_path / "env", "{}")
    scripts = env / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "a.sh").write_text("export A_DATA=$CONDA_PREFIX/share\nunset OLD\necho text\n")
    (scripts / "b.sh").write_text("export B=$'two\nlines' A_TOO=$A_DATA\n")
    code = "import json, os, ddlrun.keeper.shipped as s; s.activate(os.environ['E']); print(json.dumps({**os.environ}))"
    before = {"E": str(env), "PATH": f"/bin:{env}/bin:/usr/bin", "OLD": "1", "NOT.A.NAME": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=before, capture_output=True, text=True, check=True)
    names = ("CONDA_PREFIX", "PATH", "A_TOO", "B", "OLD", "NOT.A.NAME")
    expected = (str(env), f"{env}/bin:/bin:/usr/bin", f"{env}/share", "two\nlines", None, "2")
    assert tuple(map(json.loads(done.stdout).get, names)) == expected
    assert done.stderr == "text\n"
    (scripts / "c.sh").write_text("exit 3\n")
    with pytest.raises(OSError, match=r"ended with exit code 3: .*/activate\.d"):
        activate(str(env))


@pytest.mark.extra
def test_a_real_environment_is_as_conda_pack_makes_it(tmp_path: Path) -> None:
    pytest.importorskip("rattler_build", reason="make .venv/test-all")
    env, place = tmp_path / "env", "/" + "long/" * 20
    make_conda_environment(tmp_path, env)
    archive = make_archive(ShipSource(SourceKind.ENVIRONMENT, str(env)), read_environment(str(env)), str(tmp_path))
    unpack(io.BytesIO(b"".join(archive.blocks())), str(tmp_path / "out"), place)
    pack = [f"{sys.prefix}/bin/conda-pack", "--quiet", "--prefix", str(env), "--output", f"{tmp_path}/p.tar"]
    subprocess.run([*pack, "--dest-prefix", f"{place}{env}"], check=True)
    differ = []
    with tarfile.open(tmp_path / "p.tar") as packed:
        for member in packed:
            own = Path(f"{tmp_path}/out{env}/{member.name}")
            content = packed.extractfile(member) if member.isfile() else None
            if content is not None and (not own.exists() or own.read_bytes() != content.read()):
                differ.append(member.name)
        assert f"{place}{env}/share:".encode() in Path(f"{tmp_path}/out{env}/bin/prog").read_bytes()
    # Scripts whose first line names no folder here, conda-pack's own scripts, and records without the package cache.
    assert {name for name in differ if not name.startswith("conda-meta/")} == {
        "bin/by_prog", "bin/demo-tool", "bin/activate", "bin/deactivate", "bin/activate.fish",
    }  # fmt: skip
