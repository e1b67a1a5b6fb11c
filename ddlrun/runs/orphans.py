"""The processes of runs on hosts: found, and ended, by the run's id that each carries in its environment."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.remote.probe import ProbeTarget, ask
from ddlrun.remote.processes import FinishedProcess

RUN_ID = r"[0-9]{8}-[0-9]{6}-[0-9]+-[0-9a-f]{8}"
# One grep reads all environments; it needs -z, which GNU's, BusyBox's and FreeBSD's have.
LIST = r"""
grep -lsaz '^DDLRUN_RUN=.' /proc/[0-9]*/environ | while IFS= read -r file; do
  pid=${file#/proc/}
  pid=${pid%/environ}
  [ -O "/proc/$pid" ] || continue
  run=$(tr '\0' '\n' 2>/dev/null <"$file" | sed -n 's/^DDLRUN_RUN=//p')
  rank=$(tr '\0' '\n' 2>/dev/null <"$file" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
  echo "@process $pid ${run:--} ${rank:--} $(tr '\0\n\t' '   ' 2>/dev/null <"/proc/$pid/cmdline" | cut -c 1-300)"
done
echo @end
"""
END = r"""
list() {
  for environ in $(grep -lsazE '^DDLRUN_RUN=(RUNS)$' /proc/[0-9]*/environ); do
    environ=${environ%/environ}
    [ ! -O "$environ" ] || echo "${environ#/proc/}"
  done
}
count=0
pids=$(list)
for pid in $pids; do echo "@ended $pid"; done
[ -z "$pids" ] || [ GRACE = 0 ] || kill -TERM $pids 2>/dev/null
while pids=$(list) && [ -n "$pids" ] && [ $count -lt GRACE ]; do
  count=$((count + 1))
  sleep 1
done
[ -z "$pids" ] || kill -KILL $pids 2>/dev/null
echo @end
"""


class OrphanProcess(NamedTuple):
    """One process of a run; mpirun has no rank."""

    pid: int
    run: str
    rank: int | None
    command: str

    @property
    def keeper(self) -> bool:
        """Whether it is a rank's keeper, which lasts no longer than its ddlrun."""
        return "/ddlrun/rank/start.py" in self.command and " -I -S " in self.command


def parse_processes(text: str) -> list[OrphanProcess]:
    """Read what LIST printed."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(rf"@process ([0-9]+) ({RUN_ID}) ([0-9]+|-) ?(.*)", line)
        if match:
            found.append(
                OrphanProcess(int(match[1]), match[2], None if match[3] == "-" else int(match[3]), match[4].strip())
            )
    return found


def find_processes(
    hosts: Sequence[str], reach: ProbeTarget
) -> tuple[dict[str, list[OrphanProcess]], dict[str, FinishedProcess]]:
    """Return each host's processes of any run, and the answers of hosts that gave none."""
    answers = ask(dict.fromkeys(hosts, LIST), reach)
    failed = {name: answer for name, answer in answers.items() if "@end" not in answer.out}
    return {name: parse_processes(answers[name].out) for name in hosts if name not in failed}, failed


def orphans(processes: Iterable[OrphanProcess]) -> dict[str, list[OrphanProcess]]:
    """Return one host's processes that nobody watches any more, run by run: those of runs without a keeper there."""
    runs: dict[str, list[OrphanProcess]] = {}
    for process in processes:
        runs.setdefault(process.run, []).append(process)
    return {run: found for run, found in runs.items() if not any(process.keeper for process in found)}


def end_runs(
    runs: Mapping[str, Iterable[str]], grace: float, reach: ProbeTarget
) -> tuple[dict[str, int], dict[str, FinishedProcess]]:
    """End the processes of runs (host -> run ids): TERM, and KILL after so many seconds.

    Returns how many there were on each host, and the answers of hosts that gave none.
    """
    scripts = {}
    for host, ids in runs.items():
        bad = [run for run in ids if not re.fullmatch(RUN_ID, run)]
        if bad:
            raise InputError(f"run {bad[0]!r}: no such id; ddlrun ps lists them")
        scripts[host] = END.replace("RUNS", "|".join(ids)).replace("GRACE", str(int(grace)))
    answers = ask(scripts, reach)
    failed = {name: answer for name, answer in answers.items() if "@end" not in answer.out}
    return {name: answers[name].out.count("@ended ") for name in scripts if name not in failed}, failed
