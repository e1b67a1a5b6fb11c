"""What Slurm's scontrol says: of a job beyond its environment, of its end, and of the racks."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import fold, parse_hosts
from ddlrun.schedulers import ENDED, LOST_HOST, TIMED_OUT, Allocation, JobEnd, SchedulerContext

TOPOLOGY = ("scontrol", "show", "topology")
DETAILS = ("scontrol", "--details", "--oneliner", "show", "job")


class SlurmJobDetails(NamedTuple):
    """What `scontrol show job` says beyond the environment: tasks on each host that were asked for, and GPUs."""

    tasks_per_node: int | None = None
    gpus: Mapping[str, str] = {}


def read_details(world: SchedulerContext, job: str) -> SlurmJobDetails:
    """Ask Slurm for a job's details; nothing where it does not answer."""
    return parse_details(own_lines(world.ask((*DETAILS, job)) or "", job))


def own_lines(text: str, job: str) -> str:
    """Return the lines of `scontrol --oneliner show job` that are about a job, and its heterogeneous parts.

    For the number of an array, which its last task has too, it shows all tasks.
    """
    lines = text.splitlines()
    mine = [line for line in lines if line.split()[:1] == [f"JobId={job}"]]
    return "\n".join(mine or lines[:1] if "ArrayTaskId=" in text else lines)


def parse_details(text: str) -> SlurmJobDetails:
    """Read `scontrol --details --oneliner show job`; of a heterogeneous job all parts.

    >>> parse_details("NtasksPerN:B:S:C=2:0:*:* Nodes=h[1-2] CPU_IDs=0 GRES=gpu:a100:2(IDX:0,3)").gpus
    {'h1': '0,3', 'h2': '0,3'}
    """
    each = re.search(r"\bNtasksPerN:B:S:C=([1-9][0-9]*):", text)
    found: dict[str, str] = {}
    for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S* (?:Mem=\S* )?GRES=(\S*)", text):
        indexes = [part for kind, part in re.findall(r"gpu(:[^(,]*)?\(IDX:([0-9,-]+)\)", gres)]
        numbers = ",".join(number for part in indexes for number in _expanded(part))
        if numbers:
            found |= dict.fromkeys(parse_hosts(nodes).names, numbers)
    return SlurmJobDetails(int(each[1]) if each else None, found)


def _expanded(text: str) -> Iterator[str]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from map(str, range(int(low), int(high or low) + 1))


def read_racks(world: SchedulerContext) -> dict[str, str] | None:
    """Return the rack of each host that Slurm's topology knows: `scontrol show topology`, else topology.conf.

    None where neither can be read.
    """
    said = world.ask(TOPOLOGY)
    if said is None:
        folder = world.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf").rpartition("/")[0]
        try:
            said = world.read(f"{folder}/topology.conf")
        except InputError:
            return None
    return parse_topology_lines(said)


def parse_topology_lines(text: str) -> dict[str, str]:
    r"""Return host -> rack: the switch, or the block, that it hangs on; of several the first.

    Switches above others (with Switches=) are no racks. A line that is not understood says nothing.

    >>> parse_topology_lines("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Nodes=n[1-2] Switches=s0")
    {'n1': 's0', 'n2': 's0'}
    """
    racks: dict[str, str] = {}
    for line in text.splitlines():
        words = {
            key.lower(): value for key, _, value in (word.partition("=") for word in line.partition("#")[0].split())
        }
        name = words.get("switchname") or words.get("blockname")
        if name and words.get("nodes") and not words.get("switches") and words.get("level", "0") == "0":
            try:
                hosts = parse_hosts(words["nodes"]).names
            except InputError:
                continue
            for host in hosts:
                racks.setdefault(host, name)
    return racks


def read_end(world: SchedulerContext, job: Allocation) -> JobEnd | None:
    """Ask Slurm whether it ends the job, and why; a cancelled one may have lost a host."""
    found = parse_end(own_lines(world.ask((*DETAILS, job.job)) or "", job.job), job.restarts)
    if found != CANCELLED:
        return found
    states = world.ask(("sinfo", "--noheader", "--Node", f"--nodes={fold(job.hosts.names)}", "--format=%N %T"))
    lost = [line.split()[0] for line in (states or "").splitlines() if re.match(r"\S+ (down|fail)", line)]
    return JobEnd(LOST_HOST, f"was ended, as Slurm says that {fold(lost)} is down") if lost else found


CANCELLED = JobEnd(ENDED, "was cancelled")


def parse_end(text: str, restarts: int = 0) -> JobEnd | None:
    """Return how Slurm ends a job whose script still runs, from `scontrol --oneliner show job`; None: it does not.

    `restarts` is how often it had been started again by then.

    >>> parse_end("JobId=7 JobState=COMPLETING Reason=TimeLimit TimeLimit=00:01:00")
    JobEnd(exit_code=124, words='has reached its time limit (00:01:00)')
    """
    words = dict(word.partition("=")[::2] for word in text.split())
    state, reason = words.get("JobState", "RUNNING"), words.get("Reason", "None")
    starts = words.get("Restarts", "")
    if (starts.isdecimal() and int(starts) > restarts) or state.startswith("REQUEUE"):
        return JobEnd(ENDED, "goes back into the queue")
    if state == "TIMEOUT" or (state == "COMPLETING" and reason == "TimeLimit"):
        return JobEnd(TIMED_OUT, f"has reached its time limit ({words.get('TimeLimit', '?')})")
    if state in ("CANCELLED", "COMPLETING"):
        return CANCELLED
    if state in ("NODE_FAIL", "PREEMPTED", "DEADLINE", "REVOKED", "OUT_OF_MEMORY"):
        return JobEnd(LOST_HOST if state == "NODE_FAIL" else ENDED, f"was ended by Slurm: {state}")
    return None
