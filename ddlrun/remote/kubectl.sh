# Run a command in a pod, as ssh does on a host: sh kubectl.sh HOST WORD...
# HOST is the name of the pod; domains may follow it.
host=$1
shift
exec kubectl exec --stdin "${host%%.*}" -- /bin/sh -c "$*"
