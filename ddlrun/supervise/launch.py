"""The launch of a plan: mpirun's environment and standard input, and the supervised run."""

import math
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ddlrun.managers.own import is_own
from ddlrun.plan import STDIN, Plan
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.supervision import LOOPBACK, InputMode, RankInput, SupervisedJob, SupervisionOptions
from ddlrun.rank.program_input import VARIABLE
from ddlrun.remote.manager_start import copy_stdin
from ddlrun.remote.sessions import guard_session
from ddlrun.runs.registry import record_run
from ddlrun.schedulers import JobEnd
from ddlrun.supervise.run import FinishedJob, ManagerCommand, run_job
from ddlrun.supervise.signals import Signals
from ddlrun.supervise.standard_input import input_variable
from ddlrun.supervise.termination import SLACK_SECONDS

# Where mpirun puts the folders of sessions: on all hosts, and on its own alone.
SESSION_FOLDERS = ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")
LOCAL_SESSION_FOLDERS = ("OMPI_MCA_orte_local_tmpdir_base", "PRTE_MCA_prte_local_tmpdir_base")
# The beginnings of the variables of TCP keepalive between mpirun and its daemons, by the major version of Open MPI.
KEEPALIVE = {4: "OMPI_MCA_oob_tcp_keepalive", 5: "PRTE_MCA_oob_tcp_keepalive"}
KEEPALIVE_PROBES = 3
LONGEST_KEEPALIVE = 32767  # the kernel's limit


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
        own_manager=is_own(plan.manager),
        manager=plan.manager,
    )
    names = {"DDLRUN_RUN": plan.run_id, "DDLRUN_PID": str(os.getpid())}
    keepalive = _keepalive_variables(plan.manager.major, options.heartbeat)
    variables = {**keepalive, **environ, **dict(plan.variables), **names, **_stdin_variables(plan, options)}
    environ = {name: value for name, value in variables.items() if name not in plan.removed}
    folder_names = _session_variables(plan, environ)
    path = f"{environ.get('TMPDIR') or '/tmp'}/ddlrun-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108
    with (
        guard_session(options.grace + SLACK_SECONDS, path) as guard,
        _session_folder(path if folder_names else None) as folder,
        record_run(plan, environ),
    ):
        session = {} if folder is None else dict.fromkeys(folder_names, folder)
        argv, arguments = plan.short_command()
        command = ManagerCommand(argv, {**environ, **session, **arguments}, folder)
        return run_job(command, options, job, plan.run_dir, guard, signals)


def apply_job_end(outcome: Outcome, end: JobEnd) -> Outcome:
    """Return the outcome of a job that its scheduler ended: it signals ranks, mpirun and ddlrun all at once."""
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
    import socket  # noqa: PLC0415 - 6 ms, for jobs over several hosts alone

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


def _keepalive_variables(major: int | None, heartbeat: float) -> dict[str, str]:
    """Return the variables with which a daemon that is cut off ends after twice the heartbeat, not after 8 minutes.

    Once a daemon has started a keeper, that ends it.
    """
    if major is None or not heartbeat:
        return {}
    idle = min(math.ceil(heartbeat), LONGEST_KEEPALIVE)
    values = {"time": idle, "intvl": math.ceil(idle / KEEPALIVE_PROBES), "probes": KEEPALIVE_PROBES}
    return {f"{KEEPALIVE[major]}_{name}": str(value) for name, value in values.items()}


def _session_variables(plan: Plan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that give mpirun, but not its daemons on other hosts, a folder of its own for its session.

    The default folder in /tmp is named after mpirun's process number. An mpirun that was killed leaves it
    behind, and one of Open MPI 5 that later gets the same number stops ("listener thread failed to start").
    """
    if is_own(plan.manager):  # it has none
        return ()
    all_local = plan.local_hosts.issuperset(plan.placement.hosts.names)
    # Under Open MPI 4.1, ranks stop if the variable is set. Keepers remove it, but spawned processes have none.
    spawns = plan.spawn_slots and plan.manager.major == 4 and not all_local
    if spawns or any(name in environ for name in (*SESSION_FOLDERS, *LOCAL_SESSION_FOLDERS)):
        return ()
    return SESSION_FOLDERS if all_local else LOCAL_SESSION_FOLDERS


@contextmanager
def _session_folder(path: str | None) -> Iterator[str | None]:
    """Make the folder of mpirun's session, and remove it afterwards; None where there is none or it cannot be made."""
    try:
        if path is not None:
            os.mkdir(path, 0o700)
    except OSError:  # mpirun then reports what is wrong with its temporary folder
        path = None
    if path is None:
        yield None
        return
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _stdin_variables(plan: Plan, options: SupervisionOptions) -> dict[str, str]:
    """Return the variables that name the ranks' standard input; empty where it is that of mpirun, which has none."""
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
