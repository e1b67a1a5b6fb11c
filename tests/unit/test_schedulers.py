"""Readers of schedulers: hosts, slots and racks from recorded environments and files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import DdlrunError, InputError
from ddlrun.hosts import Host, HostList
from ddlrun.mapping.rack_layout import RackNoteCode, arrange
from ddlrun.mapping.topology_request import TopologyRequest
from ddlrun.remote.agent import choose_launcher
from ddlrun.schedulers import Allocation, SchedulerContext, detect_schedulers, read_allocation, read_job_end
from ddlrun.schedulers.lsf import parse_compute_units, parse_mcpu
from ddlrun.schedulers.scontrol import parse_topology_lines
from ddlrun.schedulers.slurm import parse_tasks
from ddlrun.topology import parse_topology
from tests.machines.render_schedulers import render_lsf_affinity, render_lsf_rank_file, render_topology_conf

RECORDED = Path(__file__).parent / "schedulers"


NONE: Mapping[str, str] = MappingProxyType({})


def context(
    environ: Mapping[str, str], files: Mapping[str, str] = NONE, replies: Mapping[str, str] = NONE
) -> SchedulerContext:
    """Return a context with these variables, files by path, and replies by command line."""

    def read(path: str) -> str:
        if path not in files:
            raise InputError(f"file {path}: No such file or directory")
        return files[path]

    def query(argv: Sequence[str]) -> str | None:
        return replies.get(" ".join(argv))

    return SchedulerContext(environ, read, query)


def job(environ: Mapping[str, str], files: Mapping[str, str] = NONE, replies: Mapping[str, str] = NONE) -> Allocation:
    allocation = read_allocation(context(environ, files, replies))
    assert allocation is not None
    return allocation


def slots(allocation: Allocation) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in allocation.hosts]


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "tux[08-10],gpu1", "SLURM_TASKS_PER_NODE": "2(x3),1"}


def test_outside_of_any_job() -> None:
    assert read_allocation(context({})) is None
    assert read_allocation(context(SLURM), "none") is None
    with pytest.raises(InputError, match=r"--scheduler lsf: not inside a job of LSF \(LSB_JOBID is not set\)"):
        read_allocation(context(SLURM), "lsf")


def test_slurm_tasks_are_slots_where_they_are_requested() -> None:
    allocation = job({**SLURM, "SLURM_NTASKS": "7"})
    assert slots(allocation) == [("tux08", 2), ("tux09", 2), ("tux10", 2), ("gpu1", 1)]
    assert slots(job(SLURM)) == [("tux08", None), ("tux09", None), ("tux10", None), ("gpu1", None)]
    assert allocation.title == "Slurm job 7"
    assert allocation.hosts.source == "Slurm job 7 (SLURM_JOB_NODELIST)"
    assert allocation.launcher == "srun"


# Expected result of each environment that Slurm 22.05 set (tests/unit/schedulers), by the options of the job.
RECORDED_SLURM = {
    "salloc-N4-ntasks-per-node2": "h1:2 h2:2 h3:2 h4:2 by srun",
    "salloc-interactive-step": "h1:2 h2:2 h3:2 h4:2 by srun",
    "salloc-srun-n1": "h1 h2 h3 h4 by srun",
    "salloc-srun-n1-overlap-pty": "h1 h2 h3 h4 by srun",
    "sbatch-N1": "h1 by srun",
    "sbatch-N2-c4": "h1:2 h2:2 by srun",
    "sbatch-N2-exclusive": "h3 h4 by srun, 2 GPUs",
    "sbatch-N3-n7": "h1:5 h2:1 h3:1 by srun",  # 7 tasks cannot be spread evenly
    "sbatch-N4": "h1 h2 h3 h4 by srun",
    "sbatch-N4-ntasks-per-node2": "h1:2 h2:2 h3:2 h4:2 by srun",
    "sbatch-arbitrary": "h1 h3 h4 by srun",
    "sbatch-array-0": "h1:1 h2:1 by srun",
    "sbatch-array-1": "h1:1 h2:1 by srun",
    "sbatch-cyclic": "h1:2 h2:2 h3:2 h4:2 by srun, cyclic",
    "sbatch-gpus-per-node": "h1 h2 by srun, 2 GPUs",
    "sbatch-gpus-per-task": "h1:2 h2:2 by srun, 2 GPUs",
    "sbatch-gpus-per-task-srun-task1": "srun starts ddlrun 4 times",
    "sbatch-gres-gpu": "h1 h2 by srun, 2 GPUs",
    "sbatch-het-colon": "h1:2 h2:1 by ssh",
    "sbatch-het-srun-task2": "srun starts ddlrun 3 times",
    "sbatch-hetjob": "h1:1 h2:1 h3:1 by ssh",
    "sbatch-hostfile-no-distribution": "h1 h3 h4 by srun",
    "sbatch-n6": "h1:6 by srun",
    "srun-N4-ntasks-per-node2-task3": "srun starts ddlrun 8 times",
}


def recorded_environments() -> dict[str, dict[str, str]]:
    sections = (RECORDED / "slurm-22.05.txt").read_text().split("@ ")[1:]
    named = (section.partition("\n")[::2] for section in sections)
    return {name: dict(line.split("=", 1) for line in lines.splitlines()) for name, lines in named}


def describe(environ: Mapping[str, str]) -> str:
    """Describe the job of an environment as RECORDED_SLURM does."""
    try:
        allocation = job(environ)
    except InputError as error:
        return str(error).partition(": ")[2].partition(",")[0]
    hosts = " ".join(f"{host.name}:{host.slots}" if host.slots else host.name for host in allocation.hosts)
    gpus = f", {allocation.gpus} GPUs" if allocation.gpus else ""
    return f"{hosts} by {allocation.launcher}{gpus}{', cyclic' if allocation.cyclic else ''}"


def test_recorded_environments_of_slurm() -> None:
    assert {name: describe(environ) for name, environ in recorded_environments().items()} == RECORDED_SLURM


def test_schedulers_keep_the_order_inside_brackets() -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "9"}
    nodes = {"SLURM_JOB_NODELIST": "r[2,1]n[12,8-9]", "SLURM_TASKS_PER_NODE": "3,2,1(x4)"}
    assert slots(job({**slurm, **nodes})) == [
        ("r2n12", 3), ("r2n8", 2), ("r2n9", 1), ("r1n12", 1), ("r1n8", 1), ("r1n9", 1),
    ]  # fmt: skip
    assert len(job({**SLURM, "SLURM_JOB_NODELIST": "n[01-120]"}).hosts) == 120  # as Slurm writes n01 to n120
    flux = job({"FLUX_JOB_ID": "f1"}, replies={"flux hostlist local": "pc[30,20,10]\n"})
    assert flux.hosts.names == ("pc30", "pc20", "pc10")
    heterogeneous = {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "b[2,1]"}
    assert job({**heterogeneous, "SLURM_JOB_NODELIST_HET_GROUP_1": "a[4,3]"}).hosts.names == ("b2", "b1", "a4", "a3")


def test_slurm_names_with_several_brackets() -> None:
    allocation = job({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "r[1-2]n[01-02]-ib,login"})
    assert allocation.hosts.names == ("r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib", "login")


@pytest.mark.parametrize("tasks", ["2(x3)", "2(x3),1,1", "2(x)", "x", "2(x99999999)"])
def test_slurm_tasks_that_do_not_fit(tasks: str) -> None:
    with pytest.raises(InputError, match="SLURM_TASKS_PER_NODE"):
        job({**SLURM, "SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": tasks})


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 9)), min_size=1))
def test_slurm_tasks_of_any_length(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{tasks}(x{times})" if times > 1 else str(tasks) for tasks, times in runs)
    assert list(parse_tasks(text, "tasks")) == [tasks for tasks, times in runs for _ in range(times)]


def test_slurm_heterogeneous_jobs() -> None:
    for size, ending in (("SLURM_HET_SIZE", "HET"), ("SLURM_PACK_SIZE", "PACK")):
        allocation = job({
            "SLURM_JOB_ID": "7", size: "2",
            f"SLURM_JOB_NODELIST_{ending}_GROUP_0": "a[1-2]", f"SLURM_TASKS_PER_NODE_{ending}_GROUP_0": "1(x2)",
            f"SLURM_NTASKS_{ending}_GROUP_0": "2",
            f"SLURM_JOB_NODELIST_{ending}_GROUP_1": "b1", f"SLURM_TASKS_PER_NODE_{ending}_GROUP_1": "4",
            f"SLURM_NTASKS_{ending}_GROUP_1": "4",
        })  # fmt: skip
        assert slots(allocation) == [("a1", 1), ("a2", 1), ("b1", 4)]
        assert allocation.launcher == "ssh"


def test_slurm_distributions() -> None:
    assert job({**SLURM, "SLURM_DISTRIBUTION": "cyclic"}).cyclic
    assert not job({**SLURM, "SLURM_DISTRIBUTION": "block"}).cyclic


@pytest.mark.parametrize(
    ("distribution", "plane", "tasks", "cyclic", "note"),
    [
        ("cyclic:block,pack", None, "2(x2)", True, None),
        ("plane", "1", "2(x2)", True, None),
        ("plane", "2", "2(x2)", False, None),
        ("plane", "2", "4(x2)", False, "plane, but the ranks of a host are consecutive: planes of 2 tasks are not"),
        ("cyclic", None, "3,2", True, "cyclic, but the ranks of a host are consecutive: hosts have different numbers"),
    ],
)
def test_slurm_distributions_that_ranks_follow_or_a_note_names(
    distribution: str,
    plane: str | None,
    tasks: str,
    cyclic: bool,  # noqa: FBT001
    note: str | None,
) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": str(sum(parse_tasks(tasks, "")))}
    planes = {"SLURM_DIST_PLANESIZE": plane} if plane else {}
    distributed = {"SLURM_TASKS_PER_NODE": tasks, "SLURM_DISTRIBUTION": distribution}
    allocation = job({**environ, **planes, **distributed})
    notes = [text for text in allocation.notes if "SLURM_DISTRIBUTION" in text]
    assert (allocation.cyclic, len(notes)) == (cyclic, int(note is not None))
    assert all(f"SLURM_DISTRIBUTION is {note}" in text for text in notes)


def test_slurm_spreads_fewer_tasks_than_the_hosts_may_have() -> None:
    # sbatch -N2 -n3 --ntasks-per-node=2: srun starts 2 and 1.
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NTASKS": "3",
        "SLURM_TASKS_PER_NODE": "2(x2)",
    }
    allocation = job(environ)
    assert slots(allocation) == [("n1", 2), ("n2", 1)]
    assert "SLURM_NTASKS is 3" in allocation.notes[0]


@pytest.mark.parametrize(
    ("text", "expected", "cyclic"),
    [
        ("gpu1\ntux08\n", "gpu1:1 tux08:1", False),
        ("gpu1\ngpu1\ntux08\ntux08\n", "gpu1:2 tux08:2", False),
        ("gpu1*2,tux08  # two and one\n", "gpu1:2 tux08:1", False),
        ("gpu1\ntux08\ngpu1\ntux08\n", "gpu1:2 tux08:2", True),
        ("gpu1\ntux08\ntux08\ngpu1\n", "gpu1:2 tux08:2", None),
        ("tux10\n", "tux10:1", False),
    ],
)
def test_slurm_host_files_override_any_distribution(text: str, expected: str, cyclic: bool | None) -> None:  # noqa: FBT001
    file = {**SLURM, "SLURM_HOSTFILE": "/l"}
    for environ in (file, {**file, "SLURM_DISTRIBUTION": "cyclic"}, {**file, "SLURM_DISTRIBUTION": "arbitrary"}):
        allocation = job(environ, {"/l": text})
        assert " ".join(f"{host.name}:{host.slots}" for host in allocation.hosts) == expected
        assert allocation.cyclic == bool(cyclic)
        assert any("are consecutive, unlike in the file" in note for note in allocation.notes) == (cyclic is None)
        assert allocation.hosts.source == "Slurm job 7 (SLURM_HOSTFILE /l)"


def test_slurm_host_files_that_do_not_fit() -> None:
    file = {**SLURM, "SLURM_HOSTFILE": "/l", "SLURM_NTASKS": "2"}
    assert slots(job(file, {"/l": "gpu1\ntux08\ntux09\n"})) == [("gpu1", 1), ("tux08", 1)]  # as srun takes them
    for text, problem in (
        ("gpu1\n", "SLURM_HOSTFILE /l has 1 hosts for 2 tasks; add some, or unset SLURM_HOSTFILE"),
        ("gpu1\ngpu2\n", "SLURM_HOSTFILE /l: gpu2 is not a host of Slurm job 7"),
        ("gpu1*x\n", "SLURM_HOSTFILE /l, line 1: 'gpu1*x' is not a host name"),
    ):
        with pytest.raises(InputError) as caught:
            job(file, {"/l": text})
        assert problem in str(caught.value)
    with pytest.raises(InputError, match="SLURM_HOSTFILE: file /l: No such file"):
        job(file)


def test_slurm_gpus_and_requeues() -> None:
    assert job({**SLURM, "SLURM_GPUS_ON_NODE": "4"}).gpus == 4
    assert job({**SLURM, "SLURM_JOB_GPUS": "2,3"}).gpus == 2
    assert job(SLURM).gpus is None
    assert job({**SLURM, "SLURM_RESTART_COUNT": "2"}).restarts == 2


DETAILS = (
    "JobId=7 NumNodes=2 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:* JOB_GRES=gpu:3 Nodes=tux08 CPU_IDs=10 Mem=0 "
    "GRES=gpu:2(IDX:0-1) Nodes=tux[09-10] CPU_IDs=0,10 Mem=0 GRES=gpu:a100:1(IDX:3),shard:0(IDX:) "
    "NtasksPerN:B:S:C=2:0:*:* TresPerJob=gres:gpu:3"
)


def test_slurm_job_details_give_gpus_and_tasks_of_a_step() -> None:
    replies = {"scontrol --details --oneliner show job 7": DETAILS}
    allocation = job(SLURM, replies=replies)
    assert allocation.gpu_numbers == {"tux08": "0,1", "tux09": "3", "tux10": "3"}
    assert allocation.gpus is None  # the numbers of GPUs differ
    step = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}
    assert [count for _, count in slots(job(step, replies=replies))] == [2, 2, 2, 2]


def test_number_of_an_array_is_also_that_of_its_last_task() -> None:
    tasks = (
        "JobId=9 ArrayJobId=7 ArrayTaskId=0 JobState=RUNNING Restarts=0\n"
        "JobId=7 ArrayJobId=7 ArrayTaskId=1 JobState=RUNNING Restarts=0\n"
        "JobId=8 ArrayJobId=7 ArrayTaskId=2 JobState=CANCELLED Restarts=0\n"
    )
    assert read_job_end(context(SLURM, replies={"scontrol --details --oneliner show job 7": tasks}), job(SLURM)) is None


def test_unevenly_spread_tasks_are_evened_out() -> None:
    spread = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NTASKS": "6"}
    allocation = job({**spread, "SLURM_TASKS_PER_NODE": "4,1(x2)"})
    assert slots(allocation) == [("n1", 2), ("n2", 2), ("n3", 2)]
    assert (
        allocation.notes[0]
        == "Slurm spread 6 tasks as 4, 1, 1: ddlrun uses 2 on each host (sbatch --ntasks-per-node=2)"
    )
    assert slots(job({**spread, "SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "3,1(x2)"}))[0] == ("n1", 3)


@pytest.mark.parametrize(
    ("environ", "details", "counts"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "4,1(x2)"}, "", [4, 1, 1]),
        ({"SLURM_JOB_CPUS_PER_NODE": "20,2(x2)"}, "", [2, 2, 2]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x3)", "SLURM_CPUS_PER_TASK": "4"}, "", [2, 2, 2]),
        ({"SLURM_JOB_CPUS_PER_NODE": "16,4(x2)", "SLURM_CPUS_PER_TASK": "4"}, "", [4, 1, 1]),
        ({}, " Nodes=n1 CPU_IDs=0 GRES=gpu:4(IDX:0-3) Nodes=n[2-3] CPU_IDs=0 GRES=gpu:1(IDX:0)", [4, 1, 1]),
        ({}, " Nodes=n[1-3] CPU_IDs=0 GRES=gpu:4(IDX:0-3)", [2, 2, 2]),
    ],
)
def test_uneven_tasks_stay_where_their_cpus_and_gpus_are(
    environ: Mapping[str, str], details: str, counts: list[int]
) -> None:
    spread = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NTASKS": "6", "SLURM_TASKS_PER_NODE": "4,1,1"}
    allocation = job({**spread, **environ}, replies={"scontrol --details --oneliner show job 7": details})
    assert [host.slots for host in allocation.hosts] == counts


@pytest.mark.parametrize(
    ("reply", "states", "code", "reason"),
    [
        ("JobState=RUNNING Reason=None Restarts=0", "", None, ""),
        ("", "", None, ""),
        ("JobState=COMPLETING Reason=None Restarts=0", "tux08 mixed\ntux09 idle\n", 143, "was cancelled"),
        (
            "JobState=COMPLETING Reason=None Restarts=0",
            "tux08 mixed\ntux09 down*\n",
            3,
            "Slurm reports that tux09 is down",
        ),
        ("JobState=COMPLETING Reason=None Restarts=1", "", 143, "goes back into the queue"),
        ("JobState=TIMEOUT Reason=TimeLimit TimeLimit=01:00:00", "", 124, "its time limit (01:00:00)"),
        ("JobState=NODE_FAIL Reason=None", "", 3, "NODE_FAIL"),
    ],
)
def test_how_slurm_ends_a_job(reply: str, states: str, code: int | None, reason: str) -> None:
    sinfo = "sinfo --noheader --Node --nodes=tux[08-10],gpu1 --format=%N %T"
    replies = {"scontrol --details --oneliner show job 7": reply, sinfo: states}
    end = read_job_end(context(SLURM, replies=replies), job(SLURM))
    assert (end.exit_code if end else None) == code
    assert end is None or reason in end.reason


def test_srun_of_ddlrun_is_refused() -> None:
    step = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    with pytest.raises(InputError, match="srun starts ddlrun 4 times"):
        job({**step, "SLURM_STEP_NUM_TASKS": "4"})
    single = job({**step, "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"})
    assert slots(single)[0] == ("tux08", None)


TREE = """SwitchName=rack0 Level=0 LinkSpeed=1 Nodes=tux[08-09]
SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=tux10,gpu1
SwitchName=spine Level=1 LinkSpeed=1 Nodes=tux[08-10],gpu1 Switches=rack[0-1]
"""
BLOCK = """BlockName=b1 BlockIndex=0 Nodes=tux[08-09] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=tux10,gpu1 BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=tux[08-10],gpu1 BlockSize=4
"""


@pytest.mark.parametrize(("text", "names"), [(TREE, ["rack0", "rack1"]), (BLOCK, ["b1", "b2"])])
def test_slurm_topologies_give_racks(text: str, names: list[str]) -> None:
    allocation = job(SLURM, replies={"scontrol show topology": text})
    assert [host.rack for host in allocation.hosts] == [names[0], names[0], names[1], names[1]]


def test_slurm_topology_conf_where_there_is_no_scontrol() -> None:
    racks = {f"s{rack}": f"tux[{4 * rack}-{4 * rack + 3}]" for rack in range(4)}
    check_topology_conf(render_topology_conf(racks, ["s4", "s5"]))


@pytest.mark.extra
def test_captured_topology_conf(capture: Callable[[str], Path]) -> None:
    check_topology_conf(capture("scheduler/slurm-topology.conf.txt").read_text())


def check_topology_conf(text: str) -> None:
    racks = parse_topology_lines(text)
    assert racks == {f"tux{number}": f"s{number // 4}" for number in range(16)}
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "tux[3-4]", "SLURM_CONF": "/c/slurm.conf"}
    allocation = job(environ, {"/c/topology.conf": text})
    assert [host.rack for host in allocation.hosts] == ["s0", "s1"]


@given(st.text())
def test_any_text_is_a_topology(text: str) -> None:
    racks = parse_topology_lines(text)
    assert "" not in racks
    assert "" not in racks.values()


LSF = {"LSB_JOBID": "12"}


def test_lsf_hostfile_has_one_slot_per_line() -> None:
    allocation = job({**LSF, "LSB_DJOB_HOSTFILE": "/f", "LSB_MCPU_HOSTS": "other 1"}, {"/f": "a\na\nb\nb\na\n"})
    assert slots(allocation) == [("a", 3), ("b", 2)]
    assert allocation.hosts.slots_are_capacity
    assert allocation.hosts.source == "LSF job 12 (LSB_DJOB_HOSTFILE /f)"


def test_lsf_launch_host_gets_no_rank() -> None:
    check_launch_host(render_lsf_rank_file("batch", [f"10.10.10.{number}" for number in range(4)]))
    csm = {**LSF, "LSB_DJOB_HOSTFILE": "/r", "CSM_ALLOCATION_ID": "9"}
    assert job(csm, {"/r": "c699\n" + "c1\n" * 42 + "c2\n" * 42}).hosts.names == ("c1", "c2")
    assert job({**LSF, "LSB_DJOB_RANKFILE": "/r"}, {"/r": "a\nb\nb\n"}).hosts.names == ("a", "b")
    assert job({**LSF, "LSB_DJOB_RANKFILE": "/r"}, {"/r": "batch1\nbatch2\n"}).hosts.names == ("batch1", "batch2")


@pytest.mark.extra
def test_captured_files_of_lsf(capture: Callable[[str], Path]) -> None:
    check_launch_host(capture("scheduler/lsf-LSB_DJOB_RANKFILE-lightning.txt").read_text())
    check_affinity(capture("scheduler/lsf-LSB_AFFINITY_HOSTFILE.txt").read_text())


def check_launch_host(text: str) -> None:
    allocation = job({**LSF, "LSB_DJOB_RANKFILE": "/r"}, {"/r": text})
    assert allocation.hosts.names == tuple(f"10.10.10.{number}" for number in range(4))
    assert "batch only launches" in allocation.notes[0]


def check_affinity(text: str) -> None:
    assert slots(job({**LSF, "LSB_AFFINITY_HOSTFILE": "/a"}, {"/a": text})) == [("Host1", 2)]


def test_lsf_lists() -> None:
    assert slots(job({**LSF, "LSB_MCPU_HOSTS": "hostA 4 hostB 4", "LSB_HOSTS": ""})) == [("hostA", 4), ("hostB", 4)]
    assert slots(job({**LSF, "LSB_HOSTS": "a a b b"})) == [("a", 2), ("b", 2)]
    check_affinity(render_lsf_affinity([("Host1", "0,1,2,3", 0), ("Host1", "4,5,6,7", 1)]))
    with pytest.raises(InputError, match="none of LSB_DJOB_HOSTFILE"):
        job(LSF)
    with pytest.raises(InputError, match="no hosts; name at least one"):
        job({**LSF, "LSB_DJOB_HOSTFILE": "/f"}, {"/f": ""})
    with pytest.raises(InputError, match="'hostB' has no number of slots"):
        parse_mcpu(["hostA", "4", "hostB"])


def test_lsf_compute_units_give_racks() -> None:
    text = (
        "NAME                 TYPE                 HOSTS\n"
        "encl1                enclosure            hostA hostB\n"
        "encl2                enclosure            hostC hostD\n"
        "rack1                rack                 encl1/ encl2/\n"
    )
    assert parse_compute_units(text) == {"hostA": "encl1", "hostB": "encl1", "hostC": "encl2", "hostD": "encl2"}
    allocation = job({**LSF, "LSB_MCPU_HOSTS": "hostA.site 4 hostC 4"}, replies={"bmgroup -cu -w": text})
    assert [host.rack for host in allocation.hosts] == ["encl1", "encl2"]
    assert job({**LSF, "LSB_JOBINDEX": "3", "LSB_MCPU_HOSTS": "a 1"}).job_id == "12[3]"


def test_pbs() -> None:
    environ = {"PBS_JOBID": "5.server", "PBS_NODEFILE": "/n"}
    assert slots(job(environ, {"/n": "n2\nn2\nn1\nn2\n"})) == [("n2", 3), ("n1", 1)]
    assert slots(job(environ, {"/n": "n2\nn1\n"})) == [("n2", None), ("n1", None)]
    with pytest.raises(InputError, match="PBS_NODEFILE /n, line 2"):
        job(environ, {"/n": "n2\nn 1\n"})
    with pytest.raises(InputError, match="/n: No such file"):
        job(environ)
    with pytest.raises(InputError, match="no hosts; name at least one"):
        job(environ, {"/n": "\n"})
    with pytest.raises(InputError, match="PBS_NODEFILE, which names the job's hosts, is not set"):
        job({"PBS_JOBID": "5"})


def test_grid_engine() -> None:
    environ = {"JOB_ID": "3", "PE_HOSTFILE": "/p", "RESTARTED": "0"}
    text = (
        "node01.site 4 all.q@node01 UNDEFINED\nnode02.site 2 all.q@node02 <NULL>\nnode01.site 1 b.q@node01 UNDEFINED\n"
    )
    allocation = job(environ, {"/p": text})
    assert slots(allocation) == [("node01.site", 5), ("node02.site", 2)]
    assert (allocation.launcher, allocation.restarts) == ("qrsh", 0)
    assert job({**environ, "RESTARTED": "1"}, {"/p": text}).restarts == 1
    with pytest.raises(InputError, match="PE_HOSTFILE /p, line 1: 'node01' is not a host and its slots"):
        job(environ, {"/p": "node01\n"})


def test_flux() -> None:
    replies = {"flux hostlist local": "corona[82-83,171]\n"}
    assert job({"FLUX_JOB_ID": "f1", "FLUX_JOB_NNODES": "3"}, replies=replies).hosts.names == (
        "corona82", "corona83", "corona171",
    )  # fmt: skip
    assert job({"FLUX_ENCLOSING_ID": "f1", "FLUX_URI": "local:///x"}, replies=replies).job_id == "f1"
    with pytest.raises(InputError, match="gives no hosts"):
        job({"FLUX_JOB_ID": "f1"})
    with pytest.raises(InputError, match="FLUX_JOB_NNODES is 2"):
        job({"FLUX_JOB_ID": "f1", "FLUX_JOB_NNODES": "2"}, replies=replies)
    with pytest.raises(InputError, match="runs ddlrun 8 times"):
        job({"FLUX_JOB_ID": "f1", "FLUX_JOB_SIZE": "8"}, replies=replies)


def test_flux_with_several_brokers_per_host() -> None:
    flux = {"FLUX_JOB_ID": "f1", "FLUX_JOB_NNODES": "4"}
    for text in ("n01,n01,n02,n02\n", "n[01,01,02,02]\n"):
        allocation = job(flux, replies={"flux hostlist local": text})
        assert slots(allocation) == [("n01", None), ("n02", None)]
        assert allocation.notes == ("Flux runs several brokers on n[01-02]: each counts as one host",)


@pytest.mark.parametrize(
    ("variable", "arguments"),
    [
        ("I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
        ("HYDRA_HOST_FILE", "HYDRA_LAUNCH_EXTRA_ARGS"),
    ],
)
def test_kubernetes_with_intel_mpi_and_mpich(variable: str, arguments: str) -> None:
    environ = {variable: "/etc/mpi/hostfile", "K_MPI_JOB_ROLE": "launcher", "HOSTNAME": "pi-launcher-x7"}
    environ[arguments] = "-o ConnectionAttempts=10"
    allocation = job(environ, {"/etc/mpi/hostfile": "pi-worker-0.pi.ns.svc:2\npi-worker-1.pi.ns.svc:2\n"})
    assert slots(allocation) == [("pi-worker-0.pi.ns.svc", 2), ("pi-worker-1.pi.ns.svc", 2)]
    assert (allocation.scheduler, allocation.job_id, allocation.launcher) == ("kubernetes", "pi", "ssh")
    launcher = choose_launcher("auto", allocation, allocation.hosts, (), environ)
    assert launcher.words == ("-o", "ConnectionAttempts=10")
    assert read_allocation(context({variable: "/h"})) is None  # no pod of the operator


def test_kubernetes() -> None:
    environ = {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}
    hostfile = "pi-worker-0.pi.default.svc slots=2\npi-worker-1.pi.default.svc slots=2\n"
    allocation = job(environ, {"/etc/mpi/hostfile": hostfile})
    assert slots(allocation) == [("pi-worker-0.pi.default.svc", 2), ("pi-worker-1.pi.default.svc", 2)]
    assert allocation.launcher == "ssh"
    version_1 = {**environ, "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}
    allocation = job(version_1, {"/etc/mpi/hostfile": "7pi-worker-0 slots=1\n"})
    assert (allocation.hosts.names, allocation.launcher) == (("7pi-worker-0",), "agent")


def test_cobalt() -> None:
    allocation = job({"COBALT_JOBID": "9", "COBALT_NODEFILE": "/c"}, {"/c": "nid00001\nnid00002\n"})
    assert slots(allocation) == [("nid00001", None), ("nid00002", None)]


def test_the_innermost_of_several_schedulers_is_used() -> None:
    both = {**SLURM, "OMPI_MCA_orte_default_hostfile": "/h", "JOB_ID": "3"}
    assert detect_schedulers(both) == ["kubernetes", "slurm"]
    allocation = job(both, {"/h": "w slots=1\n"})
    assert allocation.scheduler == "kubernetes"
    assert "also a job of Slurm; Kubernetes is the innermost" in allocation.notes[-1]
    named = read_allocation(context(both), "slurm")
    assert named is not None
    assert named.scheduler == "slurm"
    assert not any("innermost" in note for note in named.notes)


@given(
    st.dictionaries(
        st.sampled_from(
            "SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE SLURM_NTASKS LSB_JOBID LSB_MCPU_HOSTS LSB_HOSTS "
            "PBS_JOBID PBS_NODEFILE JOB_ID PE_HOSTFILE COBALT_JOBID COBALT_NODEFILE FLUX_JOB_ID "
            "SLURM_RESTART_COUNT SLURM_HET_SIZE SLURM_GPUS_ON_NODE".split()
        ),
        st.one_of(st.text(min_size=1), st.from_regex(r"[a-c1-3(x),\[\]-]{1,9}", fullmatch=True)),
    ),
    st.text(),
)
def test_broken_variables_are_a_job_or_an_error(environ: dict[str, str], text: str) -> None:
    try:
        allocation = read_allocation(SchedulerContext(environ, lambda _: text, lambda _: text))
    except DdlrunError as error:
        assert error.problems
        return
    assert allocation is None or len(allocation.hosts) > 0


def racked(*sizes: int) -> HostList:
    named = [(f"r{rack}h{place}", f"r{rack}") for rack, size in enumerate(sizes) for place in range(size)]
    return HostList(tuple(Host(name, None, rack) for name, rack in named), "test")


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((2, 2), (2, 2)),
        ((4,), (4, 1)),
        ((1, 1, 1), (1, 3)),
        ((4, 2, 2), (2, 4)),
        ((3, 3, 2), (8, 1)),
        ((16, 8), (8, 3)),
    ],
)
def test_racks_make_y_and_z(sizes: tuple[int, ...], shape: tuple[int, int]) -> None:
    layout = arrange(TopologyRequest(), racked(*sizes))
    assert (layout.request.nodes, layout.request.racks) == shape
    assert len(layout.hosts) == sum(sizes)
    assert bool(layout.notes) == (len(set(sizes)) > 1)
    groups = [layout.hosts.hosts[at : at + shape[0]] for at in range(0, sum(sizes), shape[0])]
    if shape[1] > 1:
        assert all(len({host.rack for host in group}) == 1 for group in groups)


def test_note_on_unequal_racks() -> None:
    note = str(arrange(TopologyRequest(), racked(3, 3, 2)).notes[-1])
    assert (
        "racks r0 (3 hosts), r1 (3 hosts), r2 (2 hosts) have no common size: all 8 hosts are used as one rack, except"
        in note
    )
    assert "--topology Xx3x2 would keep to racks and leave out r2h[0-1]" in note
    assert "--topology Xx3x4 would keep to racks" in str(arrange(TopologyRequest(), racked(3, 7, 4)).notes[-1])
    divided = arrange(TopologyRequest(), racked(4, 2, 2)).notes[-1]
    assert "used as 4 groups of 2 hosts, none across racks" in str(divided)


def test_hosts_come_in_the_order_of_their_racks() -> None:
    mixed = HostList(
        tuple(Host(name, None, rack) for name, rack in (("a", "R"), ("b", "S"), ("c", "R"), ("d", "S"))), "test"
    )
    layout = arrange(TopologyRequest(), mixed)
    assert layout.hosts.names == ("a", "c", "b", "d")
    assert [note.code for note in layout.notes] == [RackNoteCode.REORDERED]
    half = HostList((Host("a", None, "r"), Host("b")), "test")
    assert arrange(TopologyRequest(), half).request == TopologyRequest()
    assert str(arrange(TopologyRequest(), half).notes[0]) == "racks are ignored, as the racks of b are unknown"


def test_a_topology_takes_whole_groups() -> None:
    request = TopologyRequest(topology=parse_topology("4x2x2"))
    layout = arrange(request, racked(3, 3, 2))
    assert layout.hosts.names == ("r0h0", "r0h1", "r1h0", "r1h1")
    assert [host.name for host in layout.left_out] == ["r0h2", "r1h2", "r2h0", "r2h1"]
    assert "left out, as --topology 4x2x2 needs 4 hosts" in str(layout.notes[-1])
    crossing = arrange(TopologyRequest(topology=parse_topology("4x4x2")), racked(3, 3, 2))
    assert len(crossing.hosts) == 8
    assert str(crossing.notes[-1]) == "groups of 4 hosts that cross racks: 2 of 2"
    sized = arrange(TopologyRequest(nodes=4), racked(2, 2))
    assert [str(note) for note in sized.notes] == ["groups of 4 hosts that cross racks: 1 of 1"]
    plain = HostList(tuple(map(Host, "abc")), "test")
    assert arrange(TopologyRequest(topology=parse_topology("4x2")), plain).hosts.names == ("a", "b", "c")
    assert arrange(TopologyRequest(topology=parse_topology("4x2")), plain, choose=True).hosts.names == ("a", "b")
