"""Chosen ranks under a debugger, behind wrappers and with standard input: real launches on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import launch_line
from tests.support.launches import run
from tests.support.terminal import shell_at_terminal

# Rank 0 waits for rank 1, which MPI_Finalize at the exit of rank 1 would also do.
SCRIPT = """from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
breakpoint()
if rank == 1:
    raise ValueError("no")
MPI.COMM_WORLD.Barrier()
"""
# Prints the rank, whether its output is a terminal, and the number of lines of its input.
READER = "echo $OMPI_COMM_WORLD_RANK $(test -t 1 && echo terminal) $(wc -l)"


@pytest.fixture
def line(mpirun: str, tmp_path: Path) -> list[str]:
    return launch_line(mpirun, tmp_path, "--quiet", "-np", "2")


def test_a_rank_is_debugged(line: list[str], tmp_path: Path) -> None:
    """The commands come from a pipe; the debugger has a terminal nevertheless."""
    (tmp_path / "work.py").write_text(SCRIPT)
    commands = "c\np rank + 41\nc\np 2 * 333\nq\n"
    argv = [*line, "--debug-rank", "1", str(tmp_path / "work.py")]
    done = subprocess.run(argv, input=commands, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    lines = [text.strip() for text in done.stdout.splitlines()]
    assert [number for number in ("42", "666") if number in lines] == ["42", "666"]
    assert (done.stdout.count("(Pdb) "), done.stdout.count("ValueError: no")) == (5, 1)
    assert "failed: rank 1" in done.stderr


@pytest.mark.openmpi(5)
def test_a_debugger_ends_with_its_input(line: list[str], tmp_path: Path) -> None:
    """Without a terminal, as in a batch job: the end of the input arrives before the first prompt."""
    (tmp_path / "work.py").write_text(SCRIPT)
    argv = [*line, "--debug-rank", "1", str(tmp_path / "work.py")]
    done = subprocess.run(argv, input="", capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.count("(Pdb) ")) == (1, 1), done.stderr


@pytest.mark.openmpi(5)
def test_wrappers_stand_before_the_program(line: list[str], tmp_path: Path) -> None:
    record = """sh -c 'echo $A >"$1"; shift; exec "$@"' - {run}/wrapped.{rank}"""
    done = run(line, "--wrap", "1:env A={rank}{local_rank}", "--wrap", f"all:{record}", "sh", "-c", "echo -$A-")
    host = os.uname().nodename
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, [f"[0@{host}] --", f"[1@{host}] -11-"])
    files = {path.name: path.read_text() for path in (tmp_path / "run").glob("wrapped.*")}
    assert files == {"wrapped.0": "\n", "wrapped.1": "11\n"}


@pytest.mark.parametrize("source", ["file", "pipe"])
def test_standard_input_reaches_a_rank(line: list[str], tmp_path: Path, source: str) -> None:
    count = 200_000
    text = "".join(f"{number}\n" for number in range(count))
    (tmp_path / "input").write_text(text)
    argv = [*line, "--output", "no-tag", "--stdin-rank", "1", "sh", "-c", READER]
    if source == "file":
        with (tmp_path / "input").open() as file:
            done = subprocess.run(argv, stdin=file, capture_output=True, text=True, check=False, timeout=300)
    else:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["0 0", f"1 {count}"]), done.stderr


@pytest.mark.openmpi(5)
def test_ranks_that_do_not_exist(line: list[str]) -> None:
    for words in (("--debug-rank", "2"), ("--stdin-rank", "2"), ("--wrap", "0,2:env")):
        done = run(line, *words, "true")
        assert done.returncode == 2
        assert f"{words[0]}: there is no rank 2; the job has 2 ranks, numbered from 0" in done.stderr


@pytest.mark.openmpi(5)
def test_interactive_programs_at_a_terminal(mpirun: str, tmp_path: Path) -> None:
    """Python alone is interactive, Ctrl-C is its own, its terminal has the user's size; Ctrl-\\ ends the job."""
    environ = {**os.environ, "PS1": "$ ", "TERM": "xterm", "COLUMNS": "300"}
    alone = " ".join(launch_line(mpirun, tmp_path / "1", "--quiet", "-np", "1", sys.executable))
    shell = " ".join(launch_line(mpirun, tmp_path / "2", "--quiet", "-np", "2", "--pty"))
    with shell_at_terminal(["bash", "--norc"], environ, tmp_path) as terminal:
        terminal.wait_for(r"\$ $")
        terminal.send(f"stty rows 33 cols 99; {alone}\n")
        terminal.wait_for(r">>> $")
        terminal.send("import os; os.get_terminal_size()\n")
        terminal.wait_for(r"columns=99, lines=33[\s\S]*>>> $")
        terminal.send(
            "import signal, time; signal.signal(signal.SIGWINCH, lambda *_: print('now', os.get_terminal_size()))\n"
        )
        terminal.wait_for(r">>> $")
        # At the prompt, Python handles a signal after the next key stroke if it comes just before the wait for one.
        terminal.send("while True: print('spinning'); time.sleep(0.1)\n\n")
        terminal.wait_for(r"spinning\s+spinning")
        terminal.resize(40, 111)
        terminal.wait_for(r"now os.terminal_size\(columns=111, lines=40\)")
        terminal.send("\x03")
        terminal.wait_for(r"KeyboardInterrupt\s+>>> $")
        terminal.send("exit(0)\n")
        terminal.wait_for(r"\$ $")
        terminal.send(f"{shell} --stdin-rank 1 cat\n")
        terminal.wait_for(r"cat\s+")
        terminal.send("hello\n")
        terminal.wait_for(r"hello\s+hello")
        terminal.send("\x1c")
        terminal.wait_for(r"ended by SIGINT[\s\S]*exit code 130[\s\S]*\$ $")
        terminal.send("stty -a\n")
        terminal.wait_for(r"[^-]isig icanon[\s\S]* echo ")
