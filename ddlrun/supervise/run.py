"""A job's process manager and its supervision."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.plan.outcome import Outcome
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisedJob, SupervisionOptions
from ddlrun.rank import protocol
from ddlrun.remote.manager_start import start_manager
from ddlrun.remote.sessions import end_session
from ddlrun.supervise.event_loop import Supervision
from ddlrun.supervise.listener import Listener, allow_files
from ddlrun.supervise.signals import Signals


class ManagerCommand(NamedTuple):
    """The command that starts the process manager, and its environment, to which the keepers' variables are added."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    session_folder: str | None = None
    """The folder of the process manager's session files, if it has one of its own."""


class FinishedJob(NamedTuple):
    """A job that has ended."""

    outcome: Outcome
    cause_in_view: bool
    """Whether the last lines of the rank that failed first are the last on the console."""
    taken_port: int | None
    """A port of a failed rank that another process has taken."""
    bound: tuple[str, ...]
    """The reports of the ranks' bindings."""
    unswept: frozenset[str]
    """Hosts on which processes of the job may be left."""
    unwatched: frozenset[str]
    """Hosts on which the process manager's daemon, or our agent, may be left, as no keeper sees to its end."""
    session_folder: str | None
    """The folder of the process manager's session files, if it had one of its own."""
    daemon_folders: Mapping[str, str]
    """Host -> the folder of the session files of the process manager's daemon, where a keeper has reported it."""


def run_job(
    command: ManagerCommand,
    options: SupervisionOptions,
    job: SupervisedJob,
    files: RunDir,
    guard: Callable[[int], None],
    signals: Signals,
) -> FinishedJob:
    """Run a process manager and supervise its job: pass on output, forward signals, end the job as a whole.

    The first signal of `signals.ENDING` ends the ranks within `options.grace` seconds, the second at once.

    Args:
        command: The command of the process manager.
        options: The options of the supervision.
        job: The ranks, their hosts, and the addresses for their keepers.
        files: The run folder.
        guard: The function that is given the process manager's session: see guard_session.
        signals: The context of signals, which are queued from the start of the process manager on.

    Raises:
        OSError: The process manager cannot be started.
    """
    listener = Listener(job.addresses, options.encryption)
    variables = {
        protocol.ADDRESSES: listener.variable(),
        "DDLRUN_GRACE": str(options.grace),
        "DDLRUN_HEARTBEAT": str(options.heartbeat),
    }
    try:
        signals.queue()
        process = start_manager(command.argv, {**command.environ, **variables})
        guard(process.pid)
        allow_files(job.ranks)
        with process:
            try:
                supervision = Supervision(options, job, files, listener, process)
                outcome = supervision.run(signals)
            finally:
                if process.poll() is None or process.returncode:
                    end_session(process.pid)
        record = supervision.record
        return FinishedJob(
            outcome=outcome,
            cause_in_view=supervision.cause_in_view,
            taken_port=record.taken_port,
            bound=tuple(record.bindings.values()),
            unswept=record.unswept_hosts(),
            unwatched=record.unwatched_hosts(job.host_names),
            session_folder=command.session_folder,
            daemon_folders=record.folders_of_daemons(),
        )
    finally:
        listener.close()
