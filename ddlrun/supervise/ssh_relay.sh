# A program in place of an ssh client: ddlrun runs its command on the host over the link that it has already.
#
# The first argument is the name of the variable with the folder of relays.py: the others go into a file, the name of the
# host into the FIFO of requests, and the exit code of the command comes from the FIFO of the host. What the command
# prints goes to ddlrun. Where there is no such folder, as under an mpirun that a rank starts, this becomes ssh.
eval "folder=\$$1"
shift
[ -d "$folder" ] || exec ssh "$@"
skipped=${folder##*-} # the words before the name of the host
for host; do
  [ $((skipped -= 1)) -ge 0 ] || [ ! -p "$folder/$host" ] || break
done
code=255 # that of ssh where its connection is lost
if [ -p "$folder/$host" ]; then
  printf '%s\0' "$@" >"$folder/.$host" || exit $code
  # To open a FIFO that nothing else has open, as ddlrun was killed, waits for no other only if it is for both ways.
  exec 3<>"$folder/$host" 4<"$folder/$host" 3<>"$folder/.requests"
  echo "$host" >&3
  read -r code <&4
fi
exit "${code:-255}"
