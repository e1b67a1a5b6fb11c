"""mpirun's daemons that are left on hosts: ended over ssh, found by the session folder in their command lines.

A daemon that cannot reach mpirun, as a firewall drops its packets, tries for two minutes. It has started no keeper that
could end it.
"""

import os.path
from collections.abc import Iterable

from ddlrun.remote.probe import ProbeTarget, run_scripts

# SIGTERM lets a daemon remove its session folder; SIGKILL follows after these seconds.
TERM_SECONDS = 3
END = r"""
list() {
  for file in $(grep -lsaF 'SESSION' /proc/[0-9]*/cmdline); do
    process=${file%/cmdline}
    case $(cat "$process/comm" 2>/dev/null) in
      orted | prted) [ ! -O "$process" ] || echo "${process#/proc/}" ;;
    esac
  done
}
count=0
pids=$(list)
[ -z "$pids" ] || kill -TERM $pids 2>/dev/null
while pids=$(list) && [ -n "$pids" ] && [ $count -lt SECONDS ]; do
  count=$((count + 1))
  sleep 1
done
[ -z "$pids" ] || kill -KILL $pids 2>/dev/null
"""


def end_daemons(hosts: Iterable[str], session_folder: str, reach: ProbeTarget) -> None:
    """End the daemons of an mpirun on hosts: SIGTERM, and SIGKILL after 3 s; skip hosts that cannot be reached.

    Args:
        hosts: The hosts.
        session_folder: mpirun's session folder, which no other mpirun has and which its daemons know.
        reach: The ways to reach the hosts.
    """
    script = END.replace("SESSION", os.path.basename(session_folder)).replace("SECONDS", str(TERM_SECONDS))
    run_scripts(dict.fromkeys(hosts, script), reach)
