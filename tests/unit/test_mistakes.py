"""Mistakes of users on the command line, and the answer to each; the help."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from ddlrun.application.options.program import read_program
from ddlrun.cli import MOST_COLUMNS, SECTIONS, group, run_command
from ddlrun.cli.launch import command as launch
from ddlrun.cli.network import SECTIONS as NETWORK_SECTIONS
from ddlrun.cli.options import Option
from ddlrun.cli.options.argv import options_by_name
from ddlrun.cli.options.names import SYNONYMS
from ddlrun.cli.options.notes import find_misplaced
from ddlrun.cli.options.types import SECONDS, Choice, Number, WholeNumber
from ddlrun.cli.options.usual import USUAL_OPTIONS
from ddlrun.errors import DdlrunError, spell_options
from docs.reference.contexts import command_contexts
from docs.reference.tables import read_table

DDLRUN = [sys.executable, "-m", "ddlrun"]
COMMANDS = [context.command for context in command_contexts().values()]


def answer(*words: str) -> str:
    """Return the error of a command line."""
    try:
        group.main(list(words), prog_name="ddlrun", standalone_mode=False)
    except click.ClickException as error:
        return spell_options(error.format_message())
    except DdlrunError as error:
        return str(error)
    raise AssertionError(words)


TABLES = Path(__file__).with_name("refused_commands.md")
REFUSED = [row for heading in re.findall(r"(?m)^## (.*)", TABLES.read_text()) for row in read_table(TABLES, heading)]
# The files of the current folder.
FILES = {
    "train.py": "import sys\n",
    "hosts": "n1\nn2\n",
    "bad-hosts": "n1\nn2 slots=x\n",
    "twice.yaml": "topology: 2x1x1\ntopology: 1x1x1\n",
    "keys.yaml": "bind: numa\n",
    "list.yaml": "env: [A=1]\n",
    "values.yaml": "placement:\n  bind: socket\n",
    "tab.yaml": "placement:\n\tbind: numa\n",
    "ranks": "rank 0=localhost slot=0:0\nrank 0=localhost slot=0:1\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder with the files as the current one, with an empty home directory beside it."""
    folder = tmp_path / "train"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # launch forgets the variables of options
    return folder


@pytest.mark.parametrize(("line", "code", "answer"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_a_refused_command(
    line: str,
    code: str,
    answer: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = shlex.split(line.strip("`"))
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert run_command(words[1:]) == int(code)
    kind = "note" if code == "0" else "error"
    printed = capsys.readouterr().err.replace(str(project), "/home/ada/train")
    assert printed == f"ddlrun: {kind}: {answer.strip('`')}\n"


# Words -> a part of the answer, for mistakes that are not in the tables.
MISTAKES = [
    ("launch -framework=torch train.py", "no such option -framework (did you mean --framework?)"),
    ("launch -Z train.py", "no such option -Z"),
    ("launch -p 70000 train.py", "'70000' is not a whole number from 1 to 65535"),
    ("launch --lms-frac 70 train.py", "'70' is not a number from 0 to 1"),
    ("launch --lms 1x train.py", "'1x' is not a size, such as 500 (KB) or 1MB"),
    ("launch --start-timeout 0 train.py", "'0' is not a time of at least 1s"),
    ("gen-rankfile 1 a --packages 2 --cores-per-package 2 --gpu-order 1", "no GPU 1 of --gpu-order; it has none"),
    ("show topology --machine dgx1 --nodes 2", "--nodes 2 needs 2 hosts or a multiple, but the job has 1"),
    (
        "launch -np 2 CUDA_VISIBLE_DEVICES=0,1 python train.py",
        "the value of an option: --env CUDA_VISIBLE_DEVICES=0,1 PROGRAM",
    ),
    ("launch missing.ipynb", "convert the notebook (jupyter nbconvert --to script missing.ipynb"),
    ("launch @hosts hostname", "hosts are an option: -H @hosts SCRIPT"),
    ("launch --topology= train.py", "the value is empty; give one, or leave the option out"),
    ("launch -np 2 -", "there is no program '-'; ranks read no script from standard input; name a file"),
    ("launch “train.py”", "its quotes are not those of a shell"),
    ("launch ~/train.py", "a shell replaces ~ by a home folder, but not within quotes: leave them out"),
    ("network plan 4x4 --links 100gbe", "4x4 is a topology, not a host; write --topology 4x4"),
    ("network bench 2x1x1", "2x1x1 is a topology, not a host; write --topology 2x1x1"),
    ("ps", "no such command 'ps' (did you mean runs --processes?)"),
    ("dashboard --port 8080", "no such command 'dashboard' (did you mean top --web?)"),
    ("metrics --listen 9400", "no such command 'metrics' (did you mean top --listen?)"),
    ("racks n1,n2", "no such command 'racks' (did you mean network racks?)"),
    ("bench", "no such command 'bench' (did you mean network bench?)"),
    ("tune", "no such command 'tune' (did you mean network tune?)"),
    ("plan", "no such command 'plan' (did you mean network plan?)"),
    ("ls", "no such command 'ls' (did you mean runs?)"),
    ("tail", "no such command 'tail' (did you mean logs -f?)"),
    ("stop", "no such command 'stop' (did you mean kill?)"),
    ("network links", "no such command 'links' (did you mean bench?)"),
    ("network --json", "no such option --json; options come after a command, as in ddlrun network racks --json"),
    ("top --web --once", "--web and --once exclude each other"),
    ("top --web --listen 0", "--web and --listen exclude each other; start ddlrun top once for each"),
    ("launch --dashboard 0 train.py", "no such option --dashboard (did you mean --web?)"),
    ("top --to otlp", "no such option --to (did you mean --otlp?)"),
    ("top --web 70000", "'70000' is not a whole number from 0 to 65535"),
    ("launch -H -np 2 train.py", "-H: its value is missing before -np; is a variable of the command line unset?"),
    ("launch --master-addr --nnodes 2 train.py", "--master-addr: its value is missing before --nnodes"),
    ("launch --output-filename --verbose train.py", "--output-filename: its value is missing before --verbose"),
    ("launch --mca btl -np 2 train.py", "--mca: its value is missing before -np"),
    ("launch --mpi-args --verbose no.py", "script 'no.py' does not exist"),
    ("submit -J x 2 train.py", "-J: use ddlrun submit --job-name NAME"),
    ("launch .", "'.' is a folder; name the script or program in it"),
    ("launch -m pkg/train.py", "-m takes the name of a module, such as pkg.train; leave -m out for a file"),
    ("launch -np 1 true : -np two true", "': -np two true': -np takes a number of ranks; write -np 2 A : -np 3 B"),
    ("launch -np 1 true : -np 1", "': -np 1': the program is missing"),
    ("launch -np 1 true : -n 1 -x A true", "-x: options but -np hold for all programs; write them before the first"),
    ("launch : true", "the program before the colon is missing; write -np 2 A : -np 3 B"),
    ("launch true : -n 1 true", "the first of several programs has no number of ranks; write -np 2 A : -np 3 B"),
    ("launch -np 1 true : -n 1 x.py", "script 'x.py' does not exist"),
    ("launch --model.size=3 x.py", "no such option --model.size; options of the script stand after its name"),
    ("launch --steps 2 train.py", "no such option --steps; options of the script stand after its name"),
    ("launch --world-size 2 train.py", "no such option --world-size (did you mean -np?)"),
    ("launch --detach train.py", "--detach: use nohup ddlrun launch ... &; ddlrun logs -f prints its output"),
    ("launch --pdb train.py", "--pdb: use --debug-rank N for a rank under a debugger"),
    ("logs -r 1", "no such option -r (did you mean --rank?)"),
    ("runs -a", "no such option -a (did you mean --all?)"),
    ("kill -9 last", "no such option -9"),
    ("launch --processes 2 train.py", "no such option --processes (did you mean -np?)"),
    ("launch --omp-num-threads 1 train.py", "--omp-num-threads: use --env OMP_NUM_THREADS=N"),
    ("launch --gpu 0 train.py", "GPUs of each host with CUDA_VISIBLE_DEVICES=0,1 before ddlrun"),
    ("logs --tail 5", "no such option --tail (did you mean --lines?)"),
    ("retry", "no such command 'retry' (did you mean rerun?)"),
    ("rm last", "no such command 'rm' (did you mean clean?)"),
    ("profile train.py", "no such command 'profile' (did you mean launch --wrap?)"),
    ("gpus", "no such command 'gpus' (did you mean probe?)"),
    ("runs h1", "'h1': unexpected argument; write ddlrun runs [OPTIONS]"),
    ("logs a b", "'b': unexpected argument; write ddlrun logs [OPTIONS] [RUN]"),
    ("probe a b c", "hosts are one word: a,b,c instead of a b c"),
    ("network plan", "--links is missing"),
    ("network plan --topology 4x4", "--links is missing"),
    ("launch --nproc_per_node two train.py", "core, gpu-or-core (from --nproc_per_node)"),
    ("launch -ppn 0 train.py", "(from -ppn)"),
    ("launch --fsdp_sharding_strategy FULL_SHARD train.py", "--fsdp_sharding_strategy: accelerate launch alone has it"),
    ("launch --zero3_init_flag=true train.py", "--zero3_init_flag: accelerate launch alone has it"),
    ("launch --venv_script v train.py", "--venv_script: activate the environment before ddlrun"),
    ("launch --local_rank 0 train.py", "no such option --local_rank; options of the script stand after its name"),
    ("launch --input FILE train.py", "--input: redirect standard input: ddlrun launch ... <FILE"),
    ("launch --nrs 2 -a 1 train.py", "ddlrun has no resource sets; use --ranks-per-host N for ranks per host"),
]


@pytest.mark.parametrize(("words", "part"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_the_answer_to_a_mistake(words: str, part: str) -> None:
    assert part in answer(*words.split())


@pytest.mark.parametrize("command", ["network plan", "gen-rankfile"])
def test_no_option_is_suggested_for_itself(command: str) -> None:
    assert answer(*command.split(), "-np", "4") == "no such option -np"


def test_a_quoted_command_line_is_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert "leave the quotes out, as in ddlrun launch python train.py" in answer("launch", "python train.py")
    assert answer("launch", "trian.py").endswith("(did you mean train.py?)")
    (tmp_path / "trian.py").symlink_to("gone.py")
    assert answer("launch", "trian.py").endswith("(did you mean train.py?)")
    assert answer("launch", "train").endswith("there is no program 'train'; did you mean train.py?")
    (tmp_path / "no-such-program").touch(0o755)
    assert answer("launch", "no-such-program").endswith("the file in this folder is ./no-such-program")


# File -> its text, and whether it is executable.
PROGRAMS = {
    "run.sh": ("#!/bin/sh\necho\n", False),
    "dos.sh": ("#!/bin/sh\r\necho\r\n", True),
    "notes.ipynb": ("{}", False),
    "train.py": ("", False),
}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (
            "launch ./run.sh",
            "'./run.sh' is not executable; chmod +x ./run.sh, or write its interpreter before it: sh ./run.sh",
        ),
        (
            "launch run.sh",
            "there is no program 'run.sh'; chmod +x ./run.sh, or write its interpreter before it: sh ./run.sh",
        ),
        (
            "launch ./dos.sh",
            "has lines that end in CR LF, so that it cannot start; convert it: sed -i 's/\\r$//' ./dos.sh",
        ),
        ("launch dos.sh", "the file in this folder is ./dos.sh"),
        ("launch ./notes.ipynb", "(jupyter nbconvert --to script ./notes.ipynb), or call ddlrun.run in it"),
        ("launch notes.ipynb", "jupyter nbconvert --to script ./notes.ipynb"),
        ("launch folder", "'folder' is a folder; name the script or program in it"),
        ("launch ./folder", "'./folder' is a folder"),
        ("launch no.pyc", "script 'no.pyc' does not exist"),
        ("launch train.py:2", "script 'train.py:2' does not exist; write -np 2 train.py for 2 ranks"),
        ("launch -H h1 h2 train.py", "there is no program 'h2'; if it is a host, hosts are one word: -H HOST,h2"),
        ("launch torchrn train.py", "there is no program 'torchrn' (did you mean torchrun?)"),
        ("launch \N{EM DASH}np 2 train.py", "its dash is not an ASCII hyphen; write -np"),
        ("launch --ship cod train.py", "--ship: cod does not exist (did you mean code?)"),
        ("launch --rankfile train.py train.py", "rank file train.py: no line places a rank; ddlrun lint explains"),
        ("check --script no.py", "--script no.py: no such file here"),
        ("check --script folder", "--script folder: no such file here"),
    ],
)
def test_files_that_cannot_be_launched(words: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, (text, executable) in PROGRAMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755 if executable else 0o644)
    assert part in answer(*words.split())


def test_bytecode_and_folders_with_a_main_module_run_under_this_python(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").touch()
    (tmp_path / "app.pyc").touch()
    (tmp_path / "dos.py").write_text("#!/usr/bin/env python3\r\nprint()\r\n")
    for name in ("app", "app.pyc", "dos.py"):
        words = (sys.executable, f"{tmp_path}/{name}", "1")
        assert read_program(words[1], ("1",), is_module=False) == words


def test_help_before_a_broken_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["launch", "--help", "-np"], ["show", "-h", "--x"], ["check", "--help", "--nonsense"]):
        group.main(words, prog_name="ddlrun", standalone_mode=False)
        assert capsys.readouterr().out.startswith(f"Usage: ddlrun {words[0]} ")


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("DDLRUN_NP", " (did you mean DDLRUN_NUM_PROC?)"),
        ("DDLRUN_NPROC_PER_NODE", " (did you mean DDLRUN_RANKS_PER_HOST?)"),
        ("DDLRUN_NTASKS", " (did you mean DDLRUN_NUM_PROC?)"),
        ("DDLRUN_BND", " (did you mean DDLRUN_BIND?)"),
        ("DDLRUN_QQQQQQQQ", ""),
        ("DDLRUN_DDL_TUNIG", " (did you mean DDLRUN_DDL_TUNING?)"),
        ("DDLRUN_LMSFRAC", " (did you mean DDLRUN_LMS_FRAC?)"),
        ("DDLRUN_QUIET", " (did you mean DDLRUN_VERBOSE?)"),
        ("DDLRUN_BIND", None),
        ("DDLRUN_DDL_TUNING", None),
        ("DDLRUN_FAN_OUT", None),
        ("DDLRUN_PARTITION", None),  # that of an option of another command
    ],
)
def test_the_note_on_a_variable_of_no_option(
    variable: str, hint: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "none")
    group.main(["show", "hosts", "--machine", "dgx1"], prog_name="ddlrun", standalone_mode=False)
    note = f"ddlrun: note: {variable} has no effect: ddlrun has no such variable{hint}\n"
    assert (note in capsys.readouterr().err) == (hint is not None)


def test_the_note_on_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    monkeypatch.setenv("PET_NAME", "cat")
    group.main(["show", "hosts", "--machine", "dgx1"], prog_name="ddlrun", standalone_mode=False)
    assert capsys.readouterr().err.startswith("ddlrun: note: PET_NPROC_PER_NODE: no effect: give torchrun's options")


def test_an_empty_script_is_refused() -> None:
    assert answer("launch", "", "x") == "the script is an empty word; is a variable of the command line unset?"


def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*DDLRUN, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    problem = "ddlrun: error: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, problem)


@pytest.mark.parametrize(
    ("args", "text", "misplaced"),
    [
        (["--topology", "2x1x1"], "import sys", ["--topology"]),
        (["--dry-run"], "import sys", ["--dry-run"]),
        (["--nproc_per_node=2", "-np", "4"], "", ["--nproc_per_node", "-np"]),
        (["--topology", "2x1x1"], "parser.add_argument('--topology')", []),
        (["--num-nodes=2"], "FLAGS.num_nodes", []),
        (["--lr", "1", "--verbose", "-n", "topology"], "", []),
        (["--topology", "2x1x1"], None, []),
    ],
)
def test_options_after_the_script(args: Sequence[str], text: str | None, misplaced: list[str]) -> None:
    assert find_misplaced(args, text, launch.params) == misplaced


def test_the_note_on_an_option_after_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    argv = [*DDLRUN, "launch", "--dry-run", "train.py", "--topology", "2x1x1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == (
        "ddlrun: note: passed to train.py, which does not mention it: --topology; options of ddlrun stand before the "
        "script\n"
    )


def test_options_without_effect_beside_a_rank_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ranks").write_text("rank 0=a slot=0:0\n")
    words = ["show", "placement", "--machine", "dgx1", "--rankfile", f"{tmp_path}/ranks"]
    group.main(words, standalone_mode=False)
    assert "no effect" not in capsys.readouterr().err
    group.main([*words, "--cores-per-rank", "2", "--rank-order", "ddl"], standalone_mode=False)
    note = "no effect with --rankfile: the file names the cores"
    assert capsys.readouterr().err.startswith(f"ddlrun: note: --rank-order, --cores-per-rank: {note}\n")


def test_hosts_that_are_given_twice_give_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("show hosts --machine dgx1 -H a --host=b", "gen-rankfile -H a 4 -H b"):
        group.main(words.split(), standalone_mode=False)
        out, err = capsys.readouterr()
        assert "b  rack" in out or "rank 0=b " in out
        assert re.fullmatch(
            r"ddlrun: note: -H a, (.*b): only the last one counts, \1; write -H A,B", err.splitlines()[0]
        )


def test_a_byte_order_mark_is_no_part_of_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfn1\r\nn2\r\n")
    group.main(["show", "hosts", "--machine", "dgx1", "--hostfile", f"{tmp_path}/hosts"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("n1  rack 0")


def test_hosts_as_argument_and_as_option(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("gen-rankfile 4x2 a,b", "gen-rankfile 4x2 -H a,b", "gen-rankfile --hosts=a,b 4x2")
    texts = []
    for line in lines:
        group.main(line.split(), standalone_mode=False)
        texts.append(capsys.readouterr().out)
    assert texts == texts[:1] * len(texts)
    for command in COMMANDS:
        if "hosts" in {param.name for param in command.params if isinstance(param, click.Argument)}:
            assert {"-H", "--host", "--hosts", "--hostfile"} <= options_by_name(command.params).keys()


def test_no_two_commands_have_an_option_of_the_same_name_with_other_values() -> None:
    metavars: dict[str, set[str | None]] = {}
    for command in COMMANDS:
        for option, param in options_by_name(command.params).items():
            metavars.setdefault(option, set()).add(param.metavar)
    for option in ("--host", "--hosts", "--hostfile", "--network", "--timeout", "--start-timeout",
                   "--checks", "--topology", "--racks"):  # fmt: skip
        assert len(metavars[option]) == 1, option


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SECONDS, "90", 90.0),
        (SECONDS, "90s", 90.0),
        (SECONDS, "1.5m", 90.0),
        (SECONDS, "2h", 7200.0),
        (SECONDS, ".5", 0.5),
        (Number(0, 1), "0.5", 0.5),
        (WholeNumber(1, 4), "4", 4),
        (Choice(["core", "none"]), "none", "none"),
    ],
)
def test_values(kind: click.ParamType, text: str, value: object) -> None:  # type: ignore[type-arg]  # generic since click 8.4
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e10", "5 weeks", "", "0x10"])
def test_no_times(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SECONDS.convert(text, None, None)


def test_synonyms_are_options() -> None:
    known = {option for command in COMMANDS for option in options_by_name(command.params)}
    assert {*SYNONYMS.values()} <= known


def help_of(*words: str, columns: int = 80) -> list[str]:
    done = subprocess.run(
        [*DDLRUN, *words], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin", "COLUMNS": f"{columns}"}
    )
    return done.stdout.splitlines()


def test_the_help_of_launch_fits_on_a_screen() -> None:
    lines = help_of("launch", "--help")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    known = options_by_name(launch.params)
    labels = [label for rows in USUAL_OPTIONS.values() for label, _ in rows]
    names = [word for label in labels for word in label.replace(",", " ").split() if word.startswith("-")]
    assert [name for name in names if name not in known] == []
    everything = "\n".join(help_of("help", "launch", "--help-all"))
    assert len(re.findall(r"(?m)^  +-", everything)) <= 80
    visible = [param for param in known.values() if isinstance(param, Option) and not param.hidden]
    assert [param.opts[-1] for param in visible if param.opts[-1] not in everything] == []


@pytest.mark.parametrize(("name", "sections"), [("", SECTIONS), ("network", NETWORK_SECTIONS)])
def test_summaries_are_those_of_the_commands(name: str, sections: dict[str, dict[str, str]]) -> None:
    for summaries in sections.values():
        for command, text in summaries.items():
            shown = command_contexts()[f"{name} {command}".lstrip()].command.get_short_help_str(MOST_COLUMNS)
            assert shown == text


def test_the_program_has_few_commands_and_those_of_every_day_come_first() -> None:
    commands = [line.split()[0] for line in help_of() if re.match(r"  (?!ddlrun)[a-z]", line)]
    assert commands == group.list_commands(click.Context(group))
    assert len(commands) <= 17
    assert commands[:5] == ["launch", "logs", "top", "doctor", "runs"]


@pytest.mark.parametrize("words", [["network"], ["network", "--help"], ["help", "network"]])
def test_a_group_without_a_command_explains_its_commands(words: list[str]) -> None:
    lines = help_of(*words)
    assert lines == help_of("network", "-h")
    assert [line.split()[0] for line in lines if re.match(r"  [a-z]+  ", line)] == ["racks", "bench", "tune", "plan"]


def test_commands_have_headings_and_whole_summaries() -> None:
    narrow, wide = help_of(), help_of(columns=200)
    assert [f"{heading}:" for heading in SECTIONS if f"{heading}:" not in wide] == []
    assert not [line for line in narrow[1:] if line.endswith("...")]
    assert max(map(len, narrow)) <= 80 < max(map(len, help_of("top", "--help", columns=200))) <= 120
    assert "x>=" not in "".join(help_of("launch", "--help-all"))
