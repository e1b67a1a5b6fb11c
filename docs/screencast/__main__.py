"""Recorder of the screencast: `python -m docs.screencast`.

It runs the commands, and writes the recording and the animated picture of it.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from docs.screencast.drawing import draw
from docs.screencast.recording import Event, Step, parse_cast, record, render_cast, shorten_pauses

FOLDER = Path(__file__).parent
CAST, PICTURE = FOLDER / "runs.cast", FOLDER / "runs.svg"
TITLE = "A day with ddlrun"
DESCRIPTION = (
    "A terminal: a launch on 2 ranks, the list of runs, the log of a run in the background, a failure with its "
    "traceback and reason, and the same failure in the debugger of rank 1."
)
HOME = "/home/ada"
PROMPT = r"\$ $"
PDB = r"\(Pdb\) $"
STEPS = (
    Step("", PROMPT),
    Step("ddlrun launch -np 2 train.py\n", PROMPT),
    Step("# in the background, as in a batch job\n", PROMPT),
    Step("ddlrun launch -np 2 --quiet train.py --epochs 6 &> /dev/null &\n", PROMPT),
    Step("ddlrun logs -f\n", rf"epoch 5[\s\S]*{PROMPT}"),
    Step("ddlrun launch -np 2 --quiet train.py --data new\n", rf"exit code 1;[\s\S]*{PROMPT}"),
    Step("ddlrun launch -np 2 --quiet --debug-rank 1 train.py --data new\n", PDB),
    Step("continue\n", PDB),
    Step("p batch\n", PDB),
    Step("quit\n", PROMPT),
    Step("ddlrun runs\n", rf"RUN [\s\S]*{PROMPT}"),
)


def record_commands(home: Path) -> list[Event]:
    """Run the commands in a folder below a home directory of their own; return what the terminal showed."""
    folder = home / "train"
    folder.mkdir()
    shutil.copy(FOLDER / "train.py", folder)
    kept = {name: value for name, value in os.environ.items() if name.startswith(("OMPI_ALLOW", "LANG", "LC_"))}
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    environ = {**kept, "HOME": str(home), "PATH": path, "PS1": "$ ", "TERM": "xterm-256color"}
    events = record(STEPS, environ, folder)
    return shorten_pauses([Event(event.seconds, event.text.replace(str(home), HOME)) for event in events])


def main() -> None:
    """Record, and write both files."""
    with tempfile.TemporaryDirectory(prefix="ada") as home:
        CAST.write_text(render_cast(record_commands(Path(home)), TITLE))
    PICTURE.write_text(draw(parse_cast(CAST.read_text()), TITLE, DESCRIPTION))


if __name__ == "__main__":
    main()
