# Start Open MPI's daemon for Slurm or Grid Engine with SIGUSR1 and SIGUSR2 ignored: a scheduler sends them as
# warnings to the ranks, and prted would die of them.
trap '' USR1 USR2
exec "$@"
