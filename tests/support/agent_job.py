"""A job of ddlrun's agents without ddlrun: `python -m tests.support.agent_job [OPTION=VALUE ...] -- PROGRAM ...`.

What ends the job is written to standard error, and its exit code is that of this program.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing

from ddlrun.agent.archive import PACKAGE
from ddlrun.agent.children import Children
from ddlrun.agent.job import Job
from ddlrun.agent.protocol import HERE, AgentJob, AgentTree, HostRanks
from ddlrun.keeper.forks import complain
from ddlrun.keeper.host_position import RankPositions
from ddlrun.keeper.protocol import VERSION
from ddlrun.managers.end import EndCode, ManagerOutput
from ddlrun.managers.own import own_manager
from ddlrun.remote.manager_session import end_session
from ddlrun.wire.loop import READ, Loop

START = f"{PACKAGE}/agent/start.py"


def job_environ(topology: str) -> dict[str, str]:
    """Return the variables of a job."""
    names = "DDLRUN_RANK DDLRUN_LOCAL_RANK DDLRUN_SIZE"
    return {
        "DDLRUN_TOPOLOGY": topology, "DDLRUN_RANK_ORDER": "host", "DDLRUN_RANK_VARIABLES": names, "DDLRUN_GRACE": "60",
    }  # fmt: skip


def start_job(
    job: Job, program: Sequence[str], hosts: Sequence[str], environ: Mapping[str, str], local: str = "",
    start: str = START, before: Sequence[str] = (),
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a job over linked hosts and perhaps this one, which the topology divides; return this host's agent.

    `before` are the words before the command line of the agent.
    """
    argv = [*before, sys.executable, "-I", "-S", start, HERE]
    reads, writes = job.descriptors
    agent = subprocess.Popen(argv, stdin=reads, stdout=writes, env={**os.environ, **environ}, start_new_session=True)
    job.started()
    ranks: list[list[int]] = [[] for _ in hosts]
    for rank, (host, _) in enumerate(RankPositions(environ).all()):
        ranks[host].append(rank)
    placed = [HostRanks(number=at, name=name, ranks=ranks[at]) for at, name in enumerate(hosts)]
    size = sum(map(len, ranks))
    agent_job = AgentJob(program=program, folder=os.getcwd(), name="job", size=size, environ=environ)
    job.begin(agent_job, placed, local, float(environ["DDLRUN_GRACE"]))
    return agent


def _complain(kind: bytes, text: bytes) -> None:
    for finding in own_manager("").read_end(ManagerOutput(0, reports=[(kind, text)])):
        if finding.code is not EndCode.EXITED_RANK:
            complain(finding.text)


def main(words: Sequence[str]) -> int:
    """Run the job of a command line to its end; return its exit code."""
    end = words.index("--")
    options = dict(word.split("=", 1) for word in words[:end])
    hosts, local = options["--hosts"].split(","), options.get("--local", "")
    start = options.get("--start", START)
    tree = AgentTree(
        launcher=shlex.split(options.get("--via", "")), python=sys.executable,
        script=f"{os.path.dirname(start)}/start.py",
        fan_out=int(options.get("--fan-out", "1")), run="20261127-me",
    )  # fmt: skip
    with closing(Loop()) as loop:

        def report(kind: bytes, text: bytes) -> None:
            job.report(kind, text)

        children = Children(loop, report, VERSION)
        job = Job(loop, children)
        job.on_report = _complain
        children.open(tree, [host for host in hosts if host != local])
        environ = job_environ(options["--topology"])
        agent = start_job(job, words[end + 1 :], hosts, environ, local, start, options.get("--before", "").split())
        signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
        loop.watch(os.pidfd_open(agent.pid), READ, lambda _: None)
        while agent.poll() is None:
            loop.wait()
        end_session(agent.pid)
        while not children.over:
            loop.wait()
        job.close()
        children.dismiss(loop.wait)
    return agent.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
