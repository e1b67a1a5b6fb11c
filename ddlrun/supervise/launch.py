"""The launch of a plan: the process manager's environment and standard input, and the supervised run."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ddlrun.plan import STDIN, Plan
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.supervision import LOOPBACK, InputMode, RankInput, SupervisedJob, SupervisionOptions
from ddlrun.rank.program_input import VARIABLE
from ddlrun.remote.manager_start import copy_stdin
from ddlrun.remote.sessions import guard_session
from ddlrun.schedulers import JobEnd
from ddlrun.supervise.run import FinishedJob, ManagerCommand, run_job
from ddlrun.supervise.signals import Signals
from ddlrun.supervise.standard_input import input_variable
from ddlrun.supervise.termination import SLACK_SECONDS


def run_plan(plan: Plan, options: SupervisionOptions, environ: Mapping[str, str], signals: Signals) -> FinishedJob:
    """Start the job of a plan and supervise it to its end; the output goes to the run folder too.

    Signals are queued from the start on; those that arrive after the end stay in the queue.
    """
    placement = plan.placement
    if options.input is None and VARIABLE in dict(plan.unsupervised) and not os.isatty(0):
        options = options._replace(input=RankInput(0, InputMode.PIPE))  # rank 0 is on another host
    job = SupervisedJob(
        topology=placement.topology,
        order=placement.order,
        host_names=placement.hosts.names,
        addresses=_own_addresses(plan),
        manager=plan.manager,
    )
    names = {"DDLRUN_RUN": plan.run_id, "DDLRUN_PID": str(os.getpid())}
    keepalive = plan.manager.keepalive_variables(options.heartbeat) if options.heartbeat else {}
    variables = {**keepalive, **environ, **dict(plan.variables), **names, **_stdin_variables(plan, options)}
    environ = {name: value for name, value in variables.items() if name not in plan.removed}
    all_local = plan.local_hosts.issuperset(placement.hosts.names)
    folder_names = plan.manager.session_variables(environ, local=all_local, spawns=plan.spawn_slots > 0)
    path = f"{environ.get('TMPDIR') or '/tmp'}/ddlrun-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108
    with (
        guard_session(options.grace + SLACK_SECONDS, path) as guard,
        _session_folder(path if folder_names else None) as folder,
    ):
        session = {} if folder is None else dict.fromkeys(folder_names, folder)
        argv, arguments = plan.short_command()
        command = ManagerCommand(argv, {**environ, **session, **arguments}, folder)
        return run_job(command, options, job, plan.run_dir, guard, signals)


def apply_job_end(outcome: Outcome, end: JobEnd) -> Outcome:
    """Return the outcome of a job that its scheduler ended: it signals all processes at once."""
    ends = tuple(rank._replace(ordered=True) if rank.signal else rank for rank in outcome.ends)
    return outcome._replace(
        exit_code=end.exit_code, signal=None, reason=end.reason, root=None, ends=ends, lost_ranks=(), requested=True
    )


def _own_addresses(plan: Plan) -> tuple[str, ...]:
    others = [name for name in plan.placement.hosts.names if name not in plan.local_hosts]
    return own_addresses(others, plan.own_address)


def own_addresses(others: Sequence[str], preferred: str | None) -> tuple[str, ...]:
    """Return this machine's addresses that other hosts reach, the one on the job's network first if it has one."""
    routed = _routed_addresses(others[:8]) if others else LOOPBACK
    return tuple(dict.fromkeys((*(() if preferred is None else (preferred,)), *routed)))


def _routed_addresses(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses from which this machine talks to hosts; its name where no host's name resolves."""
    import socket  # noqa: PLC0415 - 1 ms, for jobs over several hosts alone

    addresses: dict[str, None] = {}
    for name in hosts:
        try:
            candidates = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, _, _, address in candidates:
            with suppress(OSError), socket.socket(family, kind) as probe_socket:
                probe_socket.connect(address)  # only looks up a route: UDP sends nothing here
                addresses[str(probe_socket.getsockname()[0])] = None
    return tuple(addresses) or (os.uname().nodename,)


@contextmanager
def _session_folder(path: str | None) -> Iterator[str | None]:
    """Make the folder of a session, and remove it afterwards; None where there is none or it cannot be made."""
    try:
        if path is not None:
            os.mkdir(path, 0o700)
    except OSError:  # the process manager then reports what is wrong with its temporary folder
        path = None
    if path is None:
        yield None
        return
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _stdin_variables(plan: Plan, options: SupervisionOptions) -> dict[str, str]:
    """Return the variables that name the ranks' standard input; empty where it is that of the process manager."""
    if options.input is not None:
        return {**input_variable(options.input), **({STDIN: os.devnull} if STDIN in dict(plan.unsupervised) else {})}
    unused = {name: "" for name, _ in plan.unsupervised if name == VARIABLE}  # Open MPI warns if it is missing
    if STDIN not in dict(plan.unsupervised):
        return unused
    return unused | {STDIN: os.devnull if os.isatty(0) else _own_stdin()}


def _own_stdin() -> str:
    """Return the path, or PATH@OFFSET of a file, at which rank 0's keeper opens ddlrun's standard input."""
    path = f"/proc/{os.getpid()}/fd/0"
    mode = os.fstat(0).st_mode
    if stat.S_ISREG(mode):
        return f"{path}@{os.lseek(0, 0, os.SEEK_CUR)}"
    return path if os.access(path, os.R_OK) and not stat.S_ISSOCK(mode) else f"/proc/{os.getpid()}/fd/{copy_stdin()}"
