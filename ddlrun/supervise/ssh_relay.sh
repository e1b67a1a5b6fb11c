# A program in place of an ssh client: ddlrun runs its command on the host over the link that it has already.
#
# The folder that DDLRUN_RELAY names is that of relays.py: the arguments go into a file, the name of the host into the
# FIFO of requests, and the exit code of the command comes from the FIFO of the host. What the command prints goes to
# ddlrun. Where there is no such folder, as under an mpirun that a rank starts, this becomes ssh.
[ -d "$DDLRUN_RELAY" ] || exec ssh "$@"
skipped=${DDLRUN_RELAY##*-} # the words before the name of the host
for host; do
  [ $((skipped -= 1)) -ge 0 ] || [ ! -p "$DDLRUN_RELAY/$host" ] || break
done
code=255 # that of ssh where its connection is lost
if [ -p "$DDLRUN_RELAY/$host" ]; then
  printf '%s\0' "$@" >"$DDLRUN_RELAY/.$host" && echo "$host" >"$DDLRUN_RELAY/.requests" || exit $code
  read -r code <"$DDLRUN_RELAY/$host"
fi
exit "${code:-255}"
