"""The launch of a plan: the process manager's environment and standard input, and the supervised run."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.agent.protocol import AgentJob, HostRanks
from ddlrun.keeper import protocol
from ddlrun.keeper.program_streams import VARIABLE
from ddlrun.keeper.settings import SHIPPED
from ddlrun.listening import own_addresses
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.plan import STDIN, Plan
from ddlrun.plan.supervision import InputMode, RankInput, SupervisedJob, SupervisionOptions
from ddlrun.remote.links import HostLinks
from ddlrun.remote.manager_session import Process, copy_stdin, end_session, guard_session, start_manager
from ddlrun.remote.system_limits import allow_files
from ddlrun.supervise.ending import DAEMON_SECONDS, SLACK_SECONDS
from ddlrun.supervise.listener import Listener
from ddlrun.supervise.ranks import Ranks
from ddlrun.supervise.relays import RELAY, Relays
from ddlrun.supervise.signals import Signals
from ddlrun.supervise.standard_input import input_variable
from ddlrun.supervise.supervision import Supervision

if TYPE_CHECKING:
    from ddlrun.agent.job import Job

# A connection, a log, and a relay, of which a host has one.
FILES_PER_RANK = 3


class FinishedJob(NamedTuple):
    """A job that has ended."""

    outcome: Outcome
    cause_in_view: bool
    """Whether the last lines of the rank that failed first are the last on the console."""
    ranks: Ranks
    session_folder: str | None
    """The folder of the process manager's session files, if it had one of its own."""


def run_plan(
    plan: Plan, options: SupervisionOptions, environ: Mapping[str, str], signals: Signals, *, links: HostLinks
) -> FinishedJob:
    """Start the job of a plan and supervise it to its end: pass on output, forward signals, end the job as a whole.

    Signals are queued from the start on; those that arrive after the end stay in the queue. The first of
    `signals.ENDING` ends the ranks within `options.grace` seconds, the second at once. The output goes to the run
    folder too. Raises OSError where the process manager cannot be started.
    """
    if options.input is None and VARIABLE in dict(plan.unsupervised) and not os.isatty(0):
        options = options._replace(input=RankInput(0, InputMode.PIPE))  # rank 0 is on another host
    job = _supervised_job(plan)
    environ = _environment(plan, options, environ)
    all_local = plan.local_hosts.issuperset(job.host_names)
    folder_names = plan.manager.session_variables(environ, local=all_local, spawns=plan.spawn_slots > 0)
    relay_variables = _relay_variables(plan, environ, links)
    path = f"{environ.get('TMPDIR') or '/tmp'}/ddlrun-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108
    with (
        guard_session(options.grace + SLACK_SECONDS, path) as guard,
        _session_folder(path if folder_names or relay_variables else None) as folder,
        closing(Listener(job.addresses, options.encryption)) as listener,
        links.agents.lead(_other_hosts(plan)) if plan.manager.uses_agents else nullcontext() as agents,
        _open_relays(plan, links, options.grace, relay_variables, folder) as relays,
    ):
        session = {} if folder is None else dict.fromkeys(folder_names, folder)
        relayed = {} if relays is None else relays.variables
        signals.queue()
        addresses = {protocol.ADDRESSES: listener.variable()}
        process = _start(plan, agents, {**environ, **session, **addresses, **relayed})
        guard(process.pid)
        allow_files(FILES_PER_RANK * job.ranks)
        with process:
            try:
                supervision = Supervision(options, job, plan.run_dir, listener, process, signals, relays)
                if agents is not None or relays is not None:
                    supervision.attend(links.agents.loop, agents)
                outcome = supervision.run()
            finally:  # an ssh client may outlive Open MPI 4.1 even after success, if the network was cut meanwhile
                end_session(process.pid)
        return FinishedJob(outcome, supervision.cause_in_view, supervision.ranks, folder if folder_names else None)


def _other_hosts(plan: Plan) -> Sequence[str]:
    return [name for name in plan.placement.hosts.names if name not in plan.local_hosts]


def describe_relays(plan: Plan, environ: Mapping[str, str]) -> Sequence[str]:
    """Return a note where the process manager has to start its daemons by itself."""
    obstacle = _find_relay_obstacle(plan, environ) if _other_hosts(plan) else None
    return [f"{plan.manager.name} connects to each host once more, for its daemon: {obstacle}"] if obstacle else []


def _find_relay_obstacle(plan: Plan, environ: Mapping[str, str]) -> str | None:
    """Return the reason why the process manager starts its daemons by itself; None: ddlrun does so over its links."""
    own = {name: value for name, value in environ.items() if name not in dict(plan.variables)}
    return plan.manager.find_relay_obstacle(RELAY, own)


def _relay_variables(plan: Plan, environ: Mapping[str, str], links: HostLinks) -> Mapping[str, str]:
    """Return the variables of a process manager that starts relays; none if it starts its daemons itself, or none."""
    if not (_other_hosts(plan) and links.launcher.starts_daemons) or _find_relay_obstacle(plan, environ) is not None:
        return {}
    return plan.manager.relay_variables(RELAY, len(plan.placement.hosts.names))


@contextmanager
def _open_relays(
    plan: Plan, links: HostLinks, grace: float, variables: Mapping[str, str], folder: str | None
) -> Iterator[Relays | None]:
    """Provide what serves the relays of a job, in a folder of the session; None if there are none."""
    if not variables or folder is None:
        yield None
        return
    links.agents.link(_other_hosts(plan))
    with closing(Relays(links, plan.placement.hosts.names, variables, grace + DAEMON_SECONDS, folder)) as relays:
        yield relays


def _start(plan: Plan, agents: "Job | None", environ: Mapping[str, str]) -> Process:
    """Start the process manager, or this host's agent and the job over all agents. Raises OSError."""
    argv, arguments = plan.short_command()
    if agents is None:
        return start_manager(argv, {**environ, **arguments})
    try:
        process = start_manager(argv, environ, *agents.descriptors)
    finally:
        agents.started()
    _begin(plan, agents, environ)
    return process


def _begin(plan: Plan, agents: "Job", environ: Mapping[str, str]) -> None:
    """Let agents start the ranks."""
    names, topology = plan.placement.hosts.names, plan.placement.topology
    ranks = [topology.ranks_of(at, plan.placement.order) for at in range(len(names))]
    hosts = [HostRanks(number=at, name=name, ranks=ranks[at]) for at, name in enumerate(names) if ranks[at]]
    job = AgentJob(
        program=plan.program,
        folder="/" if SHIPPED in environ else os.getcwd(),  # keepers go to the files that were shipped
        name=f"ddlrun-{os.urandom(8).hex()}",
        size=topology.size,
        environ={name: environ[name] for name in plan.exports if name in environ},
    )
    own = next((name for name in names if name in plan.local_hosts), "")
    agents.begin(job, hosts, own, float(environ["DDLRUN_GRACE"]))


def _supervised_job(plan: Plan) -> SupervisedJob:
    return SupervisedJob(
        topology=plan.placement.topology,
        order=plan.placement.order,
        host_names=plan.placement.hosts.names,
        addresses=own_addresses(_other_hosts(plan), plan.own_address),
        manager=plan.manager,
    )


def _environment(plan: Plan, options: SupervisionOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the process manager, without its session and the addresses for keepers."""
    keepalive = plan.manager.keepalive_variables(options.heartbeat) if options.heartbeat else {}
    own = {
        "DDLRUN_RUN": plan.run_id,
        "DDLRUN_PID": str(os.getpid()),
        "DDLRUN_GRACE": str(options.grace),
        "DDLRUN_HEARTBEAT": str(options.heartbeat),
    }
    variables = {**keepalive, **environ, **dict(plan.variables), **own, **_stdin_variables(plan, options)}
    return {name: value for name, value in variables.items() if name not in plan.removed}


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
    unused = {name: "" for name, _ in plan.unsupervised if name == VARIABLE}  # a manager may warn if it is missing
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
