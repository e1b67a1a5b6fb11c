"""Files of ended jobs on hosts: shared memory, and temporary folders of ddlrun and process managers."""

from collections.abc import Iterable, Mapping

from ddlrun.keeper import leftovers
from ddlrun.managers.openmpi.daemons import LEFTOVERS
from ddlrun.remote.probe import ProbeTarget, run_complete
from ddlrun.remote.processes import FinishedProcess
from ddlrun.wording import printable

LEFT = "@left "
# Folders are named after the process to which they belong: a process manager, its daemon, or ddlrun. On a file system
# that hosts share, it may be a process of another host.
FOLDERS = r"""
remove_dead() {
  [ -d "$2" ] || return 0
  case $1 in "" | *[!0-9]*) return 0 ;; esac
  [ -e "/proc/$1" ] || remove "$2"
}
for above in /tmp "${TMPDIR:-/tmp}"; do
  cd "$above" 2>/dev/null && df -l . >/dev/null 2>&1 || continue
SESSIONS
  for name in ddlrun-*-*; do
    pid=${name#ddlrun-}
    remove_dead "${pid%%-*}" "$above/$name"
  done
done
echo @end
""".replace("SESSIONS\n", LEFTOVERS)


def remove_leftovers(
    hosts: Iterable[str], reach: ProbeTarget, *, only_list: bool
) -> tuple[dict[str, list[str]], Mapping[str, FinishedProcess]]:
    """Remove leftover files on hosts, or list them; return their paths by host, and replies of hosts that failed."""
    script = f"only_list={'yes' if only_list else ''}\n{leftovers.SCRIPT}{FOLDERS}"
    replies, failed = run_complete(dict.fromkeys(hosts, script), reach)
    paths = {
        host: [printable(line.removeprefix(LEFT)) for line in reply.out.splitlines() if line.startswith(LEFT)]
        for host, reply in replies.items()
    }
    return {host: [*dict.fromkeys(of_host)] for host, of_host in paths.items() if of_host}, failed
