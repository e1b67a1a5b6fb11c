"""The batch job of `ddlrun submit`, read from its options."""

import os
import re
import sys

from ddlrun.application.inputs import configs_folder, read_text, split_words
from ddlrun.application.options.hosts import Options
from ddlrun.application.options.program import read_program
from ddlrun.application.options.settings import LaunchOptions, read_settings
from ddlrun.application.reporter import Reporter
from ddlrun.application.submission import has_gpus
from ddlrun.errors import InputError
from ddlrun.mapping.topology_request import check_request
from ddlrun.schedulers.submit import BatchJob, Scheduler
from ddlrun.topology import Topology, parse_topology
from ddlrun.units import parse_memory, parse_time_limit


def check_launch(given: LaunchOptions, program: tuple[str, ...], reporter: Reporter) -> None:
    """Find the errors that launch would find after hours in the queue. Raises InputError."""
    options = given.values
    folder = os.path.dirname(options["log"] or "")
    if folder and "%" not in folder and "$" not in folder and not os.path.isdir(folder):
        raise InputError(f"--log {options['log']}: no folder {folder}; create it, as schedulers do not")
    if not options["container_command"] and not options["image"]:  # the script may exist only in there
        in_image = bool(options["container"])
        program = read_program(program[0], program[1:], is_module=options["is_module"], in_image=in_image)
    hosts = f"host[1-{parse_topology(options['topology']).hosts}]"
    in_job = {**options, "scheduler": "none", "launcher": "auto", "hosts": hosts}
    settings = read_settings(given._replace(values=in_job), program, reporter)
    check_request(settings.job.topology, settings.hosts.hosts)


def read_batch(
    scheduler: Scheduler, options: Options, script: str, launch: tuple[str, ...], reporter: Reporter
) -> BatchJob:
    """Return the job whose command is ddlrun with the words of `launch`. Raises InputError."""
    topology = parse_topology(options["topology"])
    in_container = options["container_command"] is not None or scheduler.name == "kubernetes"
    return BatchJob(
        topology=topology,
        command=(*_ddlrun_command(in_container=in_container), *launch),
        folder=os.getcwd(),
        name=_job_name(scheduler, options["job_name"], script),
        log=options["log"] or scheduler.log,
        seconds=parse_time_limit(options["time"]) if options["time"] else None,
        queue=options["queue"],
        account=options["account"],
        exclusive=options["exclusive"],
        cores=options["cores"] or options["cores_per_rank"],
        memory=parse_memory(options["memory"]) if options["memory"] else None,
        modules=options["modules"],
        container=split_words(options["container_command"], "--container-command"),
        image=options["image"],
        warn=int(options["warn"]) if options["warn"] else None,
        requeue=options["requeue"],
        parallel_environment=options["parallel_environment"],
        directives=options["directives"],
        gpus=_gpus_per_host(scheduler, topology, options, reporter),  # last: it may query the scheduler
    )


def _ddlrun_command(*, in_container: bool) -> tuple[str, ...]:
    """Return the command that starts ddlrun in the job: this installation, or the one in the container."""
    if in_container:
        return ("ddlrun",)
    script = f"{os.path.dirname(sys.executable)}/ddlrun"
    return (script,) if os.access(script, os.X_OK) else (sys.executable, "-m", "ddlrun")


def _job_name(scheduler: Scheduler, name: str | None, script: str) -> str:
    """Return --job-name, or a name from the script's. Raises InputError where Kubernetes does not accept it."""
    if name is None:
        stem = os.path.basename(script.rstrip("/")).removesuffix(".py")
        name = f"ddlrun-{re.sub(r'[^A-Za-z0-9]+', '-', stem).strip('-') or 'job'}"[:40].rstrip("-")
        name = name.lower() if scheduler.name == "kubernetes" else name
    if scheduler.name != "kubernetes":
        return name
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise InputError(
            f"--job-name {name!r}: Kubernetes accepts up to 40 of a-z, 0-9 and -, beginning with a letter; rename it"
        )
    return f"{name}-{os.urandom(3).hex()}"  # names are unique in Kubernetes


def _gpus_per_host(scheduler: Scheduler, topology: Topology, options: Options, reporter: Reporter) -> int:
    """Return the GPUs that a host must have: --gpus, else X unless the scheduler has none."""
    if options["gpus"] is not None:
        return int(options["gpus"])
    return topology.ranks_per_host if has_gpus(scheduler, options["queue"], reporter) else 0


def read_template(scheduler: Scheduler, path: str | None) -> tuple[str, str]:
    """Return the text of the template and its name for errors."""
    if path:
        return read_text(path, "--template"), path
    path = os.path.join(configs_folder(), "jobs", scheduler.template)  # that of a plug-in is absolute
    return read_text(path, "template"), scheduler.template
