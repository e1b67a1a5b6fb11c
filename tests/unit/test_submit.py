"""ddlrun submit with stand-ins for the schedulers on PATH, which print what the real ones print."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.argv import split_argv
from ddlrun.cli.submit import LAUNCH_OPTIONS, command
from ddlrun.errors import UnreachableError
from ddlrun.remote import batch_job
from ddlrun.remote.batch_job import Intervals, SubmittedJob
from ddlrun.schedulers.submit.registry import SCHEDULERS

# Commands of each scheduler, for a job that is queued, runs, and exits with 3; $n counts the queries.
SLURM = {
    "sbatch": 'cat >script; echo "7;here"',
    "sinfo": "echo gpu:a100:4",
    "scontrol": """case $n in
        0) echo "JobId=7 JobState=PENDING ExitCode=0:0 StdOut=$PWD/ddlrun-7.out Power=";;
        1) echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1;;
        *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;; esac""",
    "sacct": 'if [ $n -gt 1 ]; then echo "FAILED|3:0"; else exit 1; fi',
}
LSF = {
    "bsub": 'cat >script; echo "$LSB_STDOUT_DIRECT" >direct; echo "Job <7> is submitted to queue <normal>."',
    "lshosts": "echo 'HOST_NAME  gpu_id  gpu_model'; echo 'hosta         0  TeslaV100'",
    "bjobs": "case $n in 0) echo 'PEND|-|-';; 1) echo 'RUN|-|-';; *) echo 'EXIT|3|-';; esac",
}
PBS = {
    "qsub": "[ \"$1\" = -help ] && { echo 'usage: qsub' >&2; exit 2; }; cat >script; echo 7.server",
    "pbsnodes": "echo '     resources_available.ngpus = 4'",
    "qstat": """echo "Job Id: 7.server"; case $n in
        0) echo "    job_state = Q";; 1) echo "    job_state = R";;
        *) echo "    job_state = F"; echo "    Exit_status = 3";; esac""",
}
SGE = {
    "qsub": "[ \"$1\" = -help ] && { echo 'SGE 8.1.9'; exit; }; cat >script; echo 7",
    "qconf": "echo 'gpu                 gpu        INT         <=    YES         YES        0        1000'",
    "qstat": """echo 'job-ID  prior   name       user         state submit/start at     queue'; echo -----
        case $n in
        0) echo '      7 0.00000 ddlrun-tra me           qw    11/21/2026 10:57:30';;
        1) echo '      7 0.55500 ddlrun-tra me           r     11/21/2026 10:57:31 all.q@n1      4'
           echo '     17 0.55500 ddlrun-tra me           qw    11/21/2026 10:57:31               4';; esac""",
    "qacct": "echo 'failed       0    '; echo 'exit_status  3                   '",
}
FLUX = {
    "flux": """case $1 in
        batch) cat >script; echo ƒM7Zq9AKHno;;
        resource) echo 4;;
        jobs) case $n in 0) echo 'SCHED|';; 1) echo 'RUN|';; *) echo 'FAILED|3';; esac;; esac""",
}
KUBERNETES = {
    "kubectl": """case $1 in
        create) cat >script; echo mpijob.kubeflow.org/$(sed -n 's/^  name: "\\(.*\\)"/\\1/p' script);;
        logs) echo from the pod; [ $n -gt 1 ] || echo more; exit 0;;
        get) case "$*" in *nodes*) echo 4; exit;; esac
            case $n in 0) type=Created;; 1) type=Running;; *) type=Failed;; esac
            printf '{"items": [{"kind": "MPIJob", "status": {"conditions": [{"type": "%s", "status": "True"}]}},' $type
            printf '{"kind": "Pod", "metadata": {"labels": {"ddlrun/role": "launcher"}}, "status":'
            printf '{"containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}}]}';; esac""",
}
ALL = {"slurm": SLURM, "lsf": LSF, "pbs": PBS, "sge": SGE, "flux": FLUX, "kubernetes": KUBERNETES}
QUERY_COMMANDS = {
    "slurm": "scontrol",
    "lsf": "bjobs",
    "pbs": "qstat",
    "sge": "qstat",
    "flux": "flux",
    "kubernetes": "kubectl",
}
IDS = {"pbs": "7.server", "flux": "ƒM7Zq9AKHno"}
LOGS = {"pbs": "ddlrun-train.o7", "flux": "ddlrun-ƒM7Zq9AKHno.out"}

Run = Callable[..., subprocess.CompletedProcess[str]]


def install(folder: Path, name: str, commands: dict[str, str]) -> None:
    """Write stand-ins that count, in the file `queries`, how often the state of a job was queried."""
    query = "jobs*|get*" if name in ("flux", "kubernetes") else "*"
    count = f'case "$*" in *nodes*|resource*) ;; {query}) echo >>queries;; esac'
    for command_name, body in commands.items():
        path = folder / "bin" / command_name
        lines = [
            "#!/bin/sh",
            "n=$(cat queries 2>/dev/null | wc -l)",
            count if command_name == QUERY_COMMANDS[name] else ":",
            f'echo "$*" >>{command_name}.argv',
            body,
        ]
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)


@pytest.fixture
def submit(tmp_path: Path) -> Run:
    (tmp_path / "bin").mkdir()
    (tmp_path / "train.py").write_text("")
    # The tests themselves may be started by nohup, or in the background of a script.
    reset = [str(shutil.which("env")), "--default-signal"]
    for tool in ("sh", "cat", "wc", "sed", "env", "sleep", "kill"):
        (tmp_path / "bin" / tool).symlink_to(f"/bin/{tool}")

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", **variables}
        argv = [*reset, sys.executable, "-m", "ddlrun", "submit", *words]
        return subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=environ, check=False, timeout=300)

    return run


def test_every_option_of_launch_is_accepted_and_none_twice() -> None:
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts, param.name)}
    launch_names = {name for param in LAUNCH_OPTIONS for name in (*param.opts, *param.secondary_opts, param.name)}
    assert own & launch_names == set()
    options = {param.name for param in launch.params if isinstance(param, click.Option)}
    assert options - {param.name for param in LAUNCH_OPTIONS} == {"scheduler", "help_all"}


@pytest.mark.parametrize("name", ALL)
def test_the_job_is_submitted_and_its_id_printed(submit: Run, tmp_path: Path, name: str) -> None:
    install(tmp_path, name, ALL[name])
    image = ["--image", "example.org/i"] if name == "kubernetes" else []
    done = submit("4x2x3", *image, "--grace", "5", "train.py", "a  b")
    assert done.returncode == 0, done.stderr
    script = (tmp_path / "script").read_text()
    if name == "kubernetes":
        spec = yaml.safe_load(script)["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
        words = spec["containers"][0]["command"]
        assert done.stdout.strip() == yaml.safe_load(script)["metadata"]["name"]
    else:
        words = shlex.split(script.splitlines()[-1])[1:]
        assert done.stdout == f"{IDS.get(name, '7')}\n"
        assert f"; log: {tmp_path}/{LOGS.get(name, 'ddlrun-7.out')}\n" in done.stderr
    assert words == [words[0], "launch", "--topology", "4x2x3", "--grace", "5", "train.py", "a  b"]
    assert words[0] == ("ddlrun" if name == "kubernetes" else f"{Path(sys.executable).parent}/ddlrun")
    assert "gpu" in script
    assert f"cancel: {SCHEDULERS[name].cancel[0]} " in done.stderr


def test_wait_returns_the_exit_code_of_the_job_and_shows_its_log(submit: Run, tmp_path: Path) -> None:
    (tmp_path / "my.log").write_text("of an earlier job\n")
    install(tmp_path, "lsf", {**LSF, "bsub": f"printf 'first\nlast, no newline' >>my.log; {LSF['bsub']}"})
    (tmp_path / "queries").write_text("\n" * 2)  # the job has ended
    done = submit("4", "--log", "my.log", "--wait", "train.py")
    assert (done.returncode, done.stdout) == (3, "7\nfirst\nlast, no newline"), done.stderr
    assert done.stderr.endswith(", exit code 3\n")
    assert (tmp_path / "direct").read_text() == "Y\n"


def test_wait_shows_the_output_of_pods(submit: Run, tmp_path: Path) -> None:
    install(tmp_path, "kubernetes", KUBERNETES)
    (tmp_path / "queries").write_text("\n" * 2)
    done = submit("4", "--image", "i", "--wait", "train.py")
    assert (done.returncode, done.stdout.partition("\n")[2]) == (3, "from the pod\n"), done.stderr
    assert done.stderr.endswith(", exit code 3\n")


class Following(NamedTuple):
    """The result of following a job: its exit code, the copied log, and the messages."""

    code: int
    log: str
    messages: list[str]


QUICKLY = Intervals(first=0.01, longest=0.01, copy=0.01)
Follow = Callable[..., Following]


@pytest.fixture
def follow(submit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Follow:
    """Follow job 7 of the stand-ins in this process, with queries in quick succession."""
    del submit  # it has made the folder of the stand-ins
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")

    def run(name: str, commands: dict[str, str], log: str | None, shown: int = 0) -> Following:
        install(tmp_path, name, commands)
        messages = list[str]()
        job = SubmittedJob(SCHEDULERS[name], IDS.get(name, "7"), log, shown)
        capfd.readouterr()
        code = batch_job.follow(job, messages.append, QUICKLY)
        return Following(code, capfd.readouterr().out, messages)

    return run


@pytest.mark.parametrize("name", ALL)
def test_a_job_is_followed_through_its_states(follow: Follow, tmp_path: Path, name: str) -> None:
    log = tmp_path / LOGS.get(name, "ddlrun-7.out")
    log.write_text("first\nlast, no newline")
    done = follow(name, ALL[name], str(log))
    assert (done.code, len(done.messages)) == (3, 2 if name == "slurm" else 3), done.messages
    assert done.log == ("from the pod\n" if name == "kubernetes" else "first\nlast, no newline")
    assert done.messages[-1].endswith(", exit code 3")


def test_only_additions_to_a_log_are_copied(follow: Follow, tmp_path: Path) -> None:
    (tmp_path / "my.log").write_text("of an earlier job\n")
    shown = (tmp_path / "my.log").stat().st_size
    grow = "case $n in 1) echo one >>my.log; echo 'RUN|-|-';; 2) echo begun anew >my.log; echo 'DONE|-|-';; esac"
    done = follow("lsf", {**LSF, "bjobs": f"[ $n = 0 ] && echo 'PEND|-|-'; {grow}"}, "my.log", shown)
    assert (done.code, done.log) == (0, "one\nbegun anew\n")


def test_a_job_that_the_scheduler_forgets_is_an_error(follow: Follow) -> None:
    assert UnreachableError.exit_code == 3
    gone = "echo 'Job <7> is not found' >&2; exit 255"
    text = r"says nothing of job 7 any more, so its exit code is not known \(Job <7> is not found\)"
    with pytest.raises(UnreachableError, match=text):
        follow("lsf", {**LSF, "bjobs": gone}, None)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_and_leaves_the_job_running(tmp_path: Path, submit: Run, number: int, code: int) -> None:
    # The stand-in sends the signal to the ddlrun that queries it.
    install(tmp_path, "lsf", {**LSF, "bjobs": f"echo 'RUN|-|-'; kill -{int(number)} $PPID"})
    done = submit("4", "--wait", "train.py")
    assert done.returncode == code
    note = done.stderr.replace("ddlrun: ended by SIGTERM\n", "").rstrip()
    assert note.endswith("job 7 stays in the queue, or goes on; cancel it: bkill 7")


def test_print_needs_no_scheduler_and_touches_nothing(submit: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    done = submit("--print", "--scheduler", "slurm", "4x2", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert "#SBATCH --gres=gpu:4\n" in done.stdout
    assert sorted(tmp_path.iterdir()) == before


def test_no_scheduler_is_an_error_with_a_remedy(submit: Run) -> None:
    done = submit("4", "train.py")
    assert done.returncode == 2
    assert "--print --scheduler slurm|lsf|pbs|sge|flux|kubernetes" in done.stderr


def test_note_on_a_secret_in_the_job_script(submit: Run) -> None:
    done = submit("--print", "--scheduler", "lsf", "4", "--env", "MY_TOKEN=geheim", "--env", "A=1", "sh")
    expected = "ddlrun: note: --env MY_TOKEN: its value is in the job script; export a secret, and use -x MY_TOKEN\n"
    assert (done.returncode, done.stderr) == (0, expected)


def test_note_on_several_schedulers(submit: Run, tmp_path: Path) -> None:
    install(tmp_path, "flux", FLUX)
    install(tmp_path, "pbs", PBS)
    done = submit("4", "--print", "train.py")
    assert "PBS, Flux are installed; using PBS; another: --scheduler flux" in done.stderr
    assert "#PBS -N" in done.stdout
    assert "#$ -N" in submit("4", "--print", "train.py", SGE_ROOT="/opt/sge").stdout


@pytest.mark.parametrize(
    ("name", "without_gpus"),
    [
        ("slurm", {"sinfo": "echo '(null)'"}), ("sge", {"qconf": "echo '#name shortcut'"}),
        ("pbs", {"pbsnodes": "echo '     resources_available.ncpus = 4'"}),
        ("lsf", {"lshosts": "echo 'HOST_NAME  gpu_id  gpu_model'"}),
    ],
)  # fmt: skip
def test_no_gpus_are_requested_where_there_are_none(
    submit: Run, tmp_path: Path, name: str, without_gpus: dict[str, str]
) -> None:
    install(tmp_path, name, ALL[name] | without_gpus)
    done = submit("4", "--print", "train.py")
    assert "gpu" not in re.sub("(?m)^(cd|exec) .*", "", done.stdout)
    assert "reports no GPUs" in done.stderr
    assert submit("4", "--print", "--gpus", "4", "train.py").stdout != done.stdout
    install(tmp_path, name, ALL[name])
    assert submit("4", "--print", "--gpus", "0", "train.py").stdout == done.stdout


def test_gpus_are_those_of_the_partition_of_slurm(submit: Run, tmp_path: Path) -> None:
    install(tmp_path, "slurm", SLURM)
    submit("4", "--partition", "p100", "train.py")
    assert (tmp_path / "sinfo.argv").read_text() == "-h -o %G -p p100\n"


def test_when_free_only_queries(submit: Run, tmp_path: Path) -> None:
    install(
        tmp_path, "slurm", SLURM | {"sbatch": 'cat >script; echo "sbatch: Job 8 to start at 2030-01-01T00:00:00" >&2'}
    )
    done = submit("4", "--when-free", "train.py")
    assert (done.returncode, done.stdout) == (0, "sbatch: Job 8 to start at 2030-01-01T00:00:00\n")
    assert (tmp_path / "sbatch.argv").read_text() == "--test-only\n"
    done = submit("4", "--when-free", "--scheduler", "lsf", "train.py")
    assert (done.returncode, "LSF does not estimate the start" in done.stderr) == (2, True)


def test_an_option_of_submit_after_the_script_has_a_note(submit: Run) -> None:
    done = submit("4", "--scheduler", "slurm", "--print", "train.py", "--print", "--wait")
    note = (
        "ddlrun: note: passed to train.py, which does not mention it: --print, --wait; options of ddlrun stand before"
    )
    assert note in done.stderr


def test_a_host_without_the_scheduler_rejects_no_job(submit: Run) -> None:
    done = submit("4", "--scheduler", "slurm", "--gpus", "0", "train.py")
    reason = "sbatch: not on PATH; start ddlrun where Slurm is, or write the script: ddlrun submit --print"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"ddlrun: error: {reason}")


def test_message_of_the_scheduler_is_shown_for_a_rejected_job(submit: Run, tmp_path: Path) -> None:
    install(
        tmp_path,
        "slurm",
        SLURM | {"sbatch": "cat >script; echo 'sbatch: error: invalid partition specified' >&2; exit 1"},
    )
    done = submit("4", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "sbatch rejected the job: sbatch: error: invalid partition specified;" in done.stderr


def test_variables_of_an_enclosing_job_stay_out(submit: Run, tmp_path: Path) -> None:
    install(
        tmp_path, "slurm", SLURM | {"sbatch": "cat >script; set | sed -n '/^SLURM\\|^PMIX\\|^DDLRUN/p' >set; echo 7"}
    )
    inherited = {"SLURM_MEM_PER_NODE": "5", "SLURM_CONF": "/c", "PMIX_RANK": "0", "DDLRUN_RUN": "r"}
    assert submit("4", "train.py", **inherited).returncode == 0
    assert (tmp_path / "set").read_text() == "SLURM_CONF='/c'\n"


def test_template_of_the_user(submit: Run, tmp_path: Path) -> None:
    (tmp_path / "my.j2").write_text("#!/bin/sh\n#MINE {{ time }} {{ job.name }}\nexec {{ job.words|sh }}\n")
    done = submit("--scheduler", "slurm", "--print", "--template", "my.j2", "4", "--time", "2h", "train.py", "$x")
    assert done.stdout.splitlines()[1] == "#MINE 2:00:00 ddlrun-train"
    assert done.stdout.endswith("--topology 4 train.py '$x'\n")


def test_containers_have_their_own_ddlrun_and_scripts(submit: Run) -> None:
    done = submit(
        "--scheduler", "slurm", "--print", "--container-command", "apptainer exec 'my image'", "4", "/in/there.py"
    )
    assert done.stdout.endswith("exec apptainer exec 'my image' ddlrun launch --topology 4 /in/there.py\n")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "TOPOLOGY (XxYxZ, such as 4x2x3) is missing"),
        (["4x2"], "SCRIPT is missing"),
        (["train.py"], "TOPOLOGY (XxYxZ, such as 4x2x3) is missing"),
        (["4x0", "train.py"], "is 0; it must be at least 1"),
        (["4", "no.py"], "script 'no.py' does not exist"),
        (["4", "-H", "a,b", "train.py"], "-H: the hosts come from the scheduler"),
        (["4", "--hostfile=f", "train.py"], "--hostfile=f: the hosts come from the scheduler"),
        (["4", "--rankfile", "f", "train.py"], "--rankfile: it names hosts"),
        (["4", "--dry-run", "train.py"], "--dry-run: submit prints its script with --print"),
        (["4", "--topology", "4", "train.py"], "--topology: the topology is submit's first argument"),
        (["4", "--spare-hosts", "a", "train.py"], "--spare-hosts: the job gets only the hosts"),
        (
            ["4", "--config-file", "c.yaml", "train.py"],
            "c.yaml, line 1: hosts: the hosts come from the scheduler",
        ),
        (["4x2", "-np", "4", "train.py"], "means 8 ranks, but -np 4 means 4"),
        (["4x2", "--nodes", "3", "train.py"], "--nodes 3 means Y = 3"),
        (["4", "--env", "=x", "train.py"], "write NAME=VALUE"),
        (["4", "--grace", "-1", "train.py"], "'-1'"),
        (["4", "--grac", "1", "train.py"], "--grac"),
        (["4", "--grace"], "--grace"),
        (["4", "--time", "1:30", "train.py"], "--time '1:30' is not a time limit"),
        (["4", "--mem", "64", "train.py"], "--mem '64' is not a size"),
        (["4", "--container-command", "'", "train.py"], '--container-command "\'": No closing quotation'),
        (["4", "--scheduler", "kubernetes", "--image", "i", "--job-name", "A", "train.py"], "--job-name 'A'"),
        (["4", "--template", "no.j2", "train.py"], "--template no.j2: No such file"),
        (["4", "--min-topology", "x", "train.py"], "--min-topology 'x'"),
    ],
)
def test_errors_are_found_before_the_queue(submit: Run, tmp_path: Path, words: list[str], part: str) -> None:
    (tmp_path / "c.yaml").write_text("hosts: [a, b]\n")
    scheduler = [] if "--scheduler" in words else ["--scheduler", "slurm"]
    done = submit("--print", *scheduler, *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ddlrun: note: set elsewhere: ")]
    assert all(line.startswith("ddlrun: error: ") for line in lines)
    assert part in done.stderr


PARAMS = [*command.params, *LAUNCH_OPTIONS]
PIECES = st.sampled_from(
    [["-np", "4"], ["-p22"], ["-p", "22"], ["-xNAME"], ["--env", "A=b c"], ["--env=A=--"], ["--output", "tag"],
     ["--output=no-tag"], ["--mpi-args", "--x"], ["-m"], ["-mp22"], ["--tcp"], ["--wait"], ["--gpus", "2"],
     ["--queue=-"]]
)  # fmt: skip


@given(st.lists(PIECES), st.lists(PIECES), st.lists(st.sampled_from(["a", "-p", "--", "-", "--wait", ""]), max_size=4))
def test_words_are_split_as_click_parses_them(before: list[list[str]], after: list[list[str]], args: list[str]) -> None:
    flat = [word for piece in (*before, ["4x2"], *after, ["train.py"], args) for word in piece]
    argv = split_argv(flat, PARAMS)
    assert (argv.topology, list(argv.rest)) == ("4x2", ["train.py", *args])
    assert [list(words) for _, words in argv.options] == [*before, *after]


def test_the_batch_process_is_ddlrun_itself(submit: Run) -> None:
    """Check that the script's shell becomes ddlrun, so that it gets the scheduler's signals."""
    script = submit("--scheduler", "slurm", "--print", "--container-command", "sh -c 'echo $$'", "1", "train.py").stdout
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == process.pid
