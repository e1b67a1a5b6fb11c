# Run the launch agent of the MPI operator with standard input, which its kubectl does not pass on by default:
# sh kubexec_stdin.sh /etc/mpi/kubexec.sh HOST WORD...
# kubectl takes the place of the shell, so that a signal ends it.
agent=$1
shift
edited=$(sed -e '/^set -x$/d' -e 's/kubectl exec /&--stdin /' -e 's/^[^ ]*kubectl exec --stdin /exec &/' "$agent")
exec sh -c "$edited" "$agent" "$@"
