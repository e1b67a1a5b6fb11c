"""Scripts of the how-to pages about schedulers, run with stand-ins (test_hosts.py: with real schedulers)."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.docs.pages import blocks, script

SCHEMA = yaml.safe_load((Path(__file__).parents[1] / "support" / "schemas" / "mpijob-v2beta1.yaml").read_text())
FOUR = "hostA 40 hostB 40 hostC 40 hostD 40"
UNITS = "NAME TYPE HOSTS\nencl1 enclosure hostA hostB\nencl2 enclosure hostC hostD\nrack1 rack encl1/ encl2/\n"
# What the schedulers set, and what their commands print.
JOBS = {
    "lsf": {"LSB_JOBID": "12", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": FOUR},
    "pbs": {"PBS_JOBID": "5.server", "PBS_NODEFILE": "nodes", "PBS_ARRAY_INDEX": "1"},
    "flux": {"FLUX_ENCLOSING_ID": "f1", "FLUX_URI": "local:///run/flux"},
}
COMMANDS = {"bmgroup": UNITS, "flux": "corona[82-83,171-172]\n"}
# ddlrun of a script: on hosts that are not there, eight GPUs each, and a launch stops at its plan.
STAND_IN = """#!/bin/sh
what=$1; shift
case $what in
launch) exec {python} -m ddlrun launch --dry-run --machine dgx1 "$@";;
show) show=$1; shift; exec {python} -m ddlrun show "$show" --machine dgx1 "$@";;
esac
"""


def run(text: str, scheduler: str, folder: Path, **more: str) -> str:
    """Run a script by sh, as the scheduler would; return what it prints."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, said in COMMANDS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    (folder / "bin" / "ddlrun").write_text(STAND_IN.format(python=shlex.quote(sys.executable)))
    for path in (folder / "bin").iterdir():
        path.chmod(0o755)
    (folder / "train.py").touch()
    (folder / "nodes").write_text("".join(f"n{number}\n" * 8 for number in (1, 2, 3, 4)))
    environ = {
        **os.environ, **JOBS[scheduler], "PBS_O_WORKDIR": str(folder), **more,
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, cwd=folder, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("page", "title", "more", "says"),
    [
        ("lsf", "The smallest job", {}, ["8x2x2: 32 ranks on hostA,hostB,hostC,hostD", "LSF job 12", "blaunch"]),
        ("lsf", "Warning, restart, arrays", {"LSB_JOBINDEX": "2", "LSB_RESTART": "Y"},
         ["8x2x2: ", "LSF job 12[2]", "train.py 2", "DDLRUN_RESTART=1"]),
        ("pbs", "The smallest job", {},
         ["8x4x1: 32 ranks on n[1-4]", "per GPU, with enough slots (PBS job 5.server", "ssh: PBS job"]),
        ("pbs", "Racks", {}, ["8x2x2: 32 ranks on n[1-4]", "rack 0: n[1-2]\nrack 1: n[3-4]\n"]),
        ("pbs", "Restart, arrays", {}, ["8x4x1: ", "train.py 1", "DDLRUN_RESTART=0"]),
        ("flux", "The smallest job", {}, ["8x4x1: 32 ranks on corona[82-83,171-172]", "ssh: Flux job f1"]),
        ("flux", "Warning before the time limit", {}, ["8x4x1: 32 ranks", "one rank per GPU"]),
    ],
)  # fmt: skip
def test_scripts_become_plans(page: str, title: str, more: dict[str, str], says: list[str], tmp_path: Path) -> None:
    printed = run(script(page, title), page, tmp_path, **more)
    assert [part for part in says if part not in printed] == [], printed


@pytest.mark.parametrize(("page", "title"), [("lsf", "Where the hosts come from"), ("flux", "The smallest job")])
def test_scripts_print_what_the_page_shows(page: str, title: str, tmp_path: Path) -> None:
    shown = next(block.text for block in blocks(page) if block.kind == "text")
    assert run(script(page, title, -1), page, tmp_path) == shown


def test_the_directives_of_each_page_are_its_schedulers() -> None:
    for page, sign in (
        ("slurm", "#SBATCH"),
        ("lsf", "#BSUB"),
        ("pbs", "#PBS"),
        ("flux", "# flux:"),
        ("grid-engine", "#$"),
    ):
        scripts = "\n".join(block.text for block in blocks(page) if block.kind == "sh")
        directives = re.findall(r"(?m)^#(?!!).*", scripts)
        assert directives, page
        assert [line for line in directives if not line.startswith(f"{sign} ")] == [], page


def test_the_manifest_keeps_the_operators_schema() -> None:
    (shown,) = [block.text for block in blocks("kubernetes") if block.kind == "yaml"]
    jsonschema.validate(yaml.safe_load(shown.partition("\n")[2]), SCHEMA)  # test_pages.py: it is what submit prints


def test_a_script_that_is_warned_saves_and_goes_on(mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script("inside-a-job", "A warning before the time limit", kind="python"))
    argv = ["launch", "--mpirun", mpirun, "--ranks-per-host", "2", "--output", "no-tag", "--quiet", "train.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "ddlrun", *argv], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["rank 0 begins\n", "rank 1 begins\n"]
        for _ in range(2):
            process.send_signal(10)
            assert sorted(process.stdout.readline() for _ in range(2)) == ["rank 0 saves\n", "rank 1 saves\n"]
        process.terminate()
        assert process.wait(120) == 143
