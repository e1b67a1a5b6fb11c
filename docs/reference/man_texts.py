"""Parts of the man pages that the program does not hold: examples, files, related pages."""

from typing import NamedTuple


class Example(NamedTuple):
    """A command, and its purpose."""

    purpose: str
    command: str


EXAMPLES: dict[str, tuple[Example, ...]] = {
    "": (
        Example("Train on this machine, with one rank per GPU.", "ddlrun launch train.py"),
        Example("Check that a job can run on two hosts.", "ddlrun check n1,n2"),
        Example("Show where the ranks would run.", "ddlrun show placement -H n1,n2 train.py"),
    ),
    "check": (
        Example("Check 64 hosts and the script on them.", "ddlrun check 'n[01-64]' --script train.py"),
        Example("Run only the checks of MPI and of TCP connections.", "ddlrun check @hosts --checks mpi,tcp"),
    ),
    "gen-rankfile": (
        Example("Write the rank file of 4 ranks on each of 2 hosts.", "ddlrun gen-rankfile 4x2 n1,n2 -o rankfile"),
        Example("Describe the hosts, so that none need be reachable.",
                "ddlrun gen-rankfile --machine dgx1 8x2x2 'n[1-4]'"),
    ),
    "launch": (
        Example("Train on this machine, with one rank per GPU.", "ddlrun launch train.py --epochs 3"),
        Example("Train on two hosts with 4 ranks each.", "ddlrun launch -H n1:4,n2:4 train.py"),
        Example("Inside a scheduler's job, use its hosts.", "ddlrun launch train.py"),
        Example("Give the topology, and print the plan without starting anything.",
                "ddlrun launch --hostfile hosts --topology 4x2x3 --dry-run train.py"),
        Example("Restart a failed job up to 3 times, with a spare host.",
                "ddlrun launch -H n1,n2 --spare-hosts n3 --restarts 3 train.py"),
    ),
    "submit": (
        Example("Submit a job of 4 ranks on each of 2 hosts, and follow it to its end.",
                "ddlrun submit 4x2 --time 2h --wait train.py"),
        Example("Print the job script for Slurm.", "ddlrun submit 4x2 --scheduler slurm --print train.py"),
    ),
    "lint": (
        Example("Check a rank file against the cores of a preset.", "ddlrun lint --machine dgx1 rankfile"),
        Example("Write a corrected rank file.", "ddlrun lint --fix -o fixed rankfile"),
    ),
    "probe": (
        Example("Show the hardware of this machine.", "ddlrun probe"),
        Example("Save the hardware of 64 hosts, for --machine DIR.", "ddlrun probe 'n[01-64]' --save saved"),
    ),
    "show": (
        Example("Draw the ranks of a job on 2 DGX-1.", "ddlrun show placement --machine dgx1 -H n1,n2 train.py"),
        Example("Print the command that launch would run.", "ddlrun show command -H n1,n2 train.py"),
    ),
    "network plan": (
        Example("Predict the step time of ResNet-50 on 16 hosts with 100 Gbit/s Ethernet.",
                "ddlrun network plan --topology 4x16 --links 100gbe --model resnet50"),
    ),
    "config": (
        Example("Show the options that are not on the command line, and where they come from.", "ddlrun config show"),
        Example("Show which value of an option applies.", "ddlrun config show --bind numa"),
    ),
    "report": (
        Example("Write the page of the last run.", "ddlrun report"),
        Example("Write the page of another run, and a trace for Perfetto.",
                "ddlrun report tokarumi -o run.html --trace run.json"),
    ),
    "network": (
        Example("Find the racks of 16 hosts.", "ddlrun network racks 'n[01-16]' -o hosts"),
        Example("Find the fastest settings for them.", "ddlrun network tune @hosts"),
    ),
    "network racks": (
        Example("Write a hostfile with the racks of 16 hosts.", "ddlrun network racks 'n[01-16]' -o hosts"),
    ),
    "network bench": (
        Example("Measure the links of 16 hosts, for ddlrun network plan.",
                "ddlrun network bench 'n[01-16]' --save-links network.yaml"),
    ),
    "network tune": (
        Example("Find the fastest settings for 16 hosts within 5 minutes.", "ddlrun network tune @hosts --budget 5m"),
    ),
    "runs": (
        Example("List the latest 5 runs.", "ddlrun runs -n 5"),
        Example("List the runs with their processes on 64 hosts.", "ddlrun runs -H 'n[01-64]'"),
    ),
    "top": (
        Example("Show the last run as long as it lasts.", "ddlrun top"),
        Example("Print what limits another run now.", "ddlrun top tokarumi --once"),
        Example("Serve a web page of it.", "ddlrun top tokarumi --web"),
        Example("Serve the samples of the last run to Prometheus.", "ddlrun top --listen 9400"),
    ),
    "logs": (
        Example("Print the output of the last run, and go on until it ends.", "ddlrun logs -f"),
        Example("Print the last 20 lines of rank 3 of another run.", "ddlrun logs tokarumi --rank 3 -n 20"),
    ),
    "doctor": (
        Example("Find the reason why the last run hangs.", "ddlrun doctor"),
        Example("The same for another run, with 10 s between snapshots.", "ddlrun doctor tokarumi --interval 10"),
        Example("The same for a job that has left flight recorders.", "ddlrun doctor --dumps /scratch/dumps"),
    ),
    "rerun": (
        Example("Start the last run again.", "ddlrun rerun"),
        Example("Start another run again, on two other hosts and with other arguments.",
                "ddlrun rerun tokarumi -H n3,n4 -- --epochs 60"),
    ),
    "kill": (Example("End a run, named by the beginning of its name.", "ddlrun kill toka"),),
    "clean": (Example("Print what would be ended on 64 hosts.", "ddlrun clean --dry-run 'n[01-64]'"),),
}  # fmt: skip

STATE = ("~/.local/state/ddlrun", "Run folders, records of runs and profiles of ddlrun network tune.")
CACHE = ("~/.cache/ddlrun", "Saved replies of ddlrun probe.")
HOSTFILE = ("hostfile", "One host per line, with slots=N and rack=NAME where known; # starts a comment.")
USER_CONFIG = ("~/.config/ddlrun/config.yaml", "Your own config file, for all projects.")
PROJECT_CONFIG = ("ddlrun.yaml", "The project's config file, in the current folder or the nearest folder above it.")
LAST_RUN = ("~/.local/state/ddlrun/last", "Link to the folder of the last run.")

FILES: dict[str, tuple[tuple[str, str], ...]] = {
    "": (STATE, CACHE),
    "check": (HOSTFILE,),
    "gen-rankfile": (HOSTFILE,),
    "probe": (CACHE, HOSTFILE),
    "launch": (USER_CONFIG, PROJECT_CONFIG),
    "config": (USER_CONFIG, PROJECT_CONFIG),
    "report": (LAST_RUN,),
    "runs": (STATE,),
    "top": (LAST_RUN,),
    "logs": (LAST_RUN,),
    "doctor": (LAST_RUN,),
    "rerun": (LAST_RUN,),
    "network tune": (STATE,),
    "kill": (STATE,),
    "clean": (STATE,),
}

# The options of another command that a command accepts too.
BORROWED = {
    "submit": "The options of ddlrun-launch(1) are accepted too, except for those that name hosts.",
    "rerun": "The options of ddlrun-launch(1) are accepted too.",
    "show": "The options of ddlrun-launch(1) for a job are accepted too.",
    "config": "The options of ddlrun-launch(1) are accepted too.",
}

SEE_ALSO: dict[str, tuple[str, ...]] = {
    "": ("mpirun(1)",),
    "check": ("launch", "ssh(1)"),
    "gen-rankfile": ("lint", "show", "mpirun(1)"),
    "launch": (
        "check",
        "show",
        "submit",
        "runs",
        "top",
        "logs",
        "doctor",
        "rerun",
        "report",
        "kill",
        "mpirun(1)",
    ),
    "submit": ("launch", "sbatch(1)", "bsub(1)", "qsub(1)"),
    "lint": ("gen-rankfile", "mpirun(1)"),
    "probe": ("show", "check"),
    "show": ("launch", "probe", "network plan"),
    "config": ("launch", "show"),
    "report": ("launch", "runs"),
    "runs": ("top", "logs", "rerun", "report", "kill", "clean"),
    "top": ("launch", "runs", "logs", "doctor"),
    "logs": ("launch", "runs", "report"),
    "doctor": ("launch", "runs", "logs"),
    "rerun": ("launch", "runs"),
    "network": ("launch", "check"),
    "network racks": ("network bench", "check"),
    "network bench": ("network plan", "network tune", "network racks"),
    "network tune": ("launch", "network bench", "network plan"),
    "network plan": ("network bench", "network tune"),
    "kill": ("runs", "clean"),
    "clean": ("runs", "kill"),
}
