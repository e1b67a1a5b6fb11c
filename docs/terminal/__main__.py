"""Writer of the terminal in README.md: `python -m docs.terminal` runs the commands, and replaces the block."""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
README = FOLDER.parents[1] / "README.md"
BLOCK = re.compile(r"(?s)(?<=<!-- terminal -->\n\n```console\n).*?(?=```\n\n<!-- end -->)")
HOME, HOST = "/home/ada", "n1"
COMMANDS = (
    "ddlrun launch -H n1,n2 --machine c4140 --dry-run train.py | head -4",
    "ddlrun launch -np 2 --quiet --ranks 0 train.py --data empty",
    "ddlrun launch -np 2 --quiet --stall-timeout 5 train.py --data stuck 2>&1 | grep ': hang:' | fold -sw 110",
)


def run_commands(home: Path, environ: Mapping[str, str]) -> str:
    """Run the commands in a home directory of their own; return them with what they print."""
    shutil.copy(FOLDER / "train.py", home)
    environ = {**environ, "HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
    environ.pop("XDG_STATE_HOME", None)
    shown = ""
    for command in COMMANDS:
        argv = ["bash", "-c", f"exec 2>&1; {command}"]
        done = subprocess.run(argv, cwd=home, env=environ, stdout=subprocess.PIPE, text=True, check=False)
        shown += f"$ {command}\n{done.stdout}"
    shown = re.sub(r"(?m) +$", "", shown)
    return shown.replace(str(home), HOME).replace(f" on {socket.gethostname()} ", f" on {HOST} ")


def main() -> None:
    """Replace the block of README.md."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("OMPI_ALLOW", "LANG", "PATH"))}
    with tempfile.TemporaryDirectory(prefix="ada") as home:
        shown = run_commands(Path(home), kept)
    README.write_text(BLOCK.sub(lambda _: shown, README.read_text()))


if __name__ == "__main__":
    main()
