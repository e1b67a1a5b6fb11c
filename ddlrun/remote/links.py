"""The links to the hosts of a command or a launch: one connection per host, over which everything there is done."""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.fan_out import refuse, run_on_hosts
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.tasks import as_scripts

if TYPE_CHECKING:
    from ddlrun.remote.agent_links import AgentLinks

# The number of agents that are started from here where they can start the others.
FAN_OUT = 64
# ssh ends after this many unanswered keepalive messages, and after this many seconds without a heartbeat.
KEEPALIVES, KEEPALIVE_SECONDS = 5, 120.0


class HostLinks:
    """The links to hosts, from the first script to `close`. Each is opened when it is first needed."""

    def __init__(
        self, launcher: AgentLauncher, *, run: str = "", heartbeat: float | None = None, fan_out: int = FAN_OUT
    ) -> None:
        """Begin without any.

        Args:
            launcher: The launcher for the hosts.
            run: The name of the run; empty where there is none.
            heartbeat: The seconds after which ssh gives a silent host up; 0: it does not; None: a default. Agents
                without work end after some heartbeats.
            fan_out: The number of agents that are started from here, where these can start the others.
        """
        self.launcher = launcher
        self._via, self._heartbeat = _add_keepalive(launcher, heartbeat), heartbeat
        self.run_id, self._fan_out = run, fan_out
        self._agents: AgentLinks | None = None

    @property
    def agents(self) -> "AgentLinks":
        """The links to agents."""
        if self._agents is None:
            from ddlrun.remote.agent_links import AgentLinks  # noqa: PLC0415 - 5 ms, for jobs over several hosts alone

            self._agents = AgentLinks(self._via, run=self.run_id, fan_out=self._fan_out, heartbeat=self._heartbeat)
        return self._agents

    def open(self, hosts: Collection[str], seconds: float) -> None:
        """Begin to open the links that the next `run` needs, each within a time limit in seconds.

        Names that are not those of hosts are left to that.
        """
        if self.launcher.passes_stdin:
            self.agents.link([name for name in hosts if refuse(name) is None], seconds)

    def run(self, texts: Mapping[str, str], seconds: float, module: str = "") -> dict[str, FinishedProcess]:
        """Run each host's sh script there, all at once, each within a time limit in seconds; see AgentLinks.run."""
        if not self.launcher.passes_stdin:
            return run_on_hosts(as_scripts(texts, module), self._via, seconds)
        try:
            return self.agents.run(texts, seconds, module)
        except BaseException:  # messages may have been read in part
            self.close()
            raise

    def drop(self, hosts: Collection[str]) -> None:
        """Give up the links to lost hosts, which may look alive for a while."""
        if self._agents is not None:
            self._agents.drop(hosts)

    def close(self, *, at_once: bool = False) -> list[str]:
        """Close all links, which ends what runs on them; return the hosts whose agents did not end.

        They may be opened again. A launcher such as ssh has some seconds to end where its network is cut, unless it is
        to end at once.
        """
        if self._agents is None:
            return []
        agents, self._agents = self._agents, None
        return agents.close(at_once=at_once)


def _add_keepalive(launcher: AgentLauncher, heartbeat: float | None) -> AgentLauncher:
    """Return the launcher, with options by which ssh gives a silent host up."""
    if launcher.launcher != "ssh" or heartbeat == 0:
        return launcher
    interval = math.ceil((heartbeat or KEEPALIVE_SECONDS) / KEEPALIVES)
    words = ("-o", f"ServerAliveInterval={interval}", "-o", f"ServerAliveCountMax={KEEPALIVES}")
    return launcher._replace(words=(*words, *launcher.words))
