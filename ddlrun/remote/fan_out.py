"""One sh script per host, on all hosts at once: by ssh, a scheduler's command or an agent."""

from collections.abc import Mapping

from ddlrun.errors import EXIT_UNREACHABLE, InputError
from ddlrun.host_names import check_host_name
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.slurm_step import run_in_step
from ddlrun.wording import printable

FANOUT = 128


def run_on_hosts(
    scripts: Mapping[str, str], agents: AgentLauncher, timeout: float, fanout: int = FANOUT
) -> dict[str, FinishedProcess]:
    """Run each host's sh script there, all within a time limit in seconds; no password is ever asked for.

    A keeper may report any text as the name of its host. ClusterShell would read some of them as patterns, and ssh as
    options: where a name is not that of a host nothing is started, and the reply is the reason.
    """
    replies = {name: reply for name in scripts if (reply := _refuse(name)) is not None}
    scripts = {name: script for name, script in scripts.items() if name not in replies}
    if not scripts:
        return replies
    if agents.launcher == "srun":
        return {**replies, **run_in_step(scripts, agents.words, timeout)}
    from ddlrun.remote.cluster_shell import run_by_cluster_shell  # noqa: PLC0415 - 75 ms, not with srun

    return {**replies, **run_by_cluster_shell(scripts, agents, timeout, fanout)}


def _refuse(name: str) -> FinishedProcess | None:
    """Return the reply for a name that is not that of a host; None for a host."""
    try:
        check_host_name(name, "nothing was started there")
    except InputError as error:
        return FinishedProcess(EXIT_UNREACHABLE, "", printable(str(error)))
    return None
