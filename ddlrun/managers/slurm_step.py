"""The end of a step as srun prints it: of the step that starts the ranks, or mpirun's daemons."""

import re
from collections.abc import Iterator

from ddlrun.managers.end import EndCode, EndFinding
from ddlrun.remote.slurm_step import LAUNCH_FAILED

LOST_NODE = r"srun: error: Node failure on (\S+)"
REFUSED = r"srun: error: (?:Unable to create step for job \d+|Application launch failed): (.+)"
CANCELLED = r"(?m)^slurmstepd\S*: error: \*\*\* STEP (\S+) ON \S+ CANCELLED AT \S+ (DUE TO .+ )?\*\*\*"
KILLED = r"srun: error: (\S+): tasks? (\d+)\S*: (?:Killed|Out Of Memory)"
EXITED = r"srun: error: (\S+): tasks? (\d+)\S*: Exited with exit code (\d+)"


def find_step(text: str) -> Iterator[EndFinding]:
    """Yield the findings about the step as a whole."""
    lost, launch, refused, cancelled = (
        re.search(pattern, text) for pattern in (LOST_NODE, LAUNCH_FAILED, REFUSED, CANCELLED)
    )
    if lost is not None:
        reason = "Slurm reports that its node has failed"
        yield EndFinding(EndCode.LOST_HOST, lost[1], text=f"srun lost host {lost[1]}: {reason}")
    if launch is not None:
        reason = f"srun's step could not start on {launch[1]}: {launch[2]}"
        yield EndFinding(EndCode.LOST_HOST, launch[1], text=reason)
    elif refused is not None:
        yield EndFinding(EndCode.FAILED_START, text=f"srun could not start a step: {refused[1]}")
    if cancelled is not None:
        reason = f"srun's step {cancelled[1]} was cancelled {(cancelled[2] or '').lower()}"
        yield EndFinding(EndCode.CANCELLED_STEP, text=reason.rstrip())


def find_tasks(text: str) -> Iterator[EndFinding]:
    """Yield the findings about the first task of each kind, which is a rank."""
    killed, exited = re.search(KILLED, text), re.search(EXITED, text)
    if killed is not None:
        yield EndFinding(EndCode.KILLED_RANK, killed[1], int(killed[2]))
    if exited is not None:
        yield EndFinding(EndCode.EXITED_RANK, exited[1], int(exited[2]), int(exited[3]))
