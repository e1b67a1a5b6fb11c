# Start Open MPI's daemon for Slurm or Grid Engine with SIGUSR1 and SIGUSR2 ignored: a scheduler sends them as
# warnings to the ranks, and prted would die of them. mpirun 6 does not name the folder of this daemon, which reads
# some of its options too late to use them; as variables they count.
trap '' USR1 USR2
name=
for word; do
  case $name in
    prte_keepalive_* | prte_if_* | prte_launch_agent) export "PRTE_MCA_$name=$word" ;;
  esac
  name=$word
done
for program in "$PRTE_PREFIX/bin/$1" "$PRTE_PREFIX/bin/${1#ompi-}"; do
  if [ -x "$program" ]; then
    shift
    exec "$program" "$@"
  fi
done
exec "$@"
