"""Options of srun, jsrun, and mpiexec of MPICH and Intel MPI: translated, or rejected with a remedy."""

from ddlrun.cli.mpirun_options import FOLDER, PLACEMENT, SHOW

GPUS = "each rank gets a GPU of its host; use --accelerators gpu, --gpu-order, --share-gpus"
QUEUE = "it belongs to the job's submission: see ddlrun submit --help"
VARIABLES = "use --env NAME=VALUE, -x NAME or --export NAME,..."
OUTPUT = "use --output-filename DIR for files per rank; the run folder has all output"
# Option -> option of ddlrun with the same value.
RENAMED = {
    "--ntasks": "-np", "--ntasks-per-node": "--accelerators", "--tasks-per-node": "--accelerators",
    "--cpus-per-task": "--cores-per-rank", "--nodelist": "--host", "-w": "--host",
    "--ppn": "--accelerators", "--perhost": "--accelerators", "-hosts": "--host", "-f": "--hostfile",
    "-iface": "--network-interface", "-bootstrap": "--launcher",
}  # fmt: skip
# Switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, tuple[str, ...]] = {
    "--label": ("--tag-output",), "-l": ("--tag-output",), "--unbuffered": (), "-genvall": (), "-envall": (),
    "-prepend-rank": ("--tag-output",), "-prepend-timestamp": ("--timestamp-output",), "-rr": ("--rank-order", "ddl"),
    "-print-all-exitcodes": (), "-silent-abort": (), "-info": ("--verbose",),
    **dict.fromkeys(("-u", "-X", "-K", "--overlap", "--exact"), ()), "-Q": ("--quiet",),
}  # fmt: skip
# Option without an equivalent -> reason and remedy.
UNSUPPORTED = {
    **dict.fromkeys(
        ("--gres", "--gpus", "-G", "--gpus-per-task", "--gpus-per-socket", "--gpu-bind", "--ntasks-per-gpu",
         "-gpus-per-proc"), GPUS),
    **dict.fromkeys(
        ("--partition", "--account", "--qos", "--exclusive", "--constraint", "--reservation", "--mem", "--mem-per-cpu",
         "--mem-per-gpu", "--job-name", "--begin", "--dependency", "--licenses", "--comment", "--nice"),
        QUEUE),
    "-A": "use ddlrun submit --account NAME",
    "-J": "use ddlrun submit --job-name NAME",
    **dict.fromkeys(("--chdir", "-D", "--workdir"), FOLDER),
    **dict.fromkeys(("-genv", "-env", "-genvlist", "-envlist", "-genvnone", "-envnone"), VARIABLES),
    **dict.fromkeys(
        ("--output", "--error", "-o", "-e", "-outfile-pattern", "-errfile-pattern", "-prepend-pattern"),
        OUTPUT),
    **dict.fromkeys(
        ("--cpu-bind", "--distribution", "--hint", "--ntasks-per-socket", "--ntasks-per-core", "--cores-per-socket",
         "-rankmap", "-order-nodes", "-grr", "-hosts-group"), PLACEMENT),
    **dict.fromkeys(
        ("--nrs", "-a", "-g", "--tasks-per-rs", "--cpu-per-rs", "--gpu-per-rs", "--rs-per-host", "--rs-per-socket"),
        "ddlrun has no resource sets; use --accelerators N for ranks per host, --cores-per-rank N for their cores"),
    "--smpiargs": "use --mpi-args",
    "-E": VARIABLES,
    "--input": "redirect standard input: ddlrun launch ... <FILE; --stdin-rank N chooses the rank that reads it",
    "-tmpdir": "set TMPDIR before ddlrun, or use --env TMPDIR=DIR",
    "-rmk": "use --scheduler NAME",
    "-print-rank-map": SHOW,
    **dict.fromkeys(("--exclude", "--nolocal", "-skip-launch-node"), "leave the host out of -H HOST,HOST"),
    **dict.fromkeys(("--multi-prog", "-configfile"), "separate the programs with a colon: -np 2 A : -np 3 B"),
    **dict.fromkeys(("-gdb", "-gtool", "-gtoolfile"), "use --debug-rank N, or --wrap RANKS:COMMAND for a tool"),
    "-usize": "use --spawn-slots N for MPI_Comm_spawn",
    "-disable-auto-cleanup": "a failed rank ends the job in any case; leave the option out",
    "--mpi": "ddlrun chooses how ranks start; leave the option out",
    "--mem-bind": "use --membind local, interleave or gpu",
    "--time": "use --timeout with a unit, such as --timeout 60m",
    "--kill-on-bad-exit": "a failed rank ends the job in any case; leave the option out",
}  # fmt: skip
