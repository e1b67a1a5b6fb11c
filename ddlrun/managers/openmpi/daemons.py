"""mpirun's daemons that are left on hosts: ended over ssh, found by the session folder in their command lines.

A daemon that cannot reach mpirun, as a firewall drops its packets, tries for two minutes. It has started no keeper that
could end it. A daemon that is stopped stays if all that would see to its end was killed. One that was killed with
all its keepers leaves its session folder.
"""

import os.path
import shlex
from collections.abc import Mapping

from ddlrun.remote.probe import ProbeTarget, run_complete
from ddlrun.remote.processes import FinishedProcess

# SIGTERM lets a daemon remove its session folder, but not while it connects to mpirun; SIGKILL follows after these
# seconds. The folder is prted.PID (5.0), or jf.FAMILY in that of the user (4.1), where FAMILY is the first half of the
# job's number.
TERM_SECONDS = 3
END = r"""
list() {
  for file in $(grep -lsaF 'SESSION' /proc/[0-9]*/cmdline); do
    process=${file%/cmdline}
    case $(cat "$process/comm" 2>/dev/null) in
      orted | prted | ompi-prted) [ ! -O "$process" ] || echo "${process#/proc/}" ;;
    esac
  done
}
variable() {
  tr '\0' '\n' 2>/dev/null <"/proc/$1/$2" | sed -n "$3"
}
folders() {
  for pid in $pids; do
    above=$(variable "$pid" environ 's/^TMPDIR=//p')
    above=${above:-/tmp}
    job=$(variable "$pid" cmdline '/^ess_base_jobid$/{n;p;}')
    family=none
    [ -z "$job" ] || family=$((job / 65536))
    for folder in "$above/prted.$pid" "$above"/ompi.*."$(id -u)/jf.$family"; do
      [ ! -d "$folder" ] || echo "$folder"
    done
  done
}
count=0
known=FOLDER
pids=$(list)
folders=$(folders)
[ -z "$pids" ] || kill -TERM $pids 2>/dev/null
[ -z "$pids" ] || kill -CONT $pids 2>/dev/null
while pids=$(list) && [ -n "$pids" ] && [ $count -lt SECONDS ]; do
  count=$((count + 1))
  sleep 1
done
[ -z "$pids" ] || kill -KILL $pids 2>/dev/null
[ ! -O "$known" ] || [ -L "$known" ] || folders="$folders
$known"
echo "$folders" | while IFS= read -r folder; do
  [ -n "$folder" ] || continue
  rm -rf "$folder"
  rmdir "${folder%/jf.*}" 2>/dev/null
done
echo @end
"""

# Session folders of a temporary folder `$above` are removed if the process is gone after which they are named. See
# runs/leftovers.py.
LEFTOVERS = r"""
  for name in ompi.* prted.*; do remove_dead "${name#*.}" "$above/$name"; done
  for name in ompi.*."$(id -u)"/pid.*; do remove_dead "${name##*.}" "$above/$name"; done
  for name in ompi.*."$(id -u)"/jf.*/pmix_dstor_*_*; do remove_dead "${name##*_}" "$above/${name%/*}"; done
  [ -n "$only_list" ] || rmdir ompi.*."$(id -u)" 2>/dev/null
"""


def end_daemons(folders: Mapping[str, str], session_folder: str, reach: ProbeTarget) -> dict[str, FinishedProcess]:
    """End the daemons of an mpirun on hosts, and remove their session folders; return the replies of hosts that failed.

    They get SIGTERM, and SIGKILL after 3 s.

    Args:
        folders: Host -> the session folder of the daemon there, which may have been killed; empty if it is not known.
        session_folder: mpirun's session folder, which no other mpirun has and which its daemons know.
        reach: The ways to reach the hosts.
    """
    script = END.replace("SESSION", os.path.basename(session_folder)).replace("SECONDS", str(TERM_SECONDS))
    scripts = {host: script.replace("FOLDER", shlex.quote(folder)) for host, folder in folders.items()}
    return run_complete(scripts, reach)[1]
