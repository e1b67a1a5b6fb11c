# What Slurm starts as Open MPI 5's daemon: prted dies of a warning signal that is meant for the ranks.
trap '' USR1 USR2
exec "$@"
