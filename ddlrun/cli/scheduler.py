"""What ddlrun submit has to do with schedulers: which one is here, what it has, and handing it a job."""

import os
import re
import shlex
import shutil
from collections.abc import Sequence

import click

from ddlrun.errors import InputError
from ddlrun.remote.batch_job import SubmittedJob, follow, run
from ddlrun.schedulers.submit import BatchJob, Scheduler, filled
from ddlrun.schedulers.submit.registry import SCHEDULERS

# What another job has set around us, and sbatch or ddlrun would take for the new one's.
INHERITED = r"(SLURM_(?!CONF)|PMIX_|PMI_|OMPI_COMM_WORLD_|DDLRUN_).*"


def choose(name: str) -> Scheduler:
    """Return the scheduler that is asked for, or the first whose command is on PATH; say where there are several."""
    if name != "auto":
        return SCHEDULERS[name]
    there = [one for one in SCHEDULERS.values() if shutil.which(one.command) and one.name not in ("pbs", "sge")]
    if shutil.which("qsub"):
        there.append(SCHEDULERS["sge" if _is_grid_engine() else "pbs"])
        there.sort(key=list(SCHEDULERS.values()).index)
    if not there:
        commands = ", ".join(dict.fromkeys(one.command for one in SCHEDULERS.values()))
        raise InputError(
            f"no scheduler is here (none of {commands} is on PATH); submit where one is, "
            f"or look at a script: --print --scheduler {'|'.join(SCHEDULERS)}"
        )
    if len(there) > 1:
        titles = ", ".join(one.title for one in there)
        say(f"note: there are {titles}; {there[0].title} is taken; another: --scheduler {there[1].name}")
    return there[0]


def _is_grid_engine() -> bool:
    if "SGE_ROOT" in os.environ:
        return True
    done = run(("qsub", "-help"))
    return re.search(r"(?m)^\s*\w*GE\s+\d", done.out + done.err) is not None


def has_gpus(scheduler: Scheduler, queue: str | None) -> bool:
    """Say whether hosts may have GPUs: yes, unless the scheduler answers that it knows of none."""
    if scheduler.gpus is None or not shutil.which(scheduler.gpus[0][0]):
        return True
    argv, pattern = scheduler.gpus
    if scheduler.name == "slurm" and queue:
        argv = (*argv, "-p", queue)
    done = run(argv)
    if done.code != 0 or re.search(pattern, done.out):
        return True
    asked = shlex.join(argv)
    say(f"note: {scheduler.title} knows of no GPUs ({asked}), so none are asked for; --gpus N asks for them")
    return False


def ask_when_free(scheduler: Scheduler, text: str) -> int:
    """Print what the scheduler says of when a script would start. Raises InputError where it says nothing."""
    if scheduler.trial is None:
        raise InputError(f"--when-free: {scheduler.title} does not say when a job would start; leave it out")
    done = run(_outside(scheduler.trial), text)
    said = " ".join(f"{done.out} {done.err}".split())
    if done.code != 0:
        raise InputError(f"{shlex.join(scheduler.trial)}: {said or 'no answer'}")
    click.echo(said)
    return 0


def submit(scheduler: Scheduler, batch: BatchJob, text: str, *, wait: bool) -> int:
    """Submit a script and print the job's id; stay until it has ended if `wait`, and return its exit code.

    Raises InputError with the scheduler's words where it does not take the job.
    """
    fixed = batch.log is not None and not re.search(r"[%${]", batch.log)
    before = os.path.getsize(batch.log) if fixed and batch.log and os.path.isfile(batch.log) else 0
    done = run(_outside(scheduler.submit), text)
    found = re.search(scheduler.job_id, done.out, re.MULTILINE)
    if done.code != 0 or found is None:
        said = " ".join(f"{done.err} {done.out}".split()) or "no answer"
        raise InputError(f"{scheduler.command} did not take the job: {said}; look at the script: ddlrun submit --print")
    job = SubmittedJob(scheduler, found[1], _log(scheduler, batch, found[1]), before)
    click.echo(job.job_id)
    log = job.log or shlex.join(filled(scheduler.stream or (), job.job_id))
    say(f"{scheduler.title} job {job.job_id}; log: {log}")
    cancel = shlex.join(filled(scheduler.cancel, job.job_id))
    say(f"status: {shlex.join(filled(scheduler.status, job.job_id))}; cancel: {cancel}")
    if not wait:
        return 0
    try:
        return follow(job, say)
    except BaseException:  # Ctrl-C, a TERM, a scheduler that is silent
        say(f"job {job.job_id} stays in the queue, or goes on; cancel it: {cancel}")
        raise


def _log(scheduler: Scheduler, batch: BatchJob, job_id: str) -> str | None:
    """Return where the log will be, as far as we can say."""
    if scheduler.stream:
        return None
    path = batch.log or f"{batch.name}.o{job_id.partition('.')[0]}"  # PBS's own name
    for pattern in scheduler.log_id:
        path = path.replace(pattern, job_id)
    return os.path.join(batch.folder, path)


def _outside(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command without what a job around us has set."""
    unset = [word for name in sorted(os.environ) if re.fullmatch(INHERITED, name) for word in ("-u", name)]
    return ("env", *unset, *argv) if unset else tuple(argv)


def say(line: str) -> None:
    """Tell the user on standard error."""
    click.echo(f"ddlrun: {line}", err=True)
