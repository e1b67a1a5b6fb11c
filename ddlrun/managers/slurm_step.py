"""The end of a step as srun prints it: of the step that starts the ranks, or mpirun's daemons."""

from ddlrun.managers.end import EndCode, EndPattern

STEP = (
    EndPattern(
        EndCode.LOST_HOST,
        r"srun: error: Node failure on (?P<host>\S+)",
        "srun lost host {host}: Slurm reports that its node has failed",
    ),
    EndPattern(
        EndCode.LOST_HOST,
        r"srun: error: Task launch for \S+ failed on node (?P<host>\S+?): (?P<why>.*)",
        "srun's step could not start on {host}: {why}",
    ),
    EndPattern(
        EndCode.FAILED_START,
        r"srun: error: (?:Unable to create step for job \d+|Application launch failed): (?P<why>.+)",
        "srun could not start a step: {why}",
    ),
    EndPattern(
        EndCode.CANCELLED_STEP,
        r"(?m)^slurmstepd\S*: error: \*\*\* STEP (?P<step>\S+) ON \S+ CANCELLED AT \S+(?P<why>(?: DUE TO .+)?) \*\*\*",
        "srun's step {step} was cancelled{why}",
    ),
)
TASKS = (
    EndPattern(EndCode.KILLED_RANK, r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)\S*: (?:Killed|Out Of Memory)"),
    EndPattern(
        EndCode.EXITED_RANK,
        r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)\S*: Exited with exit code (?P<number>\d+)",
    ),
)
"""The first task of each kind, which is a rank where srun starts the ranks."""
