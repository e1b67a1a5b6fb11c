"""Plug-ins: the example of the documentation, installed; and broken ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import script
from tests.support import needs

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "ddlrun-toy"
RANK = "import os, sys; print(os.environ['RANK'], sorted(os.sched_getaffinity(0))); sys.exit(int(sys.argv[1]))\n"
NAMES = [
    ("pyproject.toml", "The package", "toml", 0),
    ("ddlrun_toy/schedulers.py", "A scheduler's job", "python", 0),
    ("ddlrun_toy/process_manager.py", "A process manager", "python", 0),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the example is installed by pip."""
    needs.package("hatchling")
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, EXAMPLE], check=True)
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Return a folder with the metadata of a plug-in whose module is missing."""
    folder = tmp_path / "broken"
    metadata = folder / "ddlrun_broken-0.3.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ddlrun-broken\nVersion: 0.3\n")
    (metadata / "entry_points.txt").write_text("[ddlrun.schedulers]\nbroken = ddlrun_broken:READER\n")
    return folder


def ddlrun(folder: Path, *words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    paths = {"PYTHONPATH": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}", "XDG_STATE_HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, "-m", "ddlrun", *words], capture_output=True, text=True, check=False, cwd=cwd,
        env=inherited | root | paths | environ,
    )  # fmt: skip


def in_job(folder: Path) -> dict[str, str]:
    (folder / "hosts").write_text("localhost slots=2\n")
    return {"TOY_JOB": "7", "TOY_HOSTS": str(folder / "hosts")}


@pytest.mark.parametrize(("name", "title", "kind", "place"), NAMES, ids=[name for name, *_ in NAMES])
def test_the_page_shows_the_files_of_the_example(name: str, title: str, kind: str, place: int) -> None:
    assert script("write-a-plugin", title, place, kind=kind) == (EXAMPLE / name).read_text()


def test_a_launch_in_a_job_of_the_plugin(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    launch = ["launch", "--mpirun", "toyrun", "--output", "no-tag", "--verbose"]
    done = ddlrun(installed, *launch, "rank.py", "0", cwd=tmp_path, **in_job(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["0", "1"]
    assert "hosts:      Toy job 7" in done.stderr
    assert re.search(r"toyrun:     /\S+/toyrun \(Toyrun 1.0\)", done.stderr)
    assert "bound to CPUs" not in done.stderr  # each rank has the cores of the plan


def test_the_exit_code_of_a_rank(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    words = ["launch", "--mpirun", "toyrun", "-np", "2", "rank.py", "9"]
    done = ddlrun(installed, *words, cwd=tmp_path)
    assert done.returncode == 9
    assert "ddlrun: exit code 9; logs: " in done.stderr


def test_a_process_manager_that_fails_is_named(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "toyrun").write_text('#!/bin/sh\n[ "$1" = --version ] && exec echo toyrun 1.0\nexit 37\n')
    (tmp_path / "toyrun").chmod(0o755)
    done = ddlrun(installed, "launch", "--mpirun", f"{tmp_path}/toyrun", "-np", "2", "true", cwd=tmp_path)
    assert re.search("ddlrun: failed after .*: toyrun ended with 37\n", done.stderr), done.stderr


def test_the_process_manager_rejects_a_job(installed: Path, tmp_path: Path) -> None:
    words = ["launch", "--mpirun", "toyrun", "--dry-run", "--machine", "dgx1", "-H", "n1,n2", "true"]
    done = ddlrun(installed, *words, cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr.startswith("ddlrun: error: toyrun starts ranks on one host alone")


def test_the_scheduler_that_is_named(installed: Path, tmp_path: Path) -> None:
    done = ddlrun(installed, "show", "hosts", "--scheduler", "toy", cwd=tmp_path)
    assert done.returncode == 2
    assert "--scheduler toy: not inside a job of Toy (TOY_JOB is not set)" in done.stderr
    done = ddlrun(installed, "show", "hosts", "--scheduler", "toys", cwd=tmp_path)
    assert done.returncode == 2
    assert "'toys' is none of" in done.stderr


def test_a_job_script(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ["submit", "--scheduler", "toy", "--print", "--time", "1h", "2x3", "train.py", "a b"]
    lines = ddlrun(installed, *words, cwd=tmp_path).stdout.splitlines()
    assert lines[:5] == [
        "#!/bin/sh",
        "#TOY name=ddlrun-train hosts=3 slots=2",
        "#TOY time=1:00:00",
        "#TOY output=ddlrun-%j.out",
        f"cd {tmp_path} || exit 1",
    ]
    assert lines[5].endswith("launch --topology 2x3 train.py 'a b'")


def test_a_submission(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "toysub").write_text(f"#!/bin/sh\ncat >{tmp_path}/script\necho 41\n")
    (programs / "toysub").chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    done = ddlrun(installed, "submit", "--scheduler", "toy", "2x1", "train.py", cwd=tmp_path, PATH=path)
    assert (done.returncode, done.stdout) == (0, "41\n")
    assert (tmp_path / "script").read_text().startswith("#!/bin/sh\n#TOY")
    assert "Toy job 41; log: " in done.stderr


def test_completion_knows_the_schedulers_of_plugins(installed: Path, tmp_path: Path) -> None:
    for command in ("launch", "submit"):
        query = {
            "_DDLRUN_COMPLETE": "bash_complete",
            "COMP_WORDS": f"ddlrun {command} --scheduler to",
            "COMP_CWORD": "3",
        }
        assert ddlrun(installed, cwd=tmp_path, **query).stdout == "plain,toy\n"


def test_a_broken_plugin_is_one_line(broken: Path, tmp_path: Path) -> None:
    done = ddlrun(broken, "show", "hosts", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "ddlrun: error: plug-in ddlrun-broken 0.3: ddlrun.schedulers: broken = ddlrun_broken:READER cannot be loaded "
        "(ModuleNotFoundError: No module named 'ddlrun_broken'); repair the package, or: pip uninstall ddlrun-broken\n"
    )


def test_an_entry_point_of_another_type(broken: Path, tmp_path: Path) -> None:
    (broken / "ddlrun_broken.py").write_text("READER = 7\n")
    done = ddlrun(broken, "show", "hosts", cwd=tmp_path)
    assert done.returncode == 2
    assert "READER is not a SchedulerReader; repair the package" in done.stderr


def test_a_process_manager_that_is_no_class(broken: Path, tmp_path: Path) -> None:
    (broken / "ddlrun_broken.py").write_text("TOYRUN = 'toyrun'\n")
    points = "[ddlrun.managers]\ntoyrun = ddlrun_broken:TOYRUN\n"
    (broken / "ddlrun_broken-0.3.dist-info/entry_points.txt").write_text(points)
    done = ddlrun(broken, "launch", "--mpirun", "true", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "TOYRUN is not a class of ProcessManager; repair the package" in done.stderr


@pytest.mark.parametrize("words", [["--scheduler", "none"], ["-H", "n1", "--machine", "dgx1"]])
def test_a_broken_plugin_does_not_matter_where_hosts_are_known(broken: Path, tmp_path: Path, words: list[str]) -> None:
    done = ddlrun(broken, "show", "hosts", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_without_plugins_no_metadata_is_read(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ddlrun", "show", "hosts"], capture_output=True, text=True,
        check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "ddlrun.plugins" in done.stderr
    assert "importlib.metadata" not in done.stderr
