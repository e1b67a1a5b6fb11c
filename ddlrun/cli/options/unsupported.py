"""Options of other launchers that have no equivalent: the reason and the remedy of each."""

PLACEMENT = "ddlrun plans the placement; use --topology, --bind, --rankfile, and see ddlrun show placement"
STARTED_ONCE = "ddlrun is started once for all hosts (-H HOST,HOST); leave the option out"
ELASTIC = "ddlrun restarts a failed job instead; use --restarts, --spare-hosts, --min-topology"
ACCELERATE = "accelerate launch alone has it; give Accelerator() a plug-in in the script, or its variables by --env"
# Options without an equivalent, and the reason and remedy.
_UNSUPPORTED = {
    ELASTIC: "--min-np --max-np --min-num-proc --max-num-proc --host-discovery-script --elastic-timeout --reset-limit "
             "--blacklist-cooldown-range --elastic-training --min-elastic-nodes --max-elastic-nodes",
    "ddlrun starts ranks with mpirun; leave the option out": "--jsrun",
    "ddlrun check --check-build shows it": "--check-build -cb",
    "more ranks than cores run without it, and are not bound; leave it out": "--overload",
    # mpirun
    PLACEMENT: "--binding-args --cpu-set --cpu-list --bycore --cartofile --cpu-bind --distribution --hint "
               "--ntasks-per-socket --ntasks-per-core --cores-per-socket -rankmap -order-nodes -grr -hosts-group",
    "ddlrun show placement, hosts or machines shows that; leave the option out":
        "--report-bindings --display --display-map --display-devel-map --display-diffable-map --display-allocation "
        "--display-devel-allocation --display-topo -print-rank-map",
    "ranks start in the current folder; cd there first": "--wdir --wd --set-cwd-to-session-dir --chdir -D --workdir",
    "use --debug-rank N for a rank under a debugger": "--debugger --tv --pdb",
    "use nohup ddlrun launch ... &; ddlrun logs -f prints its output": "--detach --background --daemon",
    "use --ship FOLDER, which copies it to all hosts": "--preload-files --preload-binary -s",
    "use --stall-timeout TIME, or ddlrun doctor": "--get-stack-traces --report-state-on-timeout",
    "an option of mpirun alone: pass it on in --mpi-args":
        "--tune -am -cf --personality --report-pid --report-uri --report-events --debug-daemons --debug-daemons-file "
        "--debug-devel -d --leave-session-attached --dvm --hnp --novm --ompi-server --launch-agent --enable-recovery "
        "--continuous --max-vm-size --fwd-mpirun-port --xml --xml-file --index-argv-by-rank --output-proctable "
        "--report-child-jobs-separately --enable-instant-on-support --use-regexp --runtime-options --with-ft "
        "--stream-buffering",
    "use --mpirun DIR/bin/mpirun for another Open MPI; ddlrun tells its daemons where it is": "--prefix",
    "set PATH, which all ranks get": "--path",
    "redirect the output: ddlrun launch ... 2>&1": "--merge-stderr-to-stdout",
    "separate the programs with a colon: -np 2 A : -np 3 B": "--app --multi-prog -configfile",
    "use --threads-per-core N, for hardware threads of a rank's cores": "--use-hwthread-cpus",
    "use --debug-rank N or --pty for a rank at this terminal": "--xterm",
    "ddlrun --version prints the version": "--version -V",
    "use --verbose for all reasons and the command, and ddlrun show for parts of a plan": "--debug",
    "use -np N for the number of ranks (mpirun), or --cores-per-rank N for their cores (srun)": "-c",
    "use --ranks-per-host N for ranks per host, or -H HOST,HOST for hosts": "-N",
    # srun, jsrun, and mpiexec of MPICH and Intel MPI
    "each rank gets a GPU of its host; use --ranks-per-host gpu, --gpu-order, --share-gpus":
        "--gres --gpus -G --gpus-per-task --gpus-per-socket --gpu-bind --ntasks-per-gpu -gpus-per-proc",
    "it belongs to the job's submission: see ddlrun submit --help":
        "--partition --account --qos --exclusive --constraint --reservation --mem --mem-per-cpu --mem-per-gpu "
        "--job-name --begin --dependency --licenses --comment --nice",
    "use ddlrun submit --account NAME": "-A",
    "use ddlrun submit --job-name NAME": "-J",
    "use --env NAME=VALUE, --env NAME or --export NAME,...": "-genv -env -genvlist -envlist -genvnone -envnone -E",
    "use --output dir=DIR for files per rank; the run folder has all output":
        "--error -o -e -outfile-pattern -errfile-pattern -prepend-pattern",
    "ddlrun has no resource sets; use --ranks-per-host N for ranks per host, --cores-per-rank N for their cores":
        "--nrs -a -g --tasks-per-rs --cpu-per-rs --gpu-per-rs --rs-per-host --rs-per-socket",
    "use --mpi-args": "--smpiargs",
    "redirect standard input: ddlrun launch ... <FILE; --stdin-rank N chooses the rank that reads it": "--input",
    "set TMPDIR before ddlrun, or use --env TMPDIR=DIR": "-tmpdir",
    "use --scheduler NAME": "-rmk",
    "leave the host out of -H HOST,HOST": "--exclude --nolocal -skip-launch-node",
    "use --debug-rank N, or --wrap RANKS:COMMAND for a tool": "-gdb -gtool -gtoolfile",
    "use --spawn-slots N for MPI_Comm_spawn": "-usize",
    "a failed rank ends the job in any case; leave the option out": "-disable-auto-cleanup --kill-on-bad-exit",
    "ddlrun chooses how ranks start; leave the option out": "--mpi",
    "use --membind local, interleave or gpu": "--mem-bind",
    "use --timeout with a unit, such as --timeout 60m": "--time",
    # torchrun, accelerate and deepspeed
    "ddlrun does not copy chosen lines; the run folder has a log per rank, to search with grep":
        "--duplicate-stdout-filters --duplicate-stderr-filters",
    ACCELERATE: "--use-deepspeed --use-fsdp --use-megatron-lm --use-parallelism-config --use-xpu --ipex "
                "--deepspeed-config-file --deepspeed-multinode-launcher --deepspeed-moe-layer-cls-names "
                "--gradient-clipping --downcast-bf16 --main-training-function --tpu",
    "accelerate's config file is not read; give its values as options (--config-file is ddlrun's own)": "--config_file",
    "name hosts with -H HOST,HOST, and GPUs of each host with CUDA_VISIBLE_DEVICES=0,1 before ddlrun":
        "--include --deepspeed-inclusion-filter --deepspeed-exclusion-filter --gpu-ids --gpu",
    "use --env OMP_NUM_THREADS=N": "--omp-num-threads",
    "start ddlrun under taskset --cpu-list LIST: ranks are bound to these cores": "--bind-core-list",
    "use --mpi-args for mpirun, -p and -i for ssh": "--launcher-args",
    STARTED_ONCE: "--no-ssh",
    "activate the environment before ddlrun, whose Python starts the ranks; --ship env copies it": "--venv-script",
    "ddlrun network tune tunes ddlrun and Horovod; DeepSpeed's settings need its own launcher": "--autotuning",
    "ddlrun's installation has completion for bash, zsh and fish": "--print-completion",
    "ddlrun takes no plug-in for logs; ddlrun logs prints those of each rank": "--logs-specs",
}  # fmt: skip
UNSUPPORTED = {name: reason for reason, names in _UNSUPPORTED.items() for name in names.split()}
# The beginnings of options that are unsupported for the reason ACCELERATE.
FAMILIES = ("--fsdp-", "--megatron-lm-", "--fp8-", "--zero", "--offload-", "--parallelism-config-", "--dynamo-use-")
