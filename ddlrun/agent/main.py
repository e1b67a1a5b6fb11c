"""The process manager's main function: the root of the tree of agents, or an agent below it."""

from __future__ import annotations

import os
import signal
import sys

from ddlrun import __version__
from ddlrun.agent.frames import Channel
from ddlrun.agent.job import AgentJob, HostRanks
from ddlrun.agent.node import Node, complain
from ddlrun.errors import EXIT_BAD_INPUT, EXIT_PREFLIGHT
from ddlrun.rank.host_position import all_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

FAN_OUT = 64
USAGE = "usage: start.py --hostfile=FILE [--local=HOST] [--via=WORD ...] [--export=NAME,...] -- PYTHON -I -S START ..."
# The words of a rank's command line before its program: Python and its options, and the script of keepers.
KEEPER_WORDS = 4
AGENT_NAME, ROOT_NAME = "ddlrun-agent", "ddlrun-root"


def main(words: list[str], archive: int = -1) -> NoReturn:
    """Run the process manager or an agent, and exit.

    Args:
        words: The arguments.
        archive: The descriptor of the archive from which this agent's modules come; -1 if they are files.
    """
    if words == ["--version"]:
        sys.stdout.write(f"ddlrun {__version__}\n")
        sys.exit()
    if words == ["--agent"]:
        _run_agent(archive)
    _run_root(words)


def _run_agent(archive: int) -> NoReturn:
    """Greet the agent that has started this one, wait for the job, and stay until its ranks have ended."""
    _name_process(AGENT_NAME)
    parent = Channel(os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a keeper prints by itself
    node = Node(parent, __version__, (archive,))
    parent.send_bytes(f"@ddlrun-agent {__version__}\n".encode())
    import ddlrun.rank.entry  # noqa: F401, PLC0415 - while the job is on its way

    code = node.run()
    os._exit(code)


def _run_root(words: list[str]) -> NoReturn:
    """Run the job of the command line."""
    _name_process(ROOT_NAME)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # ddlrun ignores it; the ranks' programs must not inherit that
    try:
        options, program = _parse(words)
        job, own, others = _read_job(options, program, os.environ)
    except (KeyError, ValueError, IndexError):
        complain(USAGE)
        os._exit(EXIT_BAD_INPUT)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}")
        os._exit(EXIT_PREFLIGHT)
    node = Node(None, __version__)
    node.begin(job, own, others)
    os._exit(node.run())


def _parse(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options and their values, and the command line of a rank."""
    options: dict[str, list[str]] = {}
    end = words.index("--")
    for word in words[:end]:
        name, _, value = word.partition("=")
        options.setdefault(name, []).append(value)
    return options, words[end + 1 :]


def _read_job(
    options: Mapping[str, list[str]], program: list[str], environ: Mapping[str, str]
) -> tuple[AgentJob, HostRanks | None, list[HostRanks]]:
    """Return the job, this host, and the others."""
    hosts = _place_ranks(options["--hostfile"][0], environ)
    names = [name for text in options.get("--export", []) for name in text.split(",")]
    job = AgentJob(
        program=[word[1:] if word and not word.strip(":") else word for word in program[KEEPER_WORDS:]],
        launcher=options.get("--via", []),
        folder=os.getcwd(),
        size=sum(len(host.ranks) for host in hosts),
        fan_out=int(options.get("--fan-out", [str(FAN_OUT)])[0]),
        python=program[0],
        script=os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py"),
        environ={name: environ[name] for name in names if name in environ},
    )
    local = options.get("--local", [])
    own = next((host for host in hosts if host.name in local), None)
    return job, own, [host for host in hosts if host is not own]


def _place_ranks(hostfile: str, environ: Mapping[str, str]) -> list[HostRanks]:
    """Return the hosts of a hostfile with their ranks, by the topology of the job."""
    with open(hostfile, encoding="utf-8") as file:
        words = [line.split() for line in file if line.strip() and not line.startswith("#")]
    topology, order = environ["DDLRUN_TOPOLOGY"], environ["DDLRUN_RANK_ORDER"]
    size = _size(topology)
    ranks: list[list[int]] = [[] for _ in words]
    for rank, (host, _) in enumerate(all_places(size, topology, order)):
        ranks[host].append(rank)
    return [HostRanks(number, line[0], ranks[number]) for number, line in enumerate(words) if ranks[number]]


def _size(topology: str) -> int:
    """Return the number of ranks of a topology: XxYxZ, or a sum such as 3*2+1.

    >>> _size("2x4"), _size("3*2+1"), _size("4")
    (8, 7, 4)
    """
    if "+" in topology:
        parts = [part.rpartition("*") for part in topology.split("+")]
        return sum(int(hosts or 1) * int(ranks) for hosts, _, ranks in parts)
    size = 1
    for number in topology.split("x"):
        size *= int(number)
    return size


def _name_process(name: str) -> None:
    """Name this process, and its forks: what ends or spares the processes of a run knows them by that."""
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write(name)
    except OSError:  # the name is only a convenience where /proc cannot be written
        return
