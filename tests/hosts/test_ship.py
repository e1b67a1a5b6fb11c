"""Files that travel to hosts whose disks share nothing: tmpfs in the mount namespace of each host."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import MPIRUNS, OWN, launch_line
from tests.support.conda_environment import make_conda_environment
from tests.support.wheels import write_wheel

HOSTS = ("h1", "h2", "h3", "h4")
TRAIN = """
import os, sys
from parts import model
rank = os.environ["RANK"]
text = open("data/words.txt").read().strip()
print(os.uname().nodename, text, os.path.exists("ignored"), sys.prefix, flush=True)
open(f"result.{rank}", "w").write("done")
open("log.txt", "w").write(os.uname().nodename)
open("same.txt", "w").write("same")
if sys.argv[1:]:
    model.fail()
"""
MODEL = """
def fail():
    raise ValueError("broken")
"""


class Apart(NamedTuple):
    """A project on h1 that the other hosts do not have, and the folder for shipped files on each host's own disk."""

    cluster: Cluster
    project: Path
    cache: Path

    def launch(self, manager: str, *words: str, runs: str = "1") -> subprocess.CompletedProcess[str]:
        """Launch a program from h1, with one rank on each host."""
        folder = self.project.parent / f"runs.{runs}"
        folder.mkdir()
        options = ["-H", ",".join(f"{host}:1" for host in HOSTS), "--ship-dir", str(self.cache)]
        argv = [*launch_line(manager, folder, *options), *words]
        return self.cluster.run("h1", argv, cwd=self.project, timeout=600)

    def shell(self, host: str, script: str) -> str:
        """Return the output of a script on a host, in the folder of its shipped files."""
        return self.cluster.run(host, ["sh", "-c", script], cwd=self.cache, check=True).stdout.strip()


@pytest.fixture
def apart(cluster: Cluster, tmp_path: Path) -> Iterator[Apart]:
    """Provide a project with a repository, and hosts that have neither it nor each other's files."""
    project, cache = tmp_path / "project", tmp_path / "local"
    for folder in (project / "parts", project / "data", cache):
        folder.mkdir(parents=True)
    (project / "train.py").write_text(TRAIN)
    (project / "parts" / "model.py").write_text(MODEL)
    (project / "data" / "words.txt").write_text("many words")
    (project / ".gitignore").write_text("ignored\n/*.txt*\nresult.*\n")
    (project / "ignored").write_text("this stays\n")
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    mounts = [(host, cache) for host in HOSTS] + [(host, project) for host in HOSTS[1:]]
    for host, folder in mounts:
        cluster.administer(host, ["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", str(folder)])
    yield Apart(cluster, project, cache)
    for host, folder in mounts:
        cluster.administer(host, ["umount", "--lazy", str(folder)])


@pytest.mark.extra
@pytest.mark.parametrize("manager", [OWN, *MPIRUNS.values()], ids=["ddlrun", *map(str, MPIRUNS)])
def test_code_travels_once_and_the_output_names_the_users_own_paths(apart: Apart, manager: str) -> None:
    (apart.project / "same.txt").write_text("former")
    first = apart.launch(manager, "--ship", "code", "--fetch", ".", "--output", "no-tag", "train.py")
    assert first.returncode == 0, first.stderr
    _check_fetched(apart, first.stderr)
    assert sorted(line.split()[0] for line in first.stdout.splitlines()) == [*HOSTS]
    assert all(" many words False " in line for line in first.stdout.splitlines())
    assert f"shipped {apart.project} (" in first.stderr
    (apart.project / "same.txt").unlink()
    second = apart.launch(manager, "--ship", "code", "--fetch", "same.txt", "train.py", "fail", runs="2")
    assert second.returncode == 1
    assert "ddlrun: fetched same.txt (4 B) from h" in second.stderr
    assert "ddlrun: shipped" not in second.stderr  # nothing has changed
    assert f'File "{apart.project}/parts/model.py", line 3, in fail' in second.stderr
    assert str(apart.cache) not in second.stdout + second.stderr
    logs = (apart.project.parent / "runs.2" / "run" / "ranks").iterdir()
    assert str(apart.cache) not in "".join(log.read_text() for log in logs)
    assert len(apart.shell("h3", "ls objects").split()) == 1
    assert apart.shell("h3", f"cat runs/*{apart.project}/result.*").startswith("done")


def _check_fetched(apart: Apart, errors: str) -> None:
    """Check that the results of h1 have the names that all hosts have written."""
    names = ["log.txt", *(f"log.{host}.txt" for host in HOSTS[1:])]
    assert [(apart.project / name).read_text() for name in names] == [*HOSTS]
    assert [(apart.project / f"same.txt{end}").read_text() for end in ("", "~")] == ["same", "former"]
    assert {path.name for path in apart.project.glob("*.*")} >= {f"result.{rank}" for rank in range(4)}
    assert not [*apart.project.glob(".ddlrun-fetch-*"), *apart.project.glob("same.h*")]
    assert "fetched log.h2.txt (2 B) from h2 (rank 1); log.txt is h1's" in errors
    assert "fetched same.txt (4 B) from h1 (rank 0); the same on h[2-4]; the former one is same.txt~" in errors


@pytest.mark.extra
def test_results_come_back_after_an_interrupt(apart: Apart) -> None:
    (apart.project / "wait.py").write_text(
        "import os, time\nname = os.uname().nodename\nopen(name, 'w').write(name)\nprint(name, flush=True)\n"
        "time.sleep(600)\n"
    )
    options = ["-H", "h1:1,h2:1", "--ship-dir", str(apart.cache), "--ship", "code", "--fetch", "h1,h2,h3"]
    argv = apart.cluster.argv("h1", [*launch_line(OWN, apart.project.parent, *options), "wait.py"], cwd=apart.project)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline()[-3:] for _ in range(2)} == {"h1\n", "h2\n"}
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert [(apart.project / name).read_text() for name in ("h1", "h2")] == ["h1", "h2"]
    assert "ddlrun: --fetch: no rank has written 'h3'\n" in errors


@pytest.mark.extra
def test_clean_removes_what_no_run_uses(apart: Apart) -> None:
    for host in HOSTS[:2]:
        apart.shell(
            host, "mkdir -p objects/c0de/x runs incoming; touch -d '3 days ago' objects/c0de; chmod 555 objects/c0de"
        )
    clean = [sys.executable, "-m", "ddlrun", "clean", "h1,h2", "--ship-dir", str(apart.cache), "--shipped-days"]
    kept = apart.cluster.run("h1", [*clean, "4"])
    # Other tests kill ddlrun and its guard, whose folders in /tmp are removed, too.
    shipped = [line for line in kept.stdout.splitlines() if "shipped" in line]
    assert shipped == ["h1: removed 0 shipped folders", "h2: removed 0 shipped folders"]
    removed = apart.cluster.run("h1", [*clean, "2", "--shipped-size", "1MB"])
    assert "h2: removed 1 shipped folder, 0 B left" in removed.stdout
    assert apart.shell("h2", "ls objects") == ""


def test_problems_of_hosts_are_named_before_anything_moves(apart: Apart) -> None:
    (apart.project / "large").write_bytes(bytes(4 << 20))
    apart.cluster.administer("h3", ["umount", str(apart.cache)])
    apart.cluster.administer("h3", ["mount", "-t", "tmpfs", "-o", "mode=700,size=2m", "tmpfs", str(apart.cache)])
    apart.cluster.administer("h2", ["chmod", "777", str(apart.cache)])
    check = [
        sys.executable,
        "-m",
        "ddlrun",
        "check",
        "h1,h2,h3",
        "--checks",
        "ssh",
        "--ship-dir",
        str(apart.cache),
    ]
    done = apart.cluster.run("h1", [*check, "--ship", "code,large"], cwd=apart.project)
    assert done.returncode == 5
    assert f"host h2: --ship: {apart.cache} is not a folder that this user alone can write to" in done.stdout
    assert f"host h3: {apart.cache} has 2 MiB free, and the files need 4" in done.stdout
    apart.cluster.administer("h2", ["chmod", "700", str(apart.cache)])
    fine = apart.cluster.run("h1", [*check, "--ship", "data"], cwd=apart.project)
    assert fine.returncode == 0
    assert re.search(r"(?m)^h2: --ship would copy 1 of 1, \d+ B; ", fine.stdout)  # its archive names the owner
    assert apart.shell("h1", "ls objects") == ""


@pytest.mark.extra
@pytest.mark.parametrize("manager", [OWN, MPIRUNS[5]])
def test_an_environment_travels_with_data(apart: Apart, manager: str) -> None:
    venv = apart.project / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    (site / "only_here.py").write_text("")
    (apart.project / "show.py").write_text(
        "import only_here, sys, os\nprint(sys.prefix, os.path.getsize('data/large'))\n"
    )
    (apart.project / "data" / "large").write_bytes(bytes(2 << 20))  # which travels in compressed form
    words = ["--ship", "code,env,data", "--output", "no-tag", "venv/bin/python", "show.py"]
    done = apart.launch(manager, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{venv} {2 << 20}"] * len(HOSTS)


SHOW_CONDA = """
import os, subprocess, sys
share, prefix = subprocess.run(["prog"], capture_output=True, text=True).stdout.split("\\n")[0].split(":")
by_prog = subprocess.run(["by_prog"], capture_output=True, text=True).stdout
console = subprocess.run(["demo-tool"], capture_output=True, text=True).stdout.strip()
same = os.path.samefile(prefix, sys.prefix) and os.path.samefile(console, prefix)
text = open(share + "/demo.conf").read().strip()
active = os.environ["CONDA_PREFIX"]
print(same, text == share, by_prog.endswith("after\\n"), os.environ["DEMO_SHARE"] == active + "/share",
      os.path.samefile(active, prefix), "DEMO_OLD" in os.environ, os.path.exists(sys.argv[1]))
"""


@pytest.mark.extra
def test_a_conda_environment_travels(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rattler_build", reason="make .venv/test-all")
    env = apart.project / "env"
    make_conda_environment(apart.project.parent / "packages", env)
    (apart.project / ".gitignore").write_text("/env\n")
    (apart.project / "show.py").write_text(SHOW_CONDA)
    monkeypatch.setenv("DEMO_OLD", "1")
    done = apart.launch(OWN, "--ship", "code,env", "--output", "no-tag", f"{env}/bin/python", "show.py", "env/x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True True True True True False False"] * len(HOSTS)
    assert f"shipped {env} (" in done.stderr
    assert done.stderr.count("activated") == len(HOSTS)
    long = ["--ship", "env", "--ship-dir", str(apart.cache / ("long" * 50)), f"{env}/bin/python", "show.py"]
    refused = apart.launch(OWN, *long, runs="2")
    assert refused.returncode == 2, refused.stderr
    assert f"error: --ship env: {env}/bin/prog has room for a path of 255 bytes, and" in refused.stderr
    assert refused.stderr.endswith("name a shorter folder: --ship-dir\n")


@pytest.mark.extra
def test_an_environment_of_a_lock_file_travels_where_it_is_missing(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(apart.project.parent / "caches"))
    write_wheel(apart.project)
    (apart.project / "lock.txt").write_text(f"demo @ file://{apart.project}/demo-1.0-py3-none-any.whl\n")
    (apart.project / "show.py").write_text("import demo\nprint(demo.value)\n")
    words = ["--ship", "code,env=lock.txt", "--output", "no-tag", "show.py"]
    first = apart.launch(OWN, *words)
    assert first.stdout.split() == ["7"] * len(HOSTS), first.stderr
    second = apart.launch(OWN, *words, runs="2")
    assert second.stdout.split() == ["7"] * len(HOSTS), second.stderr
    assert "shipped" not in second.stderr
    largest = apart.shell("h3", "du -s objects/* | sort -n | tail -n 1 | cut -f 2")
    apart.shell("h3", f"chmod -R u+w {largest}; rm -r {largest}")
    third = apart.launch(OWN, *words, runs="3")
    assert third.stdout.split() == ["7"] * len(HOSTS), third.stderr
    assert [line.split(") to ")[1] for line in third.stderr.splitlines() if ") to " in line] == ["h3"]
