"""A stand-in for nvidia-smi: it prints the lines of a file over and over, in the format of --query-gpu."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

BUSY = "{number}, GPU-{number}f, 0000000{number}:65:00.0, 97, 61234, 81559, 402.13, 700.00, 61, 1755, 1980, {limits}"
POWER_CAP, HOT, HOT_AND_BRAKED = "0x0000000000000004", "0x0000000000000048", "0x00000000000000C8"
PROGRAM = """#!{python}
import os, signal, sys, time
from pathlib import Path
folder = Path(__file__).parent
with open(folder / "starts", "a") as file:
    file.write(f"{{os.getpid()}} {{os.getpriority(os.PRIO_PROCESS, 0)}}\\n")
options = dict(word.split("=") for word in sys.argv[1:])
fields = options["--query-gpu"].split(",")
for field in {unknown!r}:
    if field in fields:
        print(f'Field "{{field}}" is not a valid field to query.\\n')
        sys.exit(2)
assert options["--format"] == "csv,noheader,nounits"
while True:
    text = (folder / "lines").read_text()
    print(text, end="", flush=True)
    if not text:
        signal.pause()
    if "failed" in text:
        sys.exit(9)
    time.sleep(int(options["--loop-ms"]) / 1000)
"""


class StandIn(NamedTuple):
    """An installed stand-in."""

    folder: Path

    @property
    def path(self) -> str:
        """The value of PATH with which it is found."""
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"

    def show(self, *lines: str) -> None:
        """Print other lines from now on; without any, hang; after one with the word failed, end."""
        new = self.folder / "new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.folder / "lines")

    def starts(self) -> list[tuple[int, int]]:
        """Return the process id and the niceness of each start."""
        file = self.folder / "starts"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(pid), int(niceness)) for pid, niceness in map(str.split, lines)]


def install(folder: Path, *lines: str, unknown: tuple[str, ...] = ()) -> StandIn:
    """Install a stand-in.

    Args:
        folder: A new folder.
        lines: The lines that it prints.
        unknown: Fields that this version does not know.
    """
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(PROGRAM.format(python=sys.executable, unknown=unknown))
    program.chmod(0o755)
    stand_in = StandIn(folder)
    stand_in.show(*lines)
    return stand_in


def busy(number: int, limits: str = POWER_CAP) -> str:
    """Return the line of a GPU at full load."""
    return BUSY.format(number=number, limits=limits)
