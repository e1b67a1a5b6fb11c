"""Options of srun, and of mpirun and mpiexec other than Open MPI's: translated, or rejected with a remedy."""

GPUS = "each rank gets a GPU of its host; use --accelerators gpu, --gpu-order, --share-gpus"
QUEUE = "it belongs to the job's submission: see ddlrun submit --help"
FOLDER = "ranks start in the current folder; cd there first"
VARIABLES = "use --env NAME=VALUE, -x NAME or --export NAME,..."
OUTPUT = "use --output-filename DIR for files per rank; the run folder has all output"
# Option -> option of ddlrun with the same value.
RENAMED = {
    "--ntasks": "-np", "--ntasks-per-node": "--accelerators", "--tasks-per-node": "--accelerators",
    "--cpus-per-task": "--cores-per-rank", "--nodelist": "--host", "-w": "--host",
    "-ppn": "--accelerators", "-perhost": "--accelerators", "-hosts": "--host", "-f": "--hostfile",
    "-iface": "--network-interface",
}  # fmt: skip
# Switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, tuple[str, ...]] = {
    "--label": ("--tag-output",), "-l": ("--tag-output",), "--unbuffered": (), "-genvall": (), "-envall": (),
    "-prepend-rank": ("--tag-output",),
}  # fmt: skip
# Option without an equivalent -> reason and remedy.
UNSUPPORTED = {
    **dict.fromkeys(("--gres", "--gpus", "-G", "--gpus-per-task", "--gpu-bind", "--ntasks-per-gpu"), GPUS),
    **dict.fromkeys(
        ("--partition", "--account", "--qos", "--exclusive", "--constraint", "--reservation", "--mem", "--mem-per-cpu",
         "--mem-per-gpu"), QUEUE),
    **dict.fromkeys(("--chdir", "-D", "--workdir", "-workdir"), FOLDER),
    **dict.fromkeys(("-genv", "-env", "-genvlist", "-envlist", "-genvnone", "-envnone"), VARIABLES),
    **dict.fromkeys(("--output", "--error", "-o", "-e", "--input"), OUTPUT),
    **dict.fromkeys(
        ("--cpu-bind", "--distribution", "--hint", "--ntasks-per-socket", "--ntasks-per-core", "--cores-per-socket"),
        "ddlrun plans the placement; use --topology, --bind, --rankfile, and see ddlrun show placement"),
    **dict.fromkeys(("--exclude", "--nolocal", "-nolocal"), "leave the host out of -H HOST,HOST"),
    "--mpi": "ddlrun chooses how ranks start; leave the option out",
    "--mem-bind": "use --membind local, interleave or gpu",
    "--time": "use --timeout with a unit, such as --timeout 60m",
    "--kill-on-bad-exit": "a failed rank ends the job in any case; leave the option out",
    "--use-hwthread-cpus": "use --threads-per-core N, for hardware threads of a rank's cores",
    "--prefix": "use --mpirun FILE for another Open MPI",
    "--xterm": "use --debug-rank N or --pty for a rank at this terminal",
}  # fmt: skip
