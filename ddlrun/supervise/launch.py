"""The edge that turns a Plan into a run."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache

from ddlrun.hosts import HostList
from ddlrun.plan import Plan
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.supervision import LOOPBACK, SupervisionOptions
from ddlrun.remote.mpirun_process import copy_stdin
from ddlrun.remote.probe import is_local
from ddlrun.runs.registry import record_run
from ddlrun.runs.store import write_end
from ddlrun.schedulers import JobEnd
from ddlrun.supervise.run import run_job


def run(
    plan: Plan,
    watch: SupervisionOptions,
    environ: Mapping[str, str],
    sweep: Callable[[Sequence[str]], object],
    asked: Callable[[], JobEnd | None] = lambda: None,
) -> Outcome:
    """Start the job, stay with it to its end, and leave its output and outcome in the run folder.

    `sweep` ends what is left of the run on hosts where nobody else can; `asked` says whether the scheduler
    ended the job.
    """
    environ = {name: value for name, value in {**environ, **dict(plan.variables)}.items() if name not in plan.removed}
    local = is_local(plan.placement.hosts.names[0], os.uname().nodename)
    if local and not os.isatty(0):
        environ["DDLRUN_STDIN"] = _own_stdin()
    through_mpirun = "DDLRUN_STDIN" not in environ and not os.isatty(0)
    known = () if watch.addresses == LOOPBACK else watch.addresses
    addresses = tuple(dict.fromkeys((*known, *_own_addresses(plan.placement.hosts))))
    watch = watch._replace(ranks=plan.placement.topology.size, addresses=addresses, host_of=_hosts_by_rank(plan))
    environ["DDLRUN_RUN"] = plan.run_id
    with _session_folder(plan, environ) as session, record_run(plan, environ):
        done = run_job(plan.argv, {**environ, **session}, watch, plan.run_dir, stdin=through_mpirun)
    if done.unswept:
        sweep(sorted(done.unswept))
    outcome = done.outcome
    if outcome.exit_code and (outcome.root is None or outcome.root.signal) and (end := asked()) is not None:
        outcome = _by_scheduler(outcome, end)
    write_end(plan, done.bound, outcome)
    return outcome


def _by_scheduler(outcome: Outcome, end: JobEnd) -> Outcome:
    """Return the outcome of a job that its scheduler ended: it signals ranks, mpirun and us all at once."""
    ends = tuple(one._replace(ordered=True) if one.signal else one for one in outcome.ends)
    return outcome._replace(
        exit_code=end.exit_code, signal=None, reason=end.reason, root=None, ends=ends, lost=(), wanted=True
    )


def _hosts_by_rank(plan: Plan) -> Callable[[int], str]:
    @cache
    def hosts() -> dict[int, str]:
        return {placed.rank: placed.host.name for placed in plan.placement.by_host()}

    return lambda rank: hosts()[rank]


def _own_addresses(hosts: HostList) -> tuple[str, ...]:
    """Return this machine's addresses that the job's hosts reach: those from which it would talk to them."""
    own_name = os.uname().nodename
    others = [name for name in hosts.names if not is_local(name, own_name)]
    if not others:
        return LOOPBACK
    import socket  # noqa: PLC0415 - 6 ms, for jobs over several hosts alone

    found: dict[str, None] = {}
    for name in others[:8]:
        try:
            candidates = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, _, _, address in candidates:
            with suppress(OSError), socket.socket(family, kind) as probe_socket:
                probe_socket.connect(address)  # sends nothing: it only asks the routes
                found[str(probe_socket.getsockname()[0])] = None
    return tuple(found) or (own_name,)


@contextmanager
def _session_folder(plan: Plan, environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Give mpirun a new folder for its session, where all ranks are on this host, and remove it afterwards.

    Its own in /tmp has the process's number: an mpirun that was killed leaves it behind, and one of Open
    MPI 5 that later gets the same number stops ("listener thread failed to start").
    """
    names = ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")
    alone = all(is_local(name, os.uname().nodename) for name in plan.placement.hosts.names)
    if not alone or any(name in environ for name in names):
        yield {}
        return
    path = f"{environ.get('TMPDIR') or '/tmp'}/ddlrun-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108
    try:
        os.mkdir(path, 0o700)
    except OSError:  # mpirun then says what is wrong with its temporary folder
        yield {}
        return
    try:
        yield dict.fromkeys(names, path)
    finally:
        import shutil  # noqa: PLC0415 - 2 ms that can wait to the end

        shutil.rmtree(path, ignore_errors=True)


def _own_stdin() -> str:
    """Return where rank 0 finds our standard input, as its keeper reads it: a path, and a file's offset."""
    path = f"/proc/{os.getpid()}/fd/0"
    mode = os.fstat(0).st_mode
    if stat.S_ISREG(mode):
        return f"{path}@{os.lseek(0, 0, os.SEEK_CUR)}"
    return path if os.access(path, os.R_OK) and not stat.S_ISSOCK(mode) else f"/proc/{os.getpid()}/fd/{copy_stdin()}"
