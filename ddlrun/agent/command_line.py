"""The command line of the root: the job, the ranks of each host, and the way to the other hosts."""

from __future__ import annotations

import binascii
import os

from ddlrun.agent.protocol import AgentJob, AgentTree, HostRanks
from ddlrun.keeper import record
from ddlrun.keeper.host_position import RankPositions
from ddlrun.keeper.protocol import ADDRESSES
from ddlrun.keeper.settings import SHIPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FAN_OUT = 64
USAGE = (
    "usage: start.py --hostfile=FILE [--local=HOST] [--via=WORD ...] [--fan-out=N] [--link=IN:OUT] [--export=NAME,...] "
    "-- PYTHON -I -S START ..."
)
# The words of a rank's command line before its program: Python and its options, and the script of keepers.
KEEPER_WORDS = 4


@record
class RootCommand:
    """What the root does."""

    job: AgentJob
    own: HostRanks | None
    """This host if it has ranks."""
    others: list[HostRanks]
    """The other hosts with ranks."""
    tree: AgentTree
    """The way to them."""
    link: list[int]
    """The descriptors of a connection to the ddlrun that has started their agents; empty: the root starts them."""


def read_command(words: list[str], environ: Mapping[str, str]) -> RootCommand:
    """Parse the command line.

    Raises:
        KeyError, ValueError, IndexError: The command line is malformed.
        OSError: The hostfile cannot be read.
    """
    options, program = _parse(words)
    hosts = _place_ranks(options["--hostfile"][0], environ)
    names = [name for text in options.get("--export", []) for name in text.split(",")]
    job = AgentJob(
        program=[word[1:] if word and not word.strip(":") else word for word in program[KEEPER_WORDS:]],
        folder="/" if SHIPPED in environ else os.getcwd(),  # keepers go to the files that were shipped
        name=_name_job(environ),
        size=sum(len(host.ranks) for host in hosts),
        environ={name: environ[name] for name in names if name in environ},
    )
    tree = AgentTree(
        launcher=options.get("--via", []),
        python=program[0],
        script=os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py"),
        fan_out=int(options.get("--fan-out", [environ.get("DDLRUN_FAN_OUT") or FAN_OUT])[0]),
        run=environ.get("DDLRUN_RUN", ""),
    )
    local = options.get("--local", [])
    own = next((host for host in hosts if host.name in local), None)
    link = [int(fd) for fd in options.get("--link", [""])[0].split(":") if fd]
    return RootCommand(job=job, own=own, others=[host for host in hosts if host is not own], tree=tree, link=link)


def _name_job(environ: Mapping[str, str]) -> str:
    """Return a name for the job, which agents of other jobs and other attempts do not have."""
    names = (environ.get(name, "") for name in ("DDLRUN_RUN", ADDRESSES))
    return "-".join(("ddlrun", *(f"{binascii.crc32(name.encode(errors='surrogateescape')):08x}" for name in names)))


def _parse(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options and their values, and the command line of a rank."""
    options: dict[str, list[str]] = {}
    end = words.index("--")
    for word in words[:end]:
        name, _, value = word.partition("=")
        options.setdefault(name, []).append(value)
    return options, words[end + 1 :]


def _place_ranks(hostfile: str, environ: Mapping[str, str]) -> list[HostRanks]:
    """Return the hosts of a hostfile with their ranks, by the topology of the job."""
    with open(hostfile, encoding="utf-8") as file:
        words = [line.split() for line in file if line.strip() and not line.startswith("#")]
    ranks: list[list[int]] = [[] for _ in words]
    for rank, (host, _) in enumerate(RankPositions(environ).all()):
        ranks[host].append(rank)
    hosts = (HostRanks(number=at, name=line[0], ranks=ranks[at]) for at, line in enumerate(words))
    return [host for host in hosts if host.ranks]
