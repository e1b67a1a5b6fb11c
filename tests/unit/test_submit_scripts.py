"""Batch scripts and manifests: their contents and quoting, and the parsers of schedulers' replies."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlrun.errors import InputError
from ddlrun.schedulers.submit import BatchJob, JobState, Scheduler
from ddlrun.schedulers.submit.kubernetes import parse_job
from ddlrun.schedulers.submit.lsf import minutes, parse_bjobs
from ddlrun.schedulers.submit.pbs import parse_qstat
from ddlrun.schedulers.submit.registry import SCHEDULERS
from ddlrun.schedulers.submit.render import quote, render, scalar
from ddlrun.schedulers.submit.sge import parse_accounting
from ddlrun.schedulers.submit.slurm import parse_sacct, parse_scontrol
from ddlrun.units import parse_memory, parse_time_limit, render_clock
from tests.goldens.__main__ import JOBS, PLAIN, TEMPLATES, job, job_file, job_text

SCHEMA = yaml.safe_load((Path(__file__).parents[1] / "support" / "schemas" / "mpijob-v2beta1.yaml").read_text())
SCRIPT_SCHEDULERS = [scheduler for scheduler in SCHEDULERS.values() if scheduler.template.endswith(".sh.j2")]
KUBERNETES = SCHEDULERS["kubernetes"]
# Lines that a scheduler takes for its directives, anywhere in the script.
DIRECTIVE = r"(?m)^\s*#(?:SBATCH|BSUB|PBS|\$)|^[^\w\n]*(?:flux|FLUX):"
# Any text that an argument can be: without NUL and surrogates.
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40) | st.sampled_from(
    [
        "",
        "-",
        "--",
        "$HOME",
        "`id`",
        "a'b",
        'a"b',
        "*",
        "~",
        "x\n#BSUB -q evil",
        "\n#$ -q evil\n",
        "\r\n",
        "\\",
        "{{ job }}",
    ]
)


def rendered(batch: BatchJob, scheduler: Scheduler) -> str:
    return render(batch, scheduler, (TEMPLATES / scheduler.template).read_text(), scheduler.template, "1.0.0")


def replaced(batch: BatchJob, field: str, value: Any) -> BatchJob:
    return replace(batch, **{field: value})


@pytest.mark.parametrize("name", JOBS)
def test_scripts_equal_the_goldens(name: str) -> None:
    assert job_text(name) == job_file(name).read_text(), "make goldens writes them anew"


@pytest.mark.parametrize("scheduler", SCRIPT_SCHEDULERS, ids=lambda scheduler: scheduler.name)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORDS, max_size=5))
def test_a_shell_passes_every_word_unchanged(scheduler: Scheduler, words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "it's a\n#BSUB folder"
    folder.mkdir(exist_ok=True)
    stand_in = folder / "ddlrun"
    stand_in.write_text('#!/bin/sh\npwd >output\nprintf "%s\\0" "$@" >>output\n')
    stand_in.chmod(0o755)
    batch = replace(PLAIN, command=(str(stand_in), "launch", *words), folder=str(folder), container=("env", "A=b c"))
    try:
        text = rendered(batch, scheduler)
    except InputError as error:
        assert scheduler.forbidden
        assert "directive" in str(error)
        return
    subprocess.run(["sh"], input=text.encode(), check=True, cwd="/")
    assert (folder / "output").read_bytes() == "\0".join((f"{folder}\nlaunch", *words, "")).encode()


@pytest.mark.parametrize("scheduler", SCRIPT_SCHEDULERS, ids=lambda scheduler: scheduler.name)
@given(words=st.lists(WORDS, max_size=5))
def test_no_word_becomes_a_directive(scheduler: Scheduler, words: list[str]) -> None:
    try:
        text = rendered(replace(PLAIN, command=("ddlrun", *words), folder=f"/{''.join(words)}"), scheduler)
    except InputError:
        assert scheduler.forbidden
        return
    assert len(re.findall(DIRECTIVE, text)) == len(re.findall(DIRECTIVE, rendered(PLAIN, scheduler)))


@given(words=st.lists(WORDS, min_size=1, max_size=5))
def test_a_manifest_has_every_word_unchanged(words: list[str]) -> None:
    batch = replace(PLAIN, command=("ddlrun", *words), image="i")
    manifest = yaml.safe_load(rendered(batch, KUBERNETES))
    (launcher,) = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    assert launcher["command"] == ["ddlrun", *words]


@given(WORDS)
def test_quoting_begins_no_line_with_a_number_sign(word: str) -> None:
    assert "\n#" not in quote(word)
    assert yaml.safe_load(scalar(word)) == word


@pytest.mark.parametrize("name", ["kubernetes", "kubernetes-all"])
def test_a_manifest_follows_the_schema_of_the_operator(name: str) -> None:
    manifest = yaml.safe_load(job_text(name))
    jsonschema.validate(manifest, SCHEMA)
    assert (manifest["spec"]["slotsPerWorker"], manifest["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]) == (4, 6)
    manifest["spec"]["runPolicy"]["cleanPodPolice"] = "All"
    with pytest.raises(jsonschema.ValidationError, match="cleanPodPolice"):
        jsonschema.validate(manifest, SCHEMA)


@pytest.mark.parametrize("field", ["name", "queue", "account", "log", "directives", "parallel_environment"])
@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\x1bb", "a\u2028b", "a\x85b"])
def test_nothing_breaks_out_of_a_directive(field: str, value: str) -> None:
    with pytest.raises(InputError):
        rendered(replaced(PLAIN, field, value), SCHEDULERS["sge"])


@pytest.mark.parametrize("value", ["a b", "'", '"', "a#b", "\\", "`x`", ""])
def test_names_are_plain_words(value: str) -> None:
    for field in ("name", "queue", "account", "log"):
        with pytest.raises(InputError, match="blanks, quotes"):
            rendered(replaced(PLAIN, field, value), SCHEDULERS["slurm"])


@pytest.mark.parametrize(
    ("scheduler", "batch", "part"),
    [
        ("pbs", replace(PLAIN, warn=60, seconds=90), "--warn: PBS sends no signal"),
        ("slurm", replace(PLAIN, warn=60), "there is no --time"),
        ("slurm", replace(PLAIN, warn=60, seconds=60), "--time is 60 seconds"),
        ("slurm", replace(PLAIN, image="x"), "--image: only for Kubernetes"),
        ("lsf", replace(PLAIN, parallel_environment="x"), "--parallel-environment: only for Grid Engine"),
        ("sge", replace(PLAIN, memory=1), "-l h_vmem"),
        ("sge", replace(PLAIN, warn=60, seconds=90), "--warn: Grid Engine sends USR2 at the limit"),
        ("sge", replace(PLAIN, cores=2), "counts GPUs per slot"),
        ("flux", replace(PLAIN, requeue=True), "--restarts"),
        ("flux", replace(PLAIN, command=("a\n# flux: -N9",)), "would read a directive"),
        ("kubernetes", PLAIN, "--image NAME"),
        ("kubernetes", replace(PLAIN, image="i", modules=("x",)), "--module: software comes"),
        ("kubernetes", replace(PLAIN, image="i", directives="-x"), "--template"),
        ("slurm", replace(PLAIN, command=("\udcff",)), "is not UTF-8"),
    ],
)
def test_unsupported_options_are_errors(scheduler: str, batch: BatchJob, part: str) -> None:
    with pytest.raises(InputError, match=re.escape(part)):
        rendered(batch, SCHEDULERS[scheduler])


def test_each_option_reaches_the_script() -> None:
    """Check that every supported option changes the script."""
    values = {
        "seconds": 60, "queue": "q", "account": "a", "gpus": 8, "exclusive": True, "cores": 2, "memory": 9, "log": "o",
        "modules": ("m",), "container": ("c",), "requeue": True, "directives": "-d", "name": "n",
    }  # fmt: skip
    for scheduler in SCHEDULERS.values():
        plain = replace(job(scheduler.name), gpus=0)
        for field, value in values.items():
            if field not in scheduler.unsupported:
                assert rendered(replaced(plain, field, value), scheduler) != rendered(plain, scheduler), field


def test_errors_in_templates_have_their_place() -> None:
    for text, part in (("a\n{% if %}", "template t, line 2: "), ("{{ job.nosuch }}", "has no attribute 'nosuch'")):
        with pytest.raises(InputError, match=re.escape(part)):
            render(PLAIN, SCHEDULERS["slurm"], text, "t", "1.0.0")


@given(st.integers(1, 10**9 - 1))
def test_times(seconds: int) -> None:
    if seconds < 360_000_000:
        assert parse_time_limit(render_clock(seconds)) == seconds
    assert parse_time_limit(f"{seconds}s") == seconds
    hours, _, rest = minutes(seconds).partition(":")
    assert 0 <= int(hours) * 3600 + int(rest) * 60 - seconds < 60


@pytest.mark.parametrize("text", ["", "0", "1:30", "-5", "1.5h", "1:60:00", "h", "5 m", "٣", "9" * 12])
def test_malformed_times(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--time {text!r} is not a time limit")):
        parse_time_limit(text)


@pytest.mark.parametrize("text", ["", "64", "G", "0G", "-1G", "1K", "64 G", "1e3G"])
def test_malformed_sizes(text: str) -> None:
    with pytest.raises(InputError, match="is not a size"):
        parse_memory(text)


def mpijob(*conditions: tuple[str, str], codes: tuple[int | None, ...] = ()) -> str:
    pods = [
        {
            "kind": "Pod",
            "metadata": {"labels": {"ddlrun/role": "launcher"}, "creationTimestamp": f"2024-01-0{day}"},
            "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": code}}}]},
        }
        for day, code in enumerate(codes, 1)
    ]
    status = [{"type": kind, "status": "True", "reason": reason} for kind, reason in conditions]
    return json.dumps({"kind": "List", "items": [*pods, {"kind": "MPIJob", "status": {"conditions": status}}]})


ACCOUNT = "failed       {}\nexit_status  {}\n"
# Accounting lines of Grid Engine 8.1.9: of a task that mpirun started for a job, and of the job that exited with 3.
TASK_LINE = (
    "all.q:h2:root:root:ddlrun-train:1:sge:0:1795297588:1795297588:1795297588:0:0:0:0.115032:0.042004:15884.000000:0:0:0:0:"
    "7678:17:0:992.000000:24:0:0:0:173:100:NONE:defaultdepartment:spread:4:0:0.157036:0.000000:0.000000:-pe spread 4:"
    "0.000000:1.h2:0.000000:0:0\n"
)
JOB_LINE = (
    "all.q:h1:root:root:ddlrun-train:1:sge:0:1795297585:1795297587:1795297591:{}:{}:4:0.673995:0.219642:30084.000000:0:0:0:0:"
    "44820:33:0:10552.000000:224:0:0:0:796:494:NONE:defaultdepartment:spread:4:0:0.893637:0.004881:0.016395:-pe spread"
    " 4:0.000000:NONE:89673728.000000:0:0\n"
)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (parse_scontrol("JobState=RUNNING ExitCode=0:0 StdOut=/a\n"), JobState("RUNNING", None, "/a")),
        (parse_scontrol("JobState=COMPLETED ExitCode=0:0"), JobState("COMPLETED", 0)),
        (parse_scontrol("JobState=FAILED ExitCode=0:9"), JobState("FAILED", 137)),
        (parse_scontrol("JobState=FAILED ExitCode=0:0"), JobState("FAILED", 1)),
        (parse_scontrol("JobState=TIMEOUT ExitCode=0:15"), JobState("TIMEOUT", 124)),
        (parse_scontrol("JobState=NODE_FAIL ExitCode=0:0"), JobState("NODE_FAIL", 3)),
        (parse_scontrol("JobState=COMPLETING ExitCode=3:0"), JobState("COMPLETING")),
        (parse_scontrol(""), None),
        (parse_sacct("FAILED|3:0\n"), JobState("FAILED", 3)),
        (parse_sacct("NODE_FAIL|0:0\nCOMPLETED|0:0\n"), JobState("COMPLETED", 0)),
        (parse_sacct(""), None),
        (parse_bjobs("PEND|-|-"), JobState("PEND")),
        (parse_bjobs("DONE|-|-"), JobState("DONE", 0)),
        (parse_bjobs("EXIT|3|-\n"), JobState("EXIT", 3)),
        (parse_bjobs("EXIT|-"), JobState("EXIT", 1)),
        (parse_bjobs("Job <7> is not found"), None),
        (parse_qstat("    job_state = R\n"), JobState("R")),
        (parse_qstat("    job_state = F\n    Exit_status = 3\n"), JobState("F", 3)),
        (parse_qstat("    job_state = F\n    Exit_status = -29\n"), JobState("F", 124)),
        (parse_qstat("    job_state = F\n    Exit_status = -3\n"), JobState("F", 1)),
        (parse_qstat("    job_state = C\n    exit_status = 0\n"), JobState("C", 0)),
        (parse_qstat("    job_state = F\n"), JobState("F", 143)),
        (parse_qstat("<Data><Job>"), None),
        (parse_accounting(ACCOUNT.format(0, 3)), JobState("ended", 3)),
        (parse_accounting(ACCOUNT.format("100 : assumedly after job", 137)), JobState("ended", 137)),
        (parse_accounting(ACCOUNT.format("21  : in recognizing job", 0)), JobState("ended", 3)),
        (parse_accounting(ACCOUNT.format(0, 3) + ACCOUNT.format(0, 0)), JobState("ended", 0)),
        (parse_accounting(TASK_LINE + JOB_LINE.format(0, 3)), JobState("ended", 3)),
        (parse_accounting(JOB_LINE.format(37, 137) + TASK_LINE), JobState("ended", 124)),
        (parse_accounting(TASK_LINE + TASK_LINE), None),
        (parse_accounting("error: job id 7 not found"), None),
        (parse_job(mpijob()), JobState("Pending")),
        (parse_job(mpijob(("Created", ""), ("Running", ""))), JobState("Running")),
        (parse_job(mpijob(("Running", ""), ("Succeeded", ""))), JobState("Succeeded", 0)),
        (parse_job(mpijob(("Failed", "x"), codes=(1, 3))), JobState("Failed", 3)),
        (parse_job(mpijob(("Failed", "x"), codes=(None,))), JobState("Failed", 1)),
        (parse_job(mpijob(("Failed", "DeadlineExceeded"), codes=(143,))), JobState("Failed", 124)),
        (parse_job('{"kind": "List", "items": []}'), None),
        (parse_job("error"), None),
    ],
)
def test_replies_of_schedulers(state: JobState | None, expected: JobState | None) -> None:
    assert state == expected
