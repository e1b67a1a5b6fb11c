"""Submission: select the scheduler, query it, and submit a batch script."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence

from ddlrun.application.reporter import Reporter
from ddlrun.environment.open_mpi import WORLD
from ddlrun.errors import InputError
from ddlrun.remote.batch_job import SubmittedJob, follow, run
from ddlrun.schedulers.submit import BatchJob, Scheduler, insert_job_id
from ddlrun.schedulers.submit.registry import SCHEDULERS, all_schedulers

# Variables of an enclosing job, which sbatch or ddlrun would take for those of the new job.
OUTER_JOB_VARIABLES = rf"(SLURM_(?!CONF)|PMIX_|PMI_|{WORLD}|DDLRUN_).*"


def select_scheduler(name: str, reporter: Reporter) -> Scheduler:
    """Return the scheduler of that name; for "auto" the first one on PATH, with a note where there are several."""
    if name in SCHEDULERS:
        return SCHEDULERS[name]
    schedulers = all_schedulers()
    if name != "auto":
        return schedulers[name]
    installed = find_schedulers(schedulers)
    if not installed:
        commands = ", ".join(dict.fromkeys(scheduler.command for scheduler in schedulers.values()))
        raise InputError(
            f"no scheduler is installed here (none of {commands} is on PATH); submit from a host that has one, "
            f"or print a script: --print `--scheduler` {'|'.join(schedulers)}"
        )
    if len(installed) > 1:
        titles = ", ".join(scheduler.title for scheduler in installed)
        reporter.line(
            f"note: {titles} are installed; using {installed[0].title}; another: --scheduler {installed[1].name}"
        )
    return installed[0]


def find_schedulers(schedulers: Mapping[str, Scheduler]) -> list[Scheduler]:
    """Return those of the schedulers whose commands are on PATH, in their order."""
    names = {name for name, scheduler in schedulers.items() if shutil.which(scheduler.command)}
    if shutil.which("qsub"):
        names.discard("pbs" if _qsub_is_grid_engine() else "sge")
    return [scheduler for name, scheduler in schedulers.items() if name in names]


def _qsub_is_grid_engine() -> bool:
    if "SGE_ROOT" in os.environ:
        return True
    done = run(("qsub", "-help"))
    return re.search(r"(?m)^\s*\w*GE\s+\d", done.out + done.err) is not None


def has_gpus(scheduler: Scheduler, queue: str | None, reporter: Reporter) -> bool:
    """Return False, with a note, if the scheduler reports that its hosts have no GPUs, else True."""
    if scheduler.gpu_query is None or not shutil.which(scheduler.gpu_query[0][0]):
        return True
    argv, pattern = scheduler.gpu_query
    if scheduler.name == "slurm" and queue:
        argv = (*argv, "-p", queue)
    done = run(argv)
    if done.code != 0 or re.search(pattern, done.out):
        return True
    query = shlex.join(argv)
    reporter.line(
        f"note: {scheduler.title} reports no GPUs ({query}), so the job requests none; --gpus N requests them"
    )
    return False


def estimate_start(scheduler: Scheduler, script: str) -> str:
    """Return when the scheduler would start a script. Raises InputError where it gives no answer."""
    if scheduler.estimate_start is None:
        raise InputError(f"--when-free: {scheduler.title} does not estimate the start of a job; leave the option out")
    done = run(_without_outer_job(scheduler.estimate_start), script)
    reply = " ".join(f"{done.out} {done.err}".split())
    if done.code != 0:
        raise InputError(f"{shlex.join(scheduler.estimate_start)}: {reply or 'no answer'}")
    return reply


def submit(scheduler: Scheduler, batch: BatchJob, script: str) -> SubmittedJob:
    """Submit a script. Raises InputError with the scheduler's message where it rejects the job."""
    log_size = _log_size(batch.log)
    job_id = _submit_script(scheduler, script)
    return SubmittedJob(scheduler, job_id, _log_path(scheduler, batch, job_id), log_size)


def attend(job: SubmittedJob, reporter: Reporter, *, wait: bool) -> int:
    """Show how to look after a job; with `wait`, follow it and return its exit code."""
    scheduler, job_id = job.scheduler, job.job_id
    cancel = shlex.join(insert_job_id(scheduler.cancel, job_id))
    log = job.log or shlex.join(insert_job_id(scheduler.print_log or (), job_id))
    reporter.line(f"{scheduler.title} job {job_id}; log: {log}")
    reporter.line(f"status: {shlex.join(insert_job_id(scheduler.status, job_id))}; cancel: {cancel}")
    if not wait:
        return 0
    try:
        return follow(job, reporter.line)
    except BaseException:  # Ctrl-C, SIGTERM, or a scheduler that does not answer
        reporter.line(f"job {job_id} stays in the queue, or goes on; cancel it: {cancel}")
        raise


def _log_size(path: str | None) -> int:
    """Return the size of an existing log, which a waiting user does not see again; 0 where its name has patterns."""
    if path is None or re.search(r"[%${]", path) or not os.path.isfile(path):
        return 0
    return os.path.getsize(path)


def _submit_script(scheduler: Scheduler, script: str) -> str:
    done = run(_without_outer_job(scheduler.submit), script)
    job_id = re.search(scheduler.job_id, done.out, re.MULTILINE)
    if done.code == 127:
        reason = f"{done.err.strip()}; start ddlrun where {scheduler.title} is"
        raise InputError(f"{reason}, or write the script: ddlrun submit --print")
    if done.code != 0 or job_id is None:
        reply = " ".join(f"{done.err} {done.out}".split()) or "no answer"
        raise InputError(f"{scheduler.command} rejected the job: {reply}; look at the script: ddlrun submit --print")
    return job_id[1]


def _log_path(scheduler: Scheduler, batch: BatchJob, job_id: str) -> str | None:
    """Return the path of the log with the job's id in place of its patterns; None where the log is not a file."""
    if scheduler.print_log:
        return None
    path = batch.log or f"{batch.name}.o{job_id.partition('.')[0]}"  # PBS's default
    for pattern in scheduler.log_id:
        path = path.replace(pattern, job_id)
    return os.path.join(batch.folder, path)


def _without_outer_job(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command that runs without the variables of an enclosing job."""
    names = [name for name in sorted(os.environ) if re.fullmatch(OUTER_JOB_VARIABLES, name)]
    unset = [word for name in names for word in ("-u", name)]
    return ("env", *unset, *argv) if unset else tuple(argv)
