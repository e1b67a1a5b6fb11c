"""The hosts of a Slurm job on which no step can start, and the reasons, as Slurm has them."""

import re
from collections.abc import Collection
from contextlib import suppress

from ddlrun.errors import InputError
from ddlrun.hosts import fold, parse_hosts
from ddlrun.remote.processes import start_command

# A host that is down is reported as "down", one that does not respond has a "*" behind its state.
DOWN = r"down|fail|.*\*$"


def explain_hosts(job: str, names: Collection[str]) -> dict[str, str]:
    """Return those of some hosts that are down or not in the job any more, and the reasons.

    A host that was down and is up again is idle for Slurm, but lost for the job.
    """
    if not names:
        return {}
    states = start_command(["sinfo", "--noheader", "--Node", f"--nodes={fold(names)}", "--format=%N %T"])
    lines = start_command(["squeue", "--noheader", f"--jobs={job}", "--format=%A %N"])().out.splitlines()
    hosts_of_job = [words[1] for words in map(str.split, lines) if len(words) == 2 and words[0] == job]
    reasons: dict[str, str] = {}
    with suppress(InputError):  # a list that only Slurm can read says nothing about lost hosts
        lost = set(names) - set(parse_hosts(hosts_of_job[0]).names) if hosts_of_job else ()
        reasons |= dict.fromkeys(lost, "it is not in the Slurm job any more")
    rows = (line.split() for line in states().out.splitlines())
    state_of = {row[0]: row[1] for row in rows if len(row) == 2}
    return reasons | {name: f"Slurm says: {state}" for name, state in state_of.items() if re.match(DOWN, state)}
