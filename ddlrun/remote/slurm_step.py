"""One sh script per host of a Slurm job, in a single step: srun over all hosts."""

import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from ddlrun.errors import InputError
from ddlrun.hosts import fold, parse_hosts
from ddlrun.remote.agent import PARTS
from ddlrun.remote.processes import CapturedCommand, CommandRunner, FinishedProcess, start_command
from ddlrun.wording import printable

# For the output and the errors of a step. The replies of hosts have less than 1 MiB each.
MOST_BYTES, MOST_BYTES_PER_HOST = 16 << 20, 1 << 20
# A host that is down is reported as "down", one that does not respond has a "*" behind its state.
DOWN = r"down|fail|.*\*$"
# The host of a task that slurmd did not start, and the reason.
LAUNCH_FAILED = r"srun: error: Task launch for \S+ failed on node (?P<host>\S+?): (?P<why>.*)"


def run_in_step(scripts: Mapping[str, str], words: Sequence[str], timeout: float) -> dict[str, FinishedProcess]:
    """Run each host's script in one step over all hosts; a step per host would keep Slurm's controller busy.

    One host that is down fails the whole step: it gets the reason as its reply, and the step is repeated
    with the others, all within a time limit in seconds. `words` are the first arguments of srun.
    """
    end = time.monotonic() + timeout
    replies: dict[str, FinishedProcess] = {}
    while remaining := {name: script for name, script in scripts.items() if name not in replies}:
        step = _run_step(remaining, words, end - time.monotonic())
        replies |= split_labels(step.out, step.err)
        failed = {name: reason for name, reason in _failed_hosts(step.err, remaining).items() if name in remaining}
        replies |= {name: FinishedProcess(step.code, "", reason) for name, reason in failed.items()}
        if not failed or time.monotonic() > end - 1:
            errors = "\n".join(line for line in step.err.splitlines() if line.startswith("srun: "))
            missing = FinishedProcess(step.code if errors else None, "", errors)
            return {name: replies.get(name, missing) for name in scripts}
    return replies


def _run_step(scripts: Mapping[str, str], words: Sequence[str], timeout: float) -> FinishedProcess:
    """Run one step; return srun's exit code and output."""
    count = str(len(scripts))
    argv = [
        "env", *(word for name in PARTS for word in ("-u", name)),
        "srun", *words, "--overlap", "--immediate=5", "--label", "--quiet", "--mpi=none", "--cpu-bind=none",
        "--export=ALL", "--kill-on-bad-exit=0", "--wait=0", "--distribution=block", f"--nodelist={fold(scripts)}",
        "--nodes", count, "--ntasks", count, "--ntasks-per-node=1", "sh", "-s",
    ]  # fmt: skip
    srun = CapturedCommand(argv, join_scripts(scripts).encode())
    CommandRunner(max(0.1, timeout), MOST_BYTES + MOST_BYTES_PER_HOST * len(scripts)).run([srun])
    return FinishedProcess(srun.code, "", "srun: the replies are too long") if srun.too_long else srun.result()


def _failed_hosts(errors: str, names: Iterable[str]) -> dict[str, str]:
    """Return the hosts on which a step could not start, and the reasons.

    srun names those whose task failed. For a step that could not be created, Slurm is queried for hosts that
    are down, and for hosts that the job has lost: a host that was down and is up again is idle for Slurm.
    """
    reasons = dict(re.findall(LAUNCH_FAILED, errors))
    if step := re.search(r"Unable to create step for job (\d+)", errors):
        reasons |= _query_hosts(step[1], names)
    return reasons


def _query_hosts(job: str, names: Iterable[str]) -> dict[str, str]:
    """Return the hosts that are down or not in the job any more, and the reasons."""
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


def join_scripts(scripts: Mapping[str, str]) -> str:
    """Return one sh script that runs each host's own, chosen by SLURMD_NODENAME.

    The end that all scripts share is written once. The first line of the output names the host, the last one
    the exit code.
    """
    texts = list(scripts.values())
    shared = os.path.commonprefix([script[::-1] for script in texts])[::-1]  # noqa: RUF071 - characters
    heads: dict[str, list[str]] = {}
    for name, script in scripts.items():
        heads.setdefault(script[: len(script) - len(shared)], []).append(name)
    cases = "".join(f"{'|'.join(names)}) head={shlex.quote(head)} ;;\n" for head, names in heads.items())
    return (
        f'echo "@host $SLURMD_NODENAME"\ncase $SLURMD_NODENAME in\n{cases}*) exit 1 ;;\nesac\n'
        f'( eval "$head"{shlex.quote(shared)} ) </dev/null\necho "@code $?"\n'
    )


def split_labels(out: str, err: str) -> dict[str, FinishedProcess]:
    r"""Return host -> the result of its part of a joined script, from the output of `srun --label`.

    >>> split_labels("0: @host n1\n0: text\n0: @code 3\n", "0: error\n")
    {'n1': FinishedProcess(code=3, out='text\n', err='error\n')}
    """
    texts: list[dict[int, list[str]]] = [{}, {}]
    for stream, output in enumerate((out, err)):
        for line in printable(output).splitlines(keepends=True):
            if match := re.match(r" *([0-9]+): ?", line):
                texts[stream].setdefault(int(match[1]), []).append(line[match.end() :])
    results: dict[str, FinishedProcess] = {}
    for task, lines in texts[0].items():
        if not lines[0].startswith("@host "):
            continue
        code = _parse_code(lines.pop()) if lines[-1].startswith("@code ") else None
        result = FinishedProcess(code, "".join(lines[1:]), "".join(texts[1].get(task, ())))
        name = lines[0][6:].strip()
        results[name] = result if name not in results else FinishedProcess(None, "", f"two hosts answer as {name}")
    return results


def _parse_code(line: str) -> int | None:
    word = line[6:].strip()
    return int(word) if re.fullmatch("[0-9]{1,3}", word) else None
