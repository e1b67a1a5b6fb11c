"""Hosts with GPUs, as far as /sys, /proc and /dev tell: what is offered, and what each rank then sees."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ddlrun.keeper.usage.gpus import REASONS
from ddlrun.metrics.samples import HostSample
from tests.cluster.cluster import Cluster
from tests.cluster.slurm import SlurmCluster
from tests.cluster.slurm import why_not as no_slurm
from tests.conftest import launch_line
from tests.support.nvidia_smi import HOT, busy, install
from tests.support.processes import wait_for
from tests.support.seeded_runs import read_samples

pytestmark = [pytest.mark.openmpi(5), pytest.mark.extra]

SEEN = (
    "import json, os; e = os.environ; os.write(1, (json.dumps([int(e['OMPI_COMM_WORLD_RANK']), "
    "e.get('CUDA_VISIBLE_DEVICES'), e.get('ROCR_VISIBLE_DEVICES'), e.get('HIP_VISIBLE_DEVICES')]) + '\\n').encode())"
)
Pretend = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pretend(tmp_path: Path) -> Pretend:
    """Run ddlrun on a host with GPUs of a vendor at these addresses."""

    def run(vendor: str, addresses: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        script = str(Path(__file__).with_name("pretend_gpus.sh"))
        argv = ["sh", script, vendor, *addresses.split(), "--", sys.executable, "-m", "ddlrun", *words]
        environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), **env}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=300)

    return run


def seen(done: subprocess.CompletedProcess[str]) -> list[list[str | None]]:
    assert done.returncode == 0, done.stderr
    return [rank[1:] for rank in sorted(map(json.loads, done.stdout.splitlines()))]


NVIDIA = "0000:65:00.0 0000:17:00.0"
SHOW = [sys.executable, "-c", SEEN]


def test_each_rank_finds_its_gpu_at_its_local_rank(pretend: Pretend, mpirun: str) -> None:
    assert seen(pretend("nvidia", NVIDIA, "launch", "--output", "no-tag", "--mpirun", mpirun, *SHOW)) == [
        ["GPU-00.0-1,GPU-00.0-0", None, None],  # by PCI address, not by the driver's number
        ["GPU-00.0-1,GPU-00.0-0", None, None],
    ]


@pytest.mark.parametrize(
    ("options", "env", "expected"),
    [
        (["--visible-gpus", "own"], {}, ["GPU-00.0-1", "GPU-00.0-0"]),
        (["--visible-gpus", "unchanged"], {}, [None, None]),
        (["--gpu-order", "1,0"], {}, ["GPU-00.0-0,GPU-00.0-1"] * 2),
        (["--ranks-per-host", "1"], {}, ["GPU-00.0-1,GPU-00.0-0"]),
        (["--env", "CUDA_VISIBLE_DEVICES=1"], {}, ["1"]),
        (["--env", "CUDA_VISIBLE_DEVICES=7"], {}, ["7"]),
        ([], {"CUDA_VISIBLE_DEVICES": "MIG-377e0049"}, ["MIG-377e0049"]),
        ([], {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, ["MIG-1", "MIG-2"]),
        ([], {"CUDA_VISIBLE_DEVICES": "1"}, ["GPU-00.0-0"]),
        ([], {"CUDA_VISIBLE_DEVICES": "1,0"}, ["GPU-00.0-0,GPU-00.0-1"] * 2),
        ([], {"CUDA_VISIBLE_DEVICES": "GPU-00.0-0"}, ["GPU-00.0-0"]),
        ([], {"CUDA_VISIBLE_DEVICES": "0,9,1"}, ["GPU-00.0-1"]),
        ([], {"CLOSED": "nvidia1"}, ["GPU-00.0-0"]),
    ],
)
def test_what_a_rank_sees(
    pretend: Pretend, options: list[str], env: dict[str, str], expected: list[str | None]
) -> None:
    assert [
        rank[0] for rank in seen(pretend("nvidia", NVIDIA, "launch", "--output", "no-tag", *options, *SHOW, **env))
    ] == expected


def test_saved_gpus_are_not_taken_beside_those_of_the_user(pretend: Pretend, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    assert pretend("nvidia", NVIDIA, "probe", "--save", saved).returncode == 0
    options = ["launch", "--output", "no-tag", "-np", "1", "--machine", saved]
    done = pretend("nvidia", NVIDIA, *options, *SHOW, CUDA_VISIBLE_DEVICES="1")
    assert seen(done) == [["1", None, None]]


def test_amd(pretend: Pretend) -> None:
    done = pretend(
        "amd",
        "0000:c1:00.0 0000:c5:00.0",
        "launch",
        "--output",
        "no-tag",
        *SHOW,
        HIP_VISIBLE_DEVICES="1",
        ROCR_VISIBLE_DEVICES="1,0",
    )
    assert seen(done) == [[None, "GPU-abc0", None]]


def test_gpus_that_may_not_be_used_are_told_of(pretend: Pretend) -> None:
    closed = pretend("nvidia", NVIDIA, "probe", CLOSED="nvidia0")
    assert "1 GPU, " in closed.stdout
    assert "note: 1 of 2 GPUs not counted: no driver, or not allowed by the cgroup" in closed.stdout
    chosen = pretend("nvidia", NVIDIA, "show", "placement", CUDA_VISIBLE_DEVICES="0")
    assert "note: localhost: CUDA_VISIBLE_DEVICES=0 leaves 1 of 2 GPUs" in chosen.stderr
    none = pretend("nvidia", NVIDIA, "probe", CUDA_VISIBLE_DEVICES="")
    assert "leaves 0 of 2 GPUs" in none.stdout


def test_a_gpu_that_is_not_there_at_the_start_is_one_warning(pretend: Pretend, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    assert pretend("nvidia", NVIDIA, "probe", "--save", saved).returncode == 0
    options = ["launch", "--output", "no-tag", "--machine", saved, "--run-dir", str(tmp_path / "run")]
    done = pretend("nvidia", "0000:17:00.0", *options, *SHOW)
    assert [rank[0] for rank in seen(done)] == [None, None]
    lines = [line for line in done.stderr.splitlines() if "of the plan is not there" in line]
    assert sorted(lines) == [
        f"ddlrun: rank {rank} on {os.uname().nodename}: GPU 0000:65:00.0 of the plan is not there, or has no driver"
        for rank in range(2)
    ]
    assert json.loads((tmp_path / "run" / "binding.json").read_text())["different"] == [0, 1]
    strict = pretend(
        "nvidia", "0000:17:00.0", "launch", "--output", "no-tag", "--machine", saved, "--strict-binding", *SHOW
    )
    assert (strict.returncode, strict.stdout) == (5, "")


# Each rank stays until the samples have the GPUs of both ranks, of which the second is hot.
WAIT = """
import sys, time
while True:
    try:
        text = open(sys.argv[1]).read()
        if text.count('"limits": ["heat"]') > 7:
            break
    except OSError:
        pass
    time.sleep(0.1)
"""


def test_the_samples_have_the_gpu_of_each_rank(pretend: Pretend, tmp_path: Path) -> None:
    smi = install(tmp_path / "smi", busy(0), busy(1, HOT))
    run = tmp_path / "run"
    options = ["--process-manager", "ddlrun", "--sample-interval", "0.2", "--run-dir", str(run)]
    program = [sys.executable, "-c", WAIT, str(run / "metrics.jsonl")]
    done = pretend("nvidia", "0001:65:00.0 0000:65:00.0", "launch", *options, *program, PATH=smi.path)
    assert done.returncode == 0, done.stderr
    *_, host = [sample for sample in read_samples(str(run / "metrics.jsonl")) if isinstance(sample, HostSample)]
    assert [(gpu.address, gpu.ranks) for gpu in host.gpus] == [("0000:65:00.0", "0"), ("0001:65:00.0", "1")]
    ((pid, _),) = smi.starts()
    assert not psutil.pid_exists(pid)
    top = json.loads(pretend("nvidia", "", "top", "--json", str(run)).stdout)
    assert [(finding["cause"], finding["ranks"]) for finding in top["findings"]] == [("gpu-throttled", "1")]


# Each rank stays until the samples have both GPUs.
WAIT_FOR_TWO = WAIT.replace('"limits": ["heat"]', '"address": "0000:c1:00.0"').replace("> 7", "> 2")


def test_the_samples_have_the_amd_gpu_of_each_rank(pretend: Pretend, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--process-manager", "ddlrun", "--sample-interval", "0.2", "--run-dir", str(run)]
    program = [sys.executable, "-c", WAIT_FOR_TWO, str(run / "metrics.jsonl")]
    done = pretend("amd", "0000:c1:00.0 0000:43:00.0", "launch", *options, *program)
    assert done.returncode == 0, done.stderr
    *_, host = [sample for sample in read_samples(str(run / "metrics.jsonl")) if isinstance(sample, HostSample)]
    seen = [(gpu.address, gpu.uuid, gpu.ranks, gpu.utilization, gpu.power, gpu.highest_clock) for gpu in host.gpus]
    assert seen == [
        ("0000:43:00.0", "GPU-abc1", "0", 0.97, 402.13, 2.1e9),
        ("0000:c1:00.0", "GPU-abc0", "1", 0.97, 402.13, 2.1e9),
    ]


# The program kills its keeper, which is the parent of its guard, once nvidia-smi runs.
KILL = """
import os, sys, time, psutil
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
psutil.Process().parent().parent().kill()
time.sleep(600)
"""


@pytest.mark.parametrize("manager", ["openmpi", "ddlrun"])
def test_nvidia_smi_ends_with_a_keeper_that_is_killed(pretend: Pretend, tmp_path: Path, manager: str) -> None:
    smi = install(tmp_path / "smi")
    options = ["--process-manager", manager, "--sample-interval", "0.2"]
    program = [sys.executable, "-c", KILL, str(smi.folder / "starts")]
    done = pretend("nvidia", NVIDIA, "launch", "-np", "1", *options, *program, PATH=smi.path)
    assert done.returncode != 0
    ((pid, _),) = smi.starts()
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


# The program waits for the last start of nvidia-smi, and then for three reports of the host.
OUTLAST = """
import os, sys, time
def count(path, word):
    return open(path).read().count(word) if os.path.exists(path) else 0
while count(sys.argv[1], "\\n") < int(sys.argv[2]):
    time.sleep(0.1)
before = count(sys.argv[3], '"nics"')
while count(sys.argv[3], '"nics"') < before + 3:
    time.sleep(0.1)
"""


def test_nvidia_smi_that_fails_is_one_note_and_the_job_goes_on(pretend: Pretend, tmp_path: Path) -> None:
    reason = "NVIDIA-SMI has failed because it could not communicate with the driver"
    smi = install(tmp_path / "smi", reason)
    run = tmp_path / "run"
    options = ["--sample-interval", "0.2", "--run-dir", str(run)]
    program = [sys.executable, "-c", OUTLAST, str(smi.folder / "starts"), str(len(REASONS)), str(run / "metrics.jsonl")]
    done = pretend("nvidia", NVIDIA, "launch", *options, *program, PATH=smi.path)
    assert done.returncode == 0
    (note,) = [line for line in done.stderr.splitlines() if "GPUs of" in line]
    assert note.endswith(f"no samples of the GPUs of {os.uname().nodename}: nvidia-smi: {reason}")
    assert len(smi.starts()) == len(REASONS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two hosts with two GPUs each, at different addresses, and one with a single GPU."""
    script = str(Path(__file__).with_name("pretend_gpus.sh"))
    gpus = {"h1": "0000:17:00.0 0000:65:00.0", "h2": "0000:3b:00.0 0000:5e:00.0", "h3": "0000:17:00.0"}
    with Cluster(hosts_per_rack=3, racks=1) as up:
        for host, addresses in gpus.items():
            argv = ["env", "PRETEND=inside", "sh", script, "nvidia", *addresses.split(), "--", "true"]
            up.administer(host, argv)
        yield up


def test_uuids_choose_no_gpus_of_other_hosts(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    argv = [*launch_line(mpirun, tmp_path, "-H", "h1,h2"), *SHOW]
    done = cluster.run("h1", ["env", "CUDA_VISIBLE_DEVICES=GPU-00.0-0", *argv], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'GPU-00.0-0' names GPUs of one host, but the job also has h2; give numbers" in done.stderr
    ours = cluster.run("h1", ["env", "CUDA_VISIBLE_DEVICES=GPU-00.0-0,GPU-00.0-1", *argv], cwd=tmp_path)
    assert ours.returncode == 0, ours.stderr


def test_hosts_whose_gpus_hang_elsewhere(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "ddlrun", "launch", "--output", "no-tag", "--mpirun", mpirun, "-H", "h1,h2"]
    tell = SEEN.replace("int(e['OMPI_COMM_WORLD_RANK'])", "os.uname().nodename")
    both = cluster.run("h1", [*launch, sys.executable, "-c", tell], cwd=tmp_path)
    shown = [["h1", "GPU-00.0-0,GPU-00.0-1", None, None], ["h2", "GPU-00.0-0,GPU-00.0-1", None, None]]
    assert both.returncode == 0, both.stderr
    assert sorted(map(json.loads, both.stdout.splitlines())) == [shown[0], shown[0], shown[1], shown[1]]
    one = cluster.run("h1", ["env", "CUDA_VISIBLE_DEVICES=1", *launch, sys.executable, "-c", tell], cwd=tmp_path)
    assert sorted(map(json.loads, one.stdout.splitlines())) == [
        ["h1", "GPU-00.0-1", None, None], ["h2", "GPU-00.0-1", None, None],
    ]  # fmt: skip


@pytest.mark.parametrize("options", [[], ["--ranks-per-host", "gpu"], ["--ranks-per-host", "gpu", "-np", "3"]])
def test_hosts_with_different_numbers_of_gpus(
    cluster: Cluster, mpirun: str, tmp_path: Path, options: list[str]
) -> None:
    line = launch_line(mpirun, tmp_path, "--output", "no-tag", "-H", "h1,h3", *options, *SHOW)
    done = cluster.run("h1", line, cwd=tmp_path)
    both = ["GPU-00.0-0,GPU-00.0-1", None, None]
    assert seen(done) == [both, both, ["GPU-00.0-0", None, None]]
    assert "2+1: 3 ranks on h[1,3] (" in done.stderr


# Every rank stays until both hosts have samples of GPUs.
BOTH = """
import os, sys, time
def hosts():
    lines = open(sys.argv[1]).readlines() if os.path.exists(sys.argv[1]) else []
    return {host for host in ("h1", "h2") for line in lines if f'"host": "{host}"' in line and '"limits"' in line}
while len(hosts()) < 2:
    time.sleep(0.1)
"""


def test_each_host_has_samples_of_its_own_gpus(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    lines = [
        busy(number).replace("65:00.0", address) for number, address in enumerate(["17:00.0", "3b:00.0", "5e:00.0"])
    ]
    smi = install(
        tmp_path / "smi", *(line.replace(f"0000000{number}:", "00000000:") for number, line in enumerate(lines))
    )
    line = launch_line(mpirun, tmp_path, "--sample-interval", "0.2", "-H", "h1,h2")
    metrics = tmp_path / "run" / "metrics.jsonl"
    argv = ["env", f"PATH={smi.path}", *line, sys.executable, "-c", BOTH, str(metrics)]
    done = cluster.run("h1", argv, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    hosts = [sample for sample in read_samples(str(metrics)) if isinstance(sample, HostSample)]
    ranks = {sample.host: [gpu.ranks for gpu in sample.gpus] for sample in hosts if sample.gpus}
    assert ranks == {"h1": ["0", "", ""], "h2": ["", "2", "3"]}
    assert len(smi.starts()) == 2


def test_probe_says_what_differs(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("h1", [sys.executable, "-m", "ddlrun", "probe", "h[1-2]"], cwd=tmp_path)
    assert "GPUs at 0000:3b:00.0,0000:5e:00.0 instead of GPUs at 0000:17:00.0,0000:65:00.0\n" in done.stdout


# As Slurm and drivers number them: by PCI address.
IN_ORDER = "0000:17:00.0 0000:65:00.0"


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    if no_slurm():
        pytest.skip(no_slurm())
    script = str(Path(__file__).with_name("pretend_gpus.sh"))
    with SlurmCluster(2, 1, around=["sh", script, "nvidia", *IN_ORDER.split(), "--"]) as up:
        yield up


@pytest.mark.parametrize(
    ("asked", "options", "expected"),
    [
        (["--gpus-per-node=1"], [], ["GPU-00.0-1", "GPU-00.0-0"]),
        (["--gpus-per-node=1"], ["--visible-gpus", "unchanged"], ["1", "0"]),
        (["--gres=gpu:1"], ["--ranks-per-host", "gpu"], ["GPU-00.0-1", "GPU-00.0-0"]),
        (["--gpus=2", "-n2"], [], ["GPU-00.0-1", "GPU-00.0-0"]),
        (["--gpus-per-task=1", "--ntasks-per-node=1"], [], ["GPU-00.0-1", "GPU-00.0-0"]),
        # All hosts of a step get the same number of GPUs, so h2 has a rank for one of its two.
        (["--gpus=3"], [], ["GPU-00.0-1", "GPU-00.0-0"]),
    ],
    ids=["per-node", "unchanged", "gres", "in-all", "per-task", "unequal"],
)
def test_each_host_has_the_gpus_that_slurm_gave_there(
    slurm: SlurmCluster, mpirun: str, tmp_path: Path, asked: list[str], options: list[str], expected: list[str]
) -> None:
    other = slurm.submit("sleep 60", "-w", "h1", "--gres=gpu:1", f"--output={tmp_path}/other")
    slurm.wait_for(other, "RUNNING")  # it has number 0 of h1
    line = launch_line(mpirun, tmp_path, "--output", "no-tag", "--quiet", *options, *SHOW)
    job = slurm.submit(shlex.join(line), "-N2", *asked, f"--output={tmp_path}/out", cwd=tmp_path)
    slurm.wait_for(job)
    slurm.run("h1", ["scancel", other], check=True)
    lines = (tmp_path / "out").read_text().splitlines()
    assert [json.loads(line)[1] for line in sorted(lines)] == expected, lines


def test_sallocs_shell_has_the_jobs_gpus_too(slurm: SlurmCluster, mpirun: str, tmp_path: Path) -> None:
    line = launch_line(mpirun, tmp_path, "--output", "no-tag", "--quiet", *SHOW)
    script = str(Path(__file__).with_name("pretend_gpus.sh"))
    argv = ["salloc", "-Q", "-N2", "--gres=gpu:1", "sh", script, "nvidia", *IN_ORDER.split(), "--", *line]
    done = slurm.run("h1", argv, cwd=tmp_path)
    assert [rank[0] for rank in seen(done)] == ["GPU-00.0-0"] * 2
