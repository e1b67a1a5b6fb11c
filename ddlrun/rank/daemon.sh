# What Slurm or Grid Engine starts as Open MPI's daemon: prted dies of a warning that is meant for the ranks.
trap '' USR1 USR2
exec "$@"
