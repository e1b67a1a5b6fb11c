"""Run mpirun, and stay with its job to the end."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.plan.outcome import Outcome
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.rank import protocol
from ddlrun.remote.mpirun_process import start_mpirun
from ddlrun.remote.sessions import end_session, guarded
from ddlrun.supervise.event_loop import SLACK_SECONDS, Supervision
from ddlrun.supervise.listener import Listener, allow_files, check_files
from ddlrun.supervise.signals import Signals


class FinishedJob(NamedTuple):
    """What is known of a job that is over."""

    outcome: Outcome
    bound: tuple[str, ...]
    unswept: frozenset[str]


def run_job(
    argv: Sequence[str], environ: Mapping[str, str], watch: SupervisionOptions, files: RunDir, *, stdin: bool
) -> FinishedJob:
    """Run mpirun and stay with its job: pass on what ranks write as it comes, forward signals, end it whole.

    mpirun gets our standard input where `stdin` is true. The first of SIGINT, SIGTERM and SIGHUP ends the
    ranks in `watch.grace` seconds, the second at once. Raises OSError where mpirun cannot be started, PreflightError
    where there are too many ranks for the files that this process may open.
    """
    check_files(watch.ranks)
    listener = Listener(watch.addresses)
    try:
        variables = {
            protocol.ADDRESSES: listener.variable(), "DDLRUN_GRACE": str(watch.grace),
            "DDLRUN_HEARTBEAT": str(watch.heartbeat),
        }  # fmt: skip
        with Signals(watch.forward) as signals:
            supervision = Supervision(watch, files, listener)
            process = start_mpirun(argv, {**environ, **variables}, stdin=stdin)
            allow_files(watch.ranks)
            with process, guarded(process.pid, watch.grace + SLACK_SECONDS):
                try:
                    outcome = supervision.run(process, signals)
                finally:
                    if process.poll() is None or process.returncode:
                        end_session(process.pid)
        return FinishedJob(outcome, tuple(supervision.bound), frozenset(supervision.unswept))
    finally:
        listener.socket.close()
