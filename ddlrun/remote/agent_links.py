"""The links to agents on hosts, which run sh scripts and tasks, and the ranks of ddlrun's own process manager.

See agent/children.py.
"""

import itertools
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from ddlrun.agent import protocol
from ddlrun.agent.archive import PACKAGE
from ddlrun.agent.child import divide
from ddlrun.agent.children import Children
from ddlrun.agent.job import Job
from ddlrun.agent.protocol import IDLE_SECONDS, AgentTree, LostHost, ProgramEnd, ProgramOutput, ProgramRequest
from ddlrun.errors import InputError
from ddlrun.hosts import fold, parse_hosts
from ddlrun.keeper.protocol import VERSION
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.fan_out import run_on_hosts
from ddlrun.remote.processes import FinishedProcess, start_command
from ddlrun.remote.round import Round
from ddlrun.remote.system_limits import allow_files
from ddlrun.remote.tasks import as_scripts
from ddlrun.wire.loop import Loop

CONNECT_SECONDS = 10.0
# An agent without work ends after this many heartbeats without a message, but not before the first time; with
# `--heartbeat 0` after the second.
IDLE_HEARTBEATS = 4
LEAST_IDLE, LONGEST_IDLE = 10.0, 86400.0
# The pipes of a launcher, and the file by which its end is seen.
FILES_PER_LINK = 4
# A Slurm host that is down is reported as "down", one that does not respond has a "*" behind its state.
DOWN = r"down|fail|.*\*$"


class HostEvents(Protocol):
    """What takes the events of a script on hosts."""

    def on_output(self, output: ProgramOutput, /) -> None:
        """Take what it has written."""

    def on_end(self, end: ProgramEnd, /) -> None:
        """Take its end on a host."""

    def on_loss(self, lost: LostHost, /) -> None:
        """Take the end of a link, to one of its hosts or another."""


class AgentLinks:
    """The links to agents."""

    def __init__(self, launcher: AgentLauncher, *, run: str, fan_out: int, heartbeat: float | None) -> None:
        """Begin without any.

        Args:
            launcher: The launcher for the hosts.
            run: The name of the run; empty where there is none.
            fan_out: The number of agents that are started from here, where these can start the others.
            heartbeat: See HostLinks.
        """
        self._launcher, self._run, self._fan_out, self._idle = launcher, run, fan_out, idle_seconds(heartbeat)
        self.loop = Loop()
        """Where all events of links happen."""
        self._children = Children(self.loop, self._report, VERSION)
        self._numbers = itertools.count(protocol.LOGIN + 1)
        self._scripts: dict[int, HostEvents] = {}
        """The number of each script that may still run -> what takes its events."""
        self._direct: set[str] = set()
        """The hosts whose agents were started from here."""
        self._lost: set[str] = set()
        self._without_agent: set[str] = set()
        self._printed: dict[str, bytes] = {}
        """What the logins of hosts have printed, until the next reply."""
        self._job: Job | None = None

    # -- scripts ----------------------------------------------------------------------------------

    def run(self, texts: Mapping[str, str], seconds: float, module: str = "") -> dict[str, FinishedProcess]:
        """Run each host's sh script there, all at once, each within a time limit in seconds.

        With a module, the texts are the JSON of its tasks instead. No password is ever asked for. Where no agent can
        run, as there is no Python, the launcher runs the script.
        """
        end = time.monotonic() + seconds
        this = Round(texts, module, self._without_agent)
        self._start_round(this, tuple(this.unfinished), seconds)
        while (again := this.take_again(self._direct)) or (this.unfinished and time.monotonic() < end):
            if again:
                self._open(again, seconds, fan_out=len(again))
                self._start_round(this, again, seconds)
            else:
                self.loop.wait(end - time.monotonic())
        for number in [number for number, events in self._scripts.items() if events is this]:
            self.stop(number)
        for host in self._printed.keys() & this.texts.keys():
            this.add_printed(host, self._printed.pop(host))
        self._without_agent |= this.without_agent
        others = as_scripts({name: texts[name] for name in this.without_agent}, module)
        if self._launcher.launcher == "srun":
            this.explain(_explain_slurm_hosts(self._launcher.words[0].partition("=")[2], this.unreached))
        return {**this.replies(), **run_on_hosts(others, self._launcher, max(1.0, end - time.monotonic()))}

    def _start_round(self, this: Round, hosts: Collection[str], seconds: float) -> None:
        self.link(hosts, seconds)
        groups: dict[str, list[str]] = {}
        for host in hosts:
            groups.setdefault(this.texts[host], []).append(host)
        for text, names in groups.items():
            self.start(text, names, this, module=this.module, seconds=seconds)

    def start(
        self, text: str, hosts: Collection[str], events: HostEvents, *, module: str = "", seconds: float = 0.0,
        linger: float = 0.0,
    ) -> int:  # fmt: skip
        """Start a script on hosts, or a task; return its number.

        Args:
            text: The script for sh, or the JSON of the task.
            hosts: The hosts.
            events: What takes its events: within waits of the loop, and the loss of a link also within this call.
            module: The module of the task; empty: there is none.
            seconds: The time limit on each host; 0: there is none.
            linger: The seconds that it may go on after the end of the link.
        """
        self.link(hosts)
        number = next(self._numbers)
        self._scripts[number] = events
        # The braces make sh parse all of a script before it runs any.
        whole = (text if module else f"{{\n{text}\n}}\n").encode(errors="surrogateescape")
        request = ProgramRequest(
            number=number, seconds=seconds, linger=linger, hosts=tuple(hosts), script=whole, module=module
        )
        self._children.run(request)
        return number

    def stop(self, number: int) -> None:
        """End a script on all its hosts. There are no more events of it."""
        if self._scripts.pop(number, None) is not None:
            self._children.stop(number)

    # -- links ------------------------------------------------------------------------------------

    def link(self, hosts: Collection[str], seconds: float = CONNECT_SECONDS) -> None:
        """Open the links to hosts that there are not, or no longer; ssh may take some seconds to connect."""
        known = self._children.names - self._lost
        missing = [name for name in hosts if name not in known]
        if missing:
            fan_out = self._fan_out if self._launcher.works_everywhere else len(missing)
            self._open(missing, seconds, fan_out=fan_out)

    def _open(self, hosts: Collection[str], seconds: float, *, fan_out: int) -> None:
        tree = AgentTree(
            launcher=_limit(self._launcher, min(CONNECT_SECONDS, seconds)).shell,
            python=sys.executable,
            script=f"{PACKAGE}/agent/start.py",
            fan_out=fan_out,
            run=self._run,
            idle=self._idle,
        )
        self._lost.difference_update(hosts)
        self._direct.difference_update(hosts)
        self._direct.update(part[0] for part in divide(tuple(hosts), fan_out))
        allow_files(FILES_PER_LINK * min(len(hosts), fan_out))
        self._children.open(tree, tuple(hosts))

    def drop(self, hosts: Collection[str]) -> None:
        """Give up the links to lost hosts, which may look alive for a while."""
        lost = self._children.names.intersection(hosts)
        self._lost.update(lost)
        self._children.drop(lost)

    def close(self, *, at_once: bool) -> list[str]:
        """Close all links, which ends what runs on them; see HostLinks."""
        try:
            return self._children.dismiss(self.loop.wait, at_once=at_once)
        finally:
            self.loop.close()

    # -- jobs -------------------------------------------------------------------------------------

    @contextmanager
    def lead(self, hosts: Collection[str]) -> Iterator[Job]:
        """Start a job over the agents on hosts; on exit, the agents end all ranks."""
        self.link(hosts)
        while not self._children.over:  # ranks of the attempt before
            self.loop.wait()
        self._job = job = Job(self.loop, self._children)
        try:
            yield job
        finally:
            job.close()
            self._job = None

    def _report(self, kind: bytes, text: bytes) -> None:
        """Pass a message of the agents on."""
        if kind == protocol.OUTPUT:
            output = ProgramOutput.parse(text)
            if output.number == protocol.LOGIN:
                self._printed[output.host] = output.data
            elif output.number in self._scripts:
                self._scripts[output.number].on_output(output)
        elif kind == protocol.ENDED:
            end = ProgramEnd.parse(text)
            if end.number in self._scripts:
                self._scripts[end.number].on_end(end)
        else:
            if kind == protocol.LOST:
                self._on_loss(LostHost.parse(text))
            if self._job is not None:
                self._job.report(kind, text)

    def _on_loss(self, lost: LostHost) -> None:
        self._lost.update((lost.name, *lost.below))
        for events in {id(events): events for events in self._scripts.values()}.values():
            events.on_loss(lost)


def idle_seconds(heartbeat: float | None) -> float:
    """Return the seconds without a message after which an agent ends: see HostLinks for the heartbeat."""
    if heartbeat is None:
        return IDLE_SECONDS
    return max(LEAST_IDLE, IDLE_HEARTBEATS * heartbeat) if heartbeat else LONGEST_IDLE


def _limit(launcher: AgentLauncher, seconds: float) -> AgentLauncher:
    """Return the launcher, with options by which ssh connects in some seconds, unless the user has set another time.

    Nor does it carry the connections of others, which would end with the link, or keep it from ending.
    """
    if launcher.launcher != "ssh":
        return launcher
    options = (f"-oConnectTimeout={max(1, int(seconds))}", "-oForwardX11=no", "-oControlMaster=no")
    return launcher._replace(words=(*launcher.words, *options))


def _explain_slurm_hosts(job: str, names: Collection[str]) -> dict[str, str]:
    """Return those of some hosts of a Slurm job on which no step can start, and the reasons, as Slurm has them.

    A host that was down and is up again is idle for Slurm, but lost for the job.
    """
    if not names:
        return {}
    states = start_command(["sinfo", "--noheader", "--Node", f"--nodes={fold(names)}", "--format=%N %T"])
    lines = start_command(["squeue", "--noheader", f"--jobs={job}", "--format=%A %N"])().out.splitlines()
    hosts_of_job = [words[1] for words in map(str.split, lines) if len(words) == 2 and words[0] == job]
    reasons: dict[str, str] = {}
    with suppress(InputError):  # a list that only Slurm can read says nothing about lost hosts
        lost = set(names) - set(parse_hosts(hosts_of_job[0]).names) if hosts_of_job else ()
        reasons |= dict.fromkeys(lost, "it is not in the Slurm job any more")
    rows = (line.split() for line in states().out.splitlines())
    state_of = {row[0]: row[1] for row in rows if len(row) == 2}
    return reasons | {name: f"Slurm says: {state}" for name, state in state_of.items() if re.match(DOWN, state)}
