"""Slurm's scontrol: job details beyond the environment, racks, and the end of a job."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddlrun.errors import EXIT_TERMINATED, EXIT_TIMED_OUT, EXIT_UNREACHABLE, InputError
from ddlrun.hosts import fold, parse_hosts
from ddlrun.ranges import parse_ranges
from ddlrun.schedulers import Allocation, JobEnd, SchedulerContext

SHOW_TOPOLOGY = ("scontrol", "show", "topology")
SHOW_JOB = ("scontrol", "--details", "--oneliner", "show", "job")


@dataclass(frozen=True, slots=True)
class SlurmJobDetails:
    """Details of `scontrol show job`: the requested tasks per node, and host -> device numbers of its GPUs."""

    tasks_per_node: int | None = None
    gpu_numbers: Mapping[str, str] = field(default_factory=dict)


def read_details(context: SchedulerContext, job_id: str) -> SlurmJobDetails:
    """Query Slurm for a job's details; empty where it does not answer."""
    return parse_details(_show_job(context, job_id))


def _show_job(context: SchedulerContext, job_id: str) -> str:
    return select_job_lines(context.query((*SHOW_JOB, job_id)) or "", job_id)


def select_job_lines(text: str, job_id: str) -> str:
    """Return the lines of `scontrol --oneliner show job` for a job and its heterogeneous components.

    An array's number is also the number of its last task; scontrol then shows all tasks.
    """
    lines = text.splitlines()
    if "ArrayTaskId=" not in text:
        return "\n".join(lines)
    own = [line for line in lines if line.split()[:1] == [f"JobId={job_id}"]]
    return "\n".join(own or lines[:1])


def parse_details(text: str) -> SlurmJobDetails:
    """Parse `scontrol --details --oneliner show job`; a heterogeneous job has all its components in it.

    >>> details = parse_details("NtasksPerN:B:S:C=2:0:*:* Nodes=h[1-2] CPU_IDs=0 GRES=gpu:a100:2(IDX:0,3)")
    >>> details.tasks_per_node, details.gpu_numbers
    (2, {'h1': '0,3', 'h2': '0,3'})
    """
    tasks = re.search(r"\bNtasksPerN:B:S:C=([1-9][0-9]*):", text)
    gpu_numbers: dict[str, str] = {}
    for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S* (?:Mem=\S* )?GRES=(\S*)", text):
        ranges = [indexes for _, indexes in re.findall(r"gpu(:[^(,]*)?\(IDX:([0-9,-]+)\)", gres)]
        numbers = ",".join(str(number) for indexes in ranges for number in sorted(parse_ranges(indexes)))
        if numbers:
            gpu_numbers |= dict.fromkeys(parse_hosts(nodes).names, numbers)
    return SlurmJobDetails(int(tasks[1]) if tasks else None, gpu_numbers)


def read_racks(context: SchedulerContext) -> dict[str, str] | None:
    """Return the rack of each host in Slurm's topology: `scontrol show topology`, else topology.conf.

    None where neither can be read.
    """
    text = context.query(SHOW_TOPOLOGY)
    if text is None:
        folder = context.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf").rpartition("/")[0]
        try:
            text = context.read(f"{folder}/topology.conf")
        except InputError:
            return None
    return parse_topology_lines(text)


def parse_topology_lines(text: str) -> dict[str, str]:
    r"""Return the rack of each host: its leaf switch or block, the first where it has several.

    Switches above others (with Switches=) are not racks. Lines that are not understood are ignored.

    >>> parse_topology_lines("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Nodes=n[1-2] Switches=s0")
    {'n1': 's0', 'n2': 's0'}
    """
    racks: dict[str, str] = {}
    for line in text.splitlines():
        pairs = (word.partition("=") for word in line.partition("#")[0].split())
        fields = {key.lower(): value for key, _, value in pairs}
        name = fields.get("switchname") or fields.get("blockname")
        is_leaf = not fields.get("switches") and fields.get("level", "0") == "0"
        if name and fields.get("nodes") and is_leaf:
            try:
                hosts = parse_hosts(fields["nodes"]).names
            except InputError:
                continue
            for host in hosts:
                racks.setdefault(host, name)
    return racks


def read_end(context: SchedulerContext, allocation: Allocation) -> JobEnd | None:
    """Query Slurm for the end of the job and its reason; a cancelled job may have lost a host."""
    end = parse_end(_show_job(context, allocation.job_id), allocation.restarts)
    if end is not CANCELLED:
        return end
    names = fold(allocation.hosts.names)
    states = context.query(("sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T")) or ""
    lost = [line.split()[0] for line in states.splitlines() if re.match(r"\S+ (down|fail)", line)]
    if not lost:
        return end
    return JobEnd(EXIT_UNREACHABLE, f"was ended: Slurm reports that {fold(lost)} is down")


CANCELLED = JobEnd(EXIT_TERMINATED, "was cancelled")


def parse_end(text: str, restarts: int = 0) -> JobEnd | None:
    """Return the end by Slurm of a job whose script still runs, None where the job goes on.

    `text` is the output of `scontrol --oneliner show job`; `restarts` is how often Slurm had restarted the job when
    its script began.

    >>> parse_end("JobId=7 JobState=COMPLETING Reason=TimeLimit TimeLimit=00:01:00")
    JobEnd(exit_code=124, reason='has reached its time limit (00:01:00)')
    """
    fields = dict(word.partition("=")[::2] for word in text.split())
    state, reason = fields.get("JobState", "RUNNING"), fields.get("Reason", "None")
    restarts_now = fields.get("Restarts", "")
    if (restarts_now.isdecimal() and int(restarts_now) > restarts) or state.startswith("REQUEUE"):
        return JobEnd(EXIT_TERMINATED, "goes back into the queue")
    if state == "TIMEOUT" or (state == "COMPLETING" and reason == "TimeLimit"):
        return JobEnd(EXIT_TIMED_OUT, f"has reached its time limit ({fields.get('TimeLimit', '?')})")
    if state in ("CANCELLED", "COMPLETING"):
        return CANCELLED
    if state == "NODE_FAIL":
        return JobEnd(EXIT_UNREACHABLE, f"was ended by Slurm: {state}")
    if state in ("PREEMPTED", "DEADLINE", "REVOKED", "OUT_OF_MEMORY"):
        return JobEnd(EXIT_TERMINATED, f"was ended by Slurm: {state}")
    return None
