"""Mistakes of users on the command line, and the answer to each; former names of options; the help."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from ddlrun.cli import COMMANDS, OTHER, SECTIONS, group
from ddlrun.cli.argv import options_by_name
from ddlrun.cli.launch import command as launch
from ddlrun.cli.launch_help import USUAL_OPTIONS
from ddlrun.cli.option_names import SYNONYMS
from ddlrun.cli.option_notes import find_misplaced
from ddlrun.cli.options import Option
from ddlrun.cli.value_types import SECONDS, Choice, Kilobytes, Number, Time, WholeNumber
from ddlrun.errors import DdlrunError

DDLRUN = [sys.executable, "-m", "ddlrun"]


def answer(*words: str) -> str:
    """Return the error of a command line."""
    try:
        group.main(list(words), prog_name="ddlrun", standalone_mode=False)
    except click.ClickException as error:
        return error.format_message()
    except DdlrunError as error:
        return "\n".join(error.problems)
    raise AssertionError(words)


# Words -> a part of the answer.
MISTAKES = [
    ("lunch train.py", "no such command 'lunch' (did you mean launch?)"),
    ("run train.py", "(did you mean launch?)"),
    ("status", "(did you mean ps?)"),
    ("train.py", "(did you mean ddlrun launch train.py?)"),
    ("-H a,b python train.py", "no such option -H; options come after a command, as in ddlrun launch -H"),
    ("help lunch", "(did you mean launch?)"),
    ("show placment", "topology, schema (did you mean placement?)"),
    ("launch --topolgy 2x1x1 train.py", "no such option --topolgy (did you mean --topology?)"),
    ("launch -topology 2x1x1 train.py", "no such option -topology (did you mean --topology?)"),
    ("launch -framework=torch train.py", "no such option -framework (did you mean --framework?)"),
    ("launch --nproc 2 train.py", "(did you mean -np?)"),
    ("launch -Z train.py", "no such option -Z"),
    ("launch --debug train.py", "--debug: use --verbose"),
    ("launch -c 2 train.py", "-c: use -np N for the number of ranks (mpirun), or --cores-per-rank N"),
    ("launch -np two train.py", "'two' is not a whole number of at least 1"),
    ("launch -p 70000 train.py", "'70000' is not a whole number from 1 to 65535"),
    ("launch --lms-frac 70 train.py", "'70' is not a number from 0 to 1"),
    ("launch --lms 1x train.py", "'1x' is not a whole number of at least 0"),
    ("launch --timeout 5x train.py", "'5x' is not a time, such as 90, 90s or 5m"),
    ("launch --start-timeout 0 train.py", "'0' is not a time of at least 1s"),
    ("launch --bind socket train.py", "'socket' is none of core, numa, package, none (did you mean package?)"),
    ("launch --scheduler slrum train.py", "(did you mean slurm?)"),
    ("launch --framework pytorch true", "--framework 'pytorch' (did you mean torch?): there are auto, torch"),
    ("launch --gpu-order 0,a true", "--gpu-order '0,a' is not a list of different numbers"),
    ("show placement --machine dgx1 --gpu-order 77", "no GPU 77 of --gpu-order; its GPUs are 0, 1, 2, 3, 4"),
    ("gen-rankfile 1 a --packages 2 --cores-per-package 2 --gpu-order 1", "no GPU 1 of --gpu-order; it has none"),
    ("show topology --machine dgx1 --nodes 2", "--nodes 2 makes 2 hosts or a multiple, but 1 is there"),
    ("launch 4x2 hostname", "there is no program '4x2'; a topology is an option: --topology 4x2 SCRIPT"),
    ("launch n1,n2 hostname", "hosts are an option: -H n1,n2 SCRIPT"),
    ("launch @hosts hostname", "hosts are an option: -H @hosts SCRIPT"),
    ("launch --topology= train.py", "the value is empty; give one, or leave the option out"),
    ("launch .", "'.' is a folder; name the script or program in it"),
    ("launch trian.py", "script 'trian.py' is not there"),
    ("launch -m pkg/train.py", "-m takes the name of a module, such as pkg.train; leave -m out for a file"),
    ("launch --bind", "Option '--bind' requires an argument"),
    ("launch --only-checks tpc true", "unknown check 'tpc' (did you mean tcp?); the checks are"),
    ("launch --accelerators gpus true", "'gpus' is neither a positive number nor one of gpu, package, numa, core (did"),
    ("launch --network 10.0 true", "--network '10.0' is no subnet"),
    ("gen-rankfile a,b 4x2", "the topology comes first: ddlrun gen-rankfile 4x2 a,b"),
    ("probe a b c", "hosts are one word: a,b,c instead of a b c"),
    ("check a -H b", "hosts are given twice: 'a' and -H b; leave one of them out"),
    ("gen-rankfile 1 --packages 2", "--packages and --cores-per-package go together"),
    ("plan --topology 4x4", "--links is missing"),
]


@pytest.mark.parametrize(("words", "part"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_the_answer_to_a_mistake(words: str, part: str) -> None:
    assert part in answer(*words.split())


def test_a_quoted_command_line_is_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert "leave the quotes out, as in ddlrun launch python train.py" in answer("launch", "python train.py")
    assert answer("launch", "trian.py").endswith("(did you mean train.py?)")
    assert answer("launch", "train").endswith("there is no program 'train'; did you mean train.py?")
    (tmp_path / "no-such-program").touch()
    assert answer("launch", "no-such-program").endswith("the file in this folder is ./no-such-program")


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
    group.main([*words, "--overload"], standalone_mode=False)
    assert "no effect" not in capsys.readouterr().err
    group.main([*words, "--cores-per-rank", "2", "--rank-order", "ddl"], standalone_mode=False)
    note = "no effect with --rankfile: the file names the cores"
    assert capsys.readouterr().err.startswith(f"ddlrun: note: --rank-order, --cores-per-rank: {note}\n")


def test_hosts_that_are_given_twice_give_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("show hosts --machine dgx1 -H a --host=b", "gen-rankfile -H a 4 -H b"):
        group.main(words.split(), standalone_mode=False)
        out, err = capsys.readouterr()
        assert "b  rack" in out or "rank 0=b " in out
        assert err.splitlines()[0].endswith("b counts; write -H A,B")


def test_a_byte_order_mark_is_no_part_of_a_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfn1\r\nn2\r\n")
    group.main(["show", "hosts", "--machine", "dgx1", "--hostfile", f"{tmp_path}/hosts"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("n1  rack 0")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("plan --topology 4x4 --network 100gbe", "plan --topology 4x4 --links 100gbe"),
        ("plan --hosts 4 --gpus-per-host 4 --links 100gbe", "plan --host-count 4 --gpus-per-host 4 --links 100gbe"),
        ("plan --hosts=4 --gpus-per-host 4 --links 100gbe", "plan --host-count=4 --gpus-per-host 4 --links 100gbe"),
        ("gen-rankfile 4x2 a,b --sockets 2 --cores=8", "gen-rankfile 4x2 a,b --packages 2 --cores-per-package=8"),
    ],
)
def test_former_names_of_options(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    group.main(new.split(), standalone_mode=False)
    expected = capsys.readouterr()
    group.main(old.split(), standalone_mode=False)
    found = capsys.readouterr()
    assert (found.out, expected.err) == (expected.out, "")
    assert all(" is now --" in line and "release 0.2.0" in line for line in found.err.splitlines())
    assert found.err


def test_hosts_as_argument_and_as_option(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("gen-rankfile 4x2 a,b", "gen-rankfile 4x2 -H a,b", "gen-rankfile --hosts=a,b 4x2")
    texts = []
    for line in lines:
        group.main(line.split(), standalone_mode=False)
        texts.append(capsys.readouterr().out)
    assert texts == texts[:1] * len(texts)
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if "hosts" in {param.name for param in command.params if isinstance(param, click.Argument)}:
            assert {"-H", "--host", "--hosts", "--hostfile"} <= options_by_name(command.params).keys()


def test_no_two_commands_have_an_option_of_the_same_name_with_other_values() -> None:
    metavars: dict[str, set[str | None]] = {}
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        for option, param in options_by_name(command.params).items():
            metavars.setdefault(option, set()).add(param.metavar)
    for option in ("--host", "--hosts", "--hostfile", "--network", "--timeout", "--start-timeout",
                   "--only-checks", "--topology", "--racks"):  # fmt: skip
        assert len(metavars[option]) == 1, option


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (SECONDS, "90", 90.0),
        (SECONDS, "90s", 90.0),
        (SECONDS, "1.5m", 90.0),
        (SECONDS, "2h", 7200.0),
        (SECONDS, ".5", 0.5),
        (Time(unit="d"), "7", 604800.0),
        (Time(unit="d"), "12h", 43200.0),
        (Kilobytes(min=0), "500", 500),
        (Kilobytes(min=0), "1MiB", 1024),
        (Kilobytes(min=0), "1M", 977),
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
    assert {*SYNONYMS.values()} <= options_by_name(launch.params).keys()


def help_of(*words: str, columns: int = 80) -> list[str]:
    done = subprocess.run(
        [*DDLRUN, *words], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin", "COLUMNS": f"{columns}"}
    )
    return done.stdout.splitlines()


def test_the_help_of_launch_fits_on_a_screen() -> None:
    lines = help_of("launch", "--help")
    assert len(lines) <= 49
    assert max(map(len, lines)) <= 80
    known = options_by_name(launch.params)
    labels = [label for rows in USUAL_OPTIONS.values() for label, _ in rows]
    names = [word for label in labels for word in label.replace(",", " ").split() if word.startswith("-")]
    assert [name for name in names if name not in known] == []
    everything = "\n".join(help_of("help", "launch", "--help-all"))
    visible = [param for param in known.values() if isinstance(param, Option) and not param.hidden]
    assert [param.opts[-1] for param in visible if param.opts[-1] not in everything] == []


def test_commands_have_headings_and_whole_summaries() -> None:
    narrow, wide = help_of(), help_of(columns=200)
    assert [f"{heading}:" for heading in SECTIONS if f"{heading}:" not in wide] == []
    assert f"{OTHER}:" not in wide
    assert not [line for line in narrow[1:] if line.endswith("...")]
    assert max(map(len, narrow)) <= 80 < max(map(len, wide)) <= 120
    assert "x>=" not in "".join(help_of("launch", "--help-all"))
