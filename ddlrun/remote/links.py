"""The links to the hosts of a command or a launch, over which sh scripts run there."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddlrun.remote.agent import AgentLauncher

# ssh ends after this many unanswered keepalive messages, and after this many seconds without a heartbeat.
KEEPALIVES, KEEPALIVE_SECONDS = 5, 120.0

if TYPE_CHECKING:
    from ddlrun.remote.processes import FinishedProcess


class HostLinks:
    """The links to hosts, from the first script to `close`."""

    def __init__(self, launcher: AgentLauncher, run: str = "", heartbeat: float = 0.0) -> None:
        """Begin without any.

        Args:
            launcher: The launcher that leads to the hosts.
            run: The name of the run; empty where there is none.
            heartbeat: The seconds after which a silent host counts as lost; 0: a default.
        """
        self.launcher = launcher
        self._run = run
        self._reached_by = _add_keepalive(launcher, heartbeat)

    def run(self, scripts: Mapping[str, str], seconds: float) -> "dict[str, FinishedProcess]":
        """Run each host's sh script there, all at once, each within a time limit in seconds."""
        from ddlrun.remote.fan_out import run_on_hosts  # noqa: PLC0415 - 2 ms, for jobs over several hosts alone

        return run_on_hosts(scripts, self._reached_by, seconds)

    def close(self) -> None:
        """Close all links."""


def _add_keepalive(launcher: AgentLauncher, heartbeat: float) -> AgentLauncher:
    """Return the launcher, with options by which ssh gives a silent host up."""
    if launcher.launcher != "ssh":
        return launcher
    interval = math.ceil((heartbeat or KEEPALIVE_SECONDS) / KEEPALIVES)
    words = ("-o", f"ServerAliveInterval={interval}", "-o", f"ServerAliveCountMax={KEEPALIVES}")
    return launcher._replace(words=(*words, *launcher.words))
