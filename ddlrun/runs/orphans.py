"""Processes of runs on hosts: found and ended by the run's name in their environment."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.environment.open_mpi import RANK_VARIABLES
from ddlrun.errors import InputError
from ddlrun.keeper.leftovers import SCRIPT
from ddlrun.keeper.proc_files import STOPPED
from ddlrun.keeper.processes import FIRST_MARK, MARK_LIMIT, mark_of
from ddlrun.keeper.protocol import AGENT_RUN
from ddlrun.remote.probe import ProbeTarget, run_complete
from ddlrun.remote.processes import FinishedProcess
from ddlrun.runs.names import NAME

INIT = 1
# One grep reads all environments; it needs -z, which GNU's, BusyBox's and FreeBSD's have. A process without the name of
# its run has the run's mark, or the name of the first run of its agent: agents stay for the next runs, and keepers are
# their forks.
LIST = (
    r"""
field() {
  tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | sed -n "s/^$1=//p" | head -n 1
}
status() {
  sed -n "s/^$1:[^0-9A-Z]*\([0-9A-Z]*\).*/\1/p" "/proc/$pid/status" 2>/dev/null
}
{
  grep -lsazE '^(DDLRUN_RUN|AGENT_RUN)=.' /proc/[0-9]*/environ
  grep -lsazE 'LIMIT +FIRST' /proc/[0-9]*/limits
} | sed 's,^/proc/,,; s,/.*,,' | sort -u | while IFS= read -r pid; do
  [ -O "/proc/$pid" ] || continue
  run=$(field DDLRUN_RUN)
  agent=$(field AGENT_RUN)
  mark=$(sed -n 's/^LIMIT *\([0-9]*\).*/\1/p' "/proc/$pid/limits" 2>/dev/null)
  rank=$(field '\(OPEN_MPI\|DDLRUN_RANK\)')
  ddlrun=$(field DDLRUN_PID)
  parent=$(status PPid)
  case $(cat "/proc/$parent/comm" 2>/dev/null) in systemd) parent=1 ;; esac  # a user's own, which adopts processes
  state=$(status State)
  [ "$state" != Z ] || continue
  command=$(tr '\0\n\t' '   ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c 1-300)
  echo "@process $pid ${parent:-0} ${state:--} ${run:-${mark:-${agent:+@}${agent:--}}} ${rank:--} ${ddlrun:--} $command"
done
echo @end
""".replace("LIMIT", MARK_LIMIT)
    .replace("FIRST", str(FIRST_MARK)[:8])
    .replace("AGENT_RUN", AGENT_RUN)
    .replace("OPEN_MPI", RANK_VARIABLES[0])
)
END = (
    r"""
files() {
  grep -lsazE '^DDLRUN_RUN=(RUNS)$' /proc/[0-9]*/environ
  for file in $(grep -lsazE '^AGENT_RUN=(RUNS)$' /proc/[0-9]*/environ); do
    ! grep -qs '^State:[^A-Z]*STOPPED' "${file%/*}/status" || echo "$file"
  done
  for file in $(grep -lsazE 'LIMIT +(MARKS) ' /proc/[0-9]*/limits); do
    grep -qsaz '^DDLRUN_RUN=.' "${file%/*}/environ" || echo "$file"
  done
}
list() {
  for file in $(files); do
    process=${file%/*}
    [ ! -O "$process" ] || grep -qs '^State:.*Z' "$process/status" || echo "${process#/proc/}"
  done | sort -u
}
count=0
pids=$(list)
for pid in $pids; do echo "@ended $pid"; done
[ -z "$pids" ] || [ GRACE = 0 ] || kill -TERM $pids 2>/dev/null
[ -z "$pids" ] || [ GRACE = 0 ] || kill -CONT $pids 2>/dev/null
while pids=$(list) && [ -n "$pids" ] && [ $count -lt GRACE ]; do
  count=$((count + 1))
  sleep 1
done
[ -z "$pids" ] || kill -KILL $pids 2>/dev/null
count=0
while [ -n "$(list)" ] && [ $count -lt EXIT_TENTHS ]; do
  count=$((count + 1))
  sleep 0.1
done
LEFTOVERS
echo @end
""".replace("LEFTOVERS", SCRIPT)
    .replace("EXIT_TENTHS", "20")
    .replace("AGENT_RUN", AGENT_RUN)
    .replace("STOPPED", STOPPED)
    .replace("LIMIT", MARK_LIMIT)
)


class OrphanProcess(NamedTuple):
    """A process of a run."""

    pid: int
    parent: int
    run: str
    """The run's name."""
    rank: int | None
    """None: the process manager or one of its daemons."""
    ddlrun: int | None
    """The process of the run's ddlrun; None on hosts other than ddlrun's."""
    command: str
    stopped: bool
    """Whether it has received SIGSTOP."""

    @property
    def supervised(self) -> bool:
        """Whether it is a child of its ddlrun, or a rank's keeper, which lasts no longer than its ddlrun.

        A stopped keeper or agent does not notice that what has started it is gone, so that it has the parent 1.
        """
        return (self.keeper and not (self.stopped and self.parent == INIT)) or self.parent == self.ddlrun

    @property
    def keeper(self) -> bool:
        """Whether it is a rank's keeper, or an agent of ddlrun's own, of which keepers are forks."""
        scripts = ("/ddlrun/keeper/start.py", "/ddlrun/agent/start.py")
        return " -I -S " in self.command and any(script in self.command for script in scripts)


def parse_processes(text: str, names: Iterable[str] = ()) -> list[OrphanProcess]:
    """Parse the output of LIST.

    Without the name of its run, a process counts if its mark is that of one of `names`, or if it is the keeper of a
    process that has the name. An agent counts if it was stopped, and nothing is left that would end it.

    >>> parse_processes("@process 7 1 S 20261121-tokarumi 0 - sleep 9")[0].command
    'sleep 9'
    """
    processes = []
    by_mark = {str(mark_of(name)): name for name in names}
    row = re.compile(rf"@process ([0-9]+) ([0-9]+) (\S) (@?{NAME}|[0-9]+) ([0-9]+|-) ([0-9]+|-) ?(.*)")
    matches = [match for line in text.splitlines() if (match := row.fullmatch(line))]
    by_child = {match[2]: match[4] for match in matches if re.fullmatch(NAME, match[4])}
    for match in matches:
        run = match[4]
        if run.isdigit() or run.startswith("@"):
            left = match[3] == STOPPED and match[2] == str(INIT)
            run = by_mark.get(run) or by_child.get(match[1]) or (run.partition("@")[2] if left else "")
        if run:
            process = OrphanProcess(
                pid=int(match[1]),
                parent=int(match[2]),
                stopped=match[3] == STOPPED,
                run=run,
                rank=_parse_number(match[5]),
                ddlrun=_parse_number(match[6]),
                command=match[7].strip(),
            )
            processes.append(process)
    return processes


def _parse_number(word: str) -> int | None:
    return None if word == "-" else int(word)


def find_processes(
    hosts: Sequence[str], reach: ProbeTarget, names: Sequence[str]
) -> tuple[dict[str, list[OrphanProcess]], dict[str, FinishedProcess]]:
    """Return each host's processes of all runs, and the replies of hosts that failed; see `parse_processes`."""
    replies, failed = run_complete(dict.fromkeys(hosts, LIST), reach)
    return {name: omit_guards(parse_processes(replies[name].out, names)) for name in hosts if name in replies}, failed


def omit_guards(processes: Sequence[OrphanProcess]) -> list[OrphanProcess]:
    """Return the processes of a host without the keepers' guards, which have the command lines of their keepers."""
    keepers = {process.pid for process in processes if process.keeper}
    return [process for process in processes if not (process.keeper and process.parent in keepers)]


def orphans(processes: Iterable[OrphanProcess], over: Container[str] = ()) -> dict[str, list[OrphanProcess]]:
    """Return a host's unsupervised processes by run: those of runs without a keeper or a child of ddlrun there.

    It has no keepers while the process manager starts them, or when it stays after its ranks; then it is not an orphan.
    All processes of runs that are known to be `over` are orphans.
    """
    runs: dict[str, list[OrphanProcess]] = {}
    for process in processes:
        runs.setdefault(process.run, []).append(process)
    return {
        run: members for run, members in runs.items()
        if run in over or not any(process.supervised for process in members)
    }  # fmt: skip


def end_runs(
    runs: Mapping[str, Iterable[str]], grace: float, reach: ProbeTarget
) -> tuple[dict[str, int], dict[str, FinishedProcess]]:
    """End the processes of runs by host: SIGTERM, and SIGKILL after the grace, in whole seconds.

    Returns the number of processes on each host, and the replies of hosts that failed. Raises InputError for a
    malformed name.
    """
    scripts = {}
    for host, names in runs.items():
        malformed = [name for name in names if not re.fullmatch(NAME, name)]
        if malformed:
            raise InputError(f"run {malformed[0]!r}: no such name; ddlrun runs lists them")
        marks = "|".join(str(mark_of(name)) for name in names)
        script = END.replace("RUNS", "|".join(names)).replace("MARKS", marks)
        scripts[host] = script.replace("GRACE", str(int(grace)))
    replies, failed = run_complete(scripts, reach)
    return {name: replies[name].out.count("@ended ") for name in scripts if name in replies}, failed
