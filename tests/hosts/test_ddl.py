"""The runtime library over hosts in two racks: what it sees, and what it sends over the slow links."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import launch_line
from tests.support import needs

pytestmark = [pytest.mark.busy, pytest.mark.extra]

ROOT = Path(__file__).parents[2]
BYTES = 8 * 2**20
PROGRAM = f"""
import json, os, sys, zlib
import numpy as np
from ddlrun import ddl
ddl.init("-mode r")  # mode p would spend reductions on finding the best way
x = np.random.default_rng(ddl.rank()).integers(0, 100, {BYTES} // 4).astype(np.float32)
exact = sum(np.random.default_rng(rank).integers(0, 100, {BYTES} // 4) for rank in range(ddl.size()))
ddl.all_reduce(x, in_place=True)
# The uplink's half is rounded on its way within a rack, between racks, and once more as the result.
off = 3 * 2.0**-8 * exact if "wire" in os.environ.get("DDLRUN_DDL_TUNING", "") else 0
same = bool((abs(x - exact) <= off).all() and len(set(ddl.allgather(zlib.crc32(x)).tolist())) == 1)
local = ddl.local_rank(), ddl.local_size()
place = dict(rank=ddl.rank(), coords=ddl.coords(), local=local, hosts=ddl.num_hosts(), host=os.uname().nodename)
os.write(1, (json.dumps(dict(place, right=same)) + "\\n").encode())
"""


@pytest.mark.parametrize(("order", "wire"), [("host", ""), ("ddl", ""), ("ddl", "bfloat16"), ("host", "float16:Z")])
def test_uplinks_carry_the_least_in_both_orders_of_ranks(
    cluster: Cluster, mpirun: str, tmp_path: Path, order: str, wire: str
) -> None:
    argv = [
        *launch_line(mpirun, tmp_path, "--output", "no-tag"),
        "-H",
        "h1,h2,h3,h4",
        "--racks",
        "2",
        "--checks",
        "none",
    ]
    argv += ["--ranks-per-host", "core", "--rank-order", order, "--env", "OMPI_MCA_mpi_yield_when_idle=1"]
    argv += ["--env", f"DDLRUN_DDL_TUNING=wire={wire}"] * bool(wire)
    before = cluster.uplink_bytes(0)
    done = cluster.run("h1", [*argv, sys.executable, "-c", PROGRAM], cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    ranks = sorted(map(json.loads, done.stdout.splitlines()), key=lambda rank: int(rank["rank"]))
    cores = len(os.sched_getaffinity(0))
    assert len(ranks) == 4 * cores
    for rank in ranks:
        x, y, z = rank["coords"]
        assert (rank["right"], rank["hosts"], rank["local"]) == (True, 4, [x, cores])
        assert rank["host"] == f"h{2 * z + y + 1}"
    # Two racks: each must bring half of the buffer out in partial sums, half of the result; in 16 bits half of that.
    least = BYTES // 2 if wire else BYTES
    for late, early in zip(cluster.uplink_bytes(0), before, strict=True):
        assert least < late - early < 1.1 * least


@pytest.mark.openmpi(4)
@pytest.mark.parametrize(
    ("words", "order", "problem"),
    [
        ("", "", "; set DDLRUN_RANK_ORDER=host on all ranks\n"),
        ("", "host", ""),
        ("--map-by node", "", ""),
        ("--map-by node", "host", "; set DDLRUN_RANK_ORDER=ddl on all ranks\n"),
    ],
)
def test_a_rank_order_of_mpirun_that_does_not_match_the_hosts_is_reported(
    cluster: Cluster, mpirun: str, words: str, order: str, problem: str
) -> None:
    order_here = ["-x", f"DDLRUN_RANK_ORDER={order}"] if order else []
    argv = [mpirun, "-H", "h1:2,h2:2,h3:2,h4:2", *words.split(), "-x", "DDL_OPTIONS=-mode r:2x2x2", *order_here]
    argv += ["-x", "OMPI_MCA_mpi_yield_when_idle=1", sys.executable, "-c"]
    program = "import os; from ddlrun import ddl; ddl.init(); os.write(1, b'%d\\n' % ddl.all_reduce(1))"
    done = cluster.run("h1", [*argv, program], cwd=ROOT, timeout=300)
    assert (done.returncode, done.stdout) == (0, "8\n" * 8), done.stderr
    begin = (
        f"ddlrun.ddl: 2x2x2 in {order or 'ddl'} order does not match the hosts, so reductions are slow: dimension X "
    )
    found = [line for line in done.stderr.splitlines(keepends=True) if "ddlrun.ddl" in line]
    assert found == ([f"{begin}leaves a host in 8 of 8 steps instead of 0{problem}"] if problem else [])


# Arrays of which parts are exchanged inside the hosts, by both transports and the backend of torch.distributed.
ARRAYS = """
import os, sys, time, zlib
import numpy as np
if sys.argv[1] in ("group", "late"):
    import torch, torch.distributed as dist
    import ddlrun.ddl.torch
    dist.init_process_group("ddl")
    rank, size = dist.get_rank(), dist.get_world_size()
    if sys.argv[1] == "late":
        dist.group.WORLD._collectives.group.schedules.set_late_host(1)
    ops = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX}

    def reduce(x, op):
        tensor = torch.from_numpy(x)
        time.sleep(rank % 2 / 20)  # all that a peer on this host sends first is then here
        dist.all_reduce(tensor, op=ops[op])
        return tensor.numpy()
else:
    from ddlrun import ddl
    ddl.init("-mode r")
    rank, size = ddl.rank(), ddl.size()
    reduce = ddl.all_reduce

for count in map(int, sys.argv[2:]):
    numbers = np.random.default_rng(count).integers(0, 9, count + size)
    for dtype in ("int64", "float32", "float16"):
        for op in ("sum", "max") if dtype == "int64" else ("sum", "avg"):
            every = np.array([numbers[other : other + count] for other in range(size)], dtype)
            exact = every.max(axis=0) if op == "max" else every.sum(axis=0, dtype="float64")
            exact = exact / size if op == "avg" else exact
            result = reduce(every[rank].copy(), op)
            assert np.allclose(result, exact, rtol=1e-2 if dtype == "float16" else 1e-6), (count, dtype, op)
            crc = np.array([float(zlib.crc32(result))])
            assert reduce(crc.copy(), "max") == crc, (count, dtype, op)
os.write(1, b"right\\n")
"""


@pytest.mark.openmpi(4)
@pytest.mark.parametrize(
    ("transport", "tuning", "counts"),
    [
        ("mpi", "", (1, 3_000_001)),
        ("tcp", "", (1, 5, 999_999, 3_000_001)),
        ("tcp", "chunk=128K,depth=4,connections=4", (999_999,)),
        ("tcp", "wire=int8:XYZ", (3_000_001,)),
        ("tcp", "wire=bfloat16:X", (3_000_001,)),
        ("group", "", (1, 3_000_001)),
        ("group", "chunk=4K,depth=16", (20_003,)),
        ("late", "", (1, 600_001)),
    ],
)
def test_results_over_hosts(
    cluster: Cluster, mpirun: str, tmp_path: Path, transport: str, tuning: str, counts: tuple[int, ...]
) -> None:
    if transport in {"group", "late"}:
        needs.package("torch", "torch==2.13.0")
    argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), "-H", "h1:2,h2:2,h3:2,h4:2"]
    argv += ["--racks", "2"] if transport != "late" else []
    argv += ["--checks", "none", "--env", "OMPI_MCA_mpi_yield_when_idle=1"]
    argv += ["--env", f"DDLRUN_DDL_TUNING={tuning}"]
    argv += ["--env", f"DDLRUN_DDL_TRANSPORT={transport}"] if transport in {"mpi", "tcp"} else []
    done = cluster.run("h1", [*argv, sys.executable, "-c", ARRAYS, transport, *map(str, counts)], cwd=ROOT, timeout=300)
    assert (done.returncode, done.stdout) == (0, "right\n" * 8), done.stderr


# Mode p measures the NICs in every fourth reduction; on a busy machine, several times until sized blocks are faster.
MEASURES = """
import json, os
import numpy as np
from ddlrun import ddl
from ddlrun.ddl.session import current_learner
ddl.init("-mode p", tuning="explore=1,measure=4M")
schedules = current_learner().reducer.schedules
x = np.random.default_rng(ddl.rank()).integers(0, 100, 2**18).astype(np.float32)
exact = sum(np.random.default_rng(rank).integers(0, 100, 2**18) for rank in range(ddl.size()))
right = []
while schedules.layout is None:
    right.append(bool((ddl.all_reduce(x) == exact).all()))
right.append(bool((ddl.all_reduce(x) == exact).all()))
line = json.dumps(dict(right=all(right), steps=len(right), shares=schedules.layout.shares.hosts[0]))
os.write(1, (line + "\\n").encode())
"""

# The same in the backend of torch.distributed. Every second member begins its allreduce only after a message of one
# that has begun it already; a further collective follows before it is complete.
MEASURES_IN_GROUP = """
import json, os
import torch, torch.distributed as dist
import ddlrun.ddl.torch
dist.init_process_group("ddl")
rank, size = dist.get_rank(), dist.get_world_size()
schedules = dist.group.WORLD._collectives.group.schedules
mine = torch.randint(100, (2**18,), generator=torch.Generator().manual_seed(rank)).float()
numbers = [torch.empty_like(mine) for _ in range(size)]
dist.all_gather(numbers, mine)
exact = sum(numbers)

def reduce():
    x, message, ranks = mine.clone(), torch.tensor([rank]), torch.tensor([rank])
    if rank % 2 == 0:
        dist.recv(message, rank + 1)
    work = dist.all_reduce(x, async_op=True)
    if rank % 2:
        dist.send(message, rank - 1)
    dist.all_reduce(ranks)
    work.wait()
    return bool((x == exact).all()) and ranks.item() == 6 and message.item() == rank // 2 * 2 + 1

right = [reduce()]
while schedules.layout is None:
    right.append(reduce())
right.append(reduce())
line = json.dumps(dict(right=all(right), steps=len(right), shares=schedules.layout.shares.hosts[0]))
os.write(1, (line + "\\n").encode())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def slow_nic() -> Iterator[Cluster]:
    """Provide h1 to h4 in a rack; the NIC of h3 has a quarter of the others' rate."""
    with Cluster(hosts_per_rack=4, racks=1, nic="160mbit", nics={"h3": "40mbit"}) as hosts:
        yield hosts


@pytest.mark.openmpi(4)
@pytest.mark.parametrize("transport", ["mpi", "tcp", "group"])
def test_a_slow_nic_is_reported_and_given_no_blocks(
    slow_nic: Cluster, mpirun: str, tmp_path: Path, transport: str
) -> None:
    if transport == "group":
        needs.package("torch", "torch==2.13.0")
    argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), "-H", "h1:1,h2:1,h3:1,h4:1", "--checks", "none"]
    argv += ["--env", "OMPI_MCA_mpi_yield_when_idle=1", "--env", f"XDG_STATE_HOME={tmp_path}"]
    argv += ["--env", "DDLRUN_DDL_TUNING=measure=4M"] if transport == "group" else []
    argv += ["--env", f"DDLRUN_DDL_TRANSPORT={transport}"] if transport != "group" else []
    program = MEASURES_IN_GROUP if transport == "group" else MEASURES
    done = slow_nic.run("h1", [*argv, sys.executable, "-c", program], cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    first, *others = map(json.loads, done.stdout.splitlines())
    assert others == [first] * 3  # rank 0 decides for all
    assert first["right"]
    assert first["shares"][2] == min(first["shares"]) < 0.1
    assert re.search(r"ddlrun\.ddl: h3's NIC carries \d+ % of the others'", done.stderr)


LATE_IN_GROUP = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import ddlrun.ddl.torch
from ddlrun.ddl.selection import late_host_monitor
late_host_monitor.INTERVAL = 8
delay, limit, reductions = map(float, sys.argv[1:])
dist.init_process_group("ddl", timeout=timedelta(seconds=limit))
rank, wrong, number = dist.get_rank(), 0, 0
late = lambda: dist.group.WORLD._collectives.group.schedules.late_host
while number < reductions or (not reductions and late() is None):
    number += 1
    small, large = torch.full((3,), rank), torch.full((2**18,), float(rank + number))
    time.sleep(delay if rank == 2 else 0)
    works = [dist.all_reduce(x, async_op=True) for x in (large, small)]
    for work in works:
        work.wait()
    wrong += bool((large != 6 + 4 * number).any()) + bool((small != 6).any())
os.write(1, f"{wrong} wrong, late: {late()}\\n".encode())
dist.destroy_process_group()
"""


def run_with_a_late_host(hosts: Cluster, mpirun: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    needs.package("torch", "torch==2.13.0")
    argv = [*launch_line(mpirun, folder, "--output", "no-tag"), "-H", "h1:1,h2:1,h3:1,h4:1", "--checks", "none"]
    return hosts.run("h1", [*argv, sys.executable, "-c", LATE_IN_GROUP, *words], cwd=ROOT, timeout=300)


@pytest.mark.openmpi(4)
@pytest.mark.extra
def test_a_late_host_is_taken_last_by_the_backend(mpirun: str, tmp_path: Path) -> None:
    with Cluster(hosts_per_rack=4, racks=1, nic="40mbit") as hosts:
        done = run_with_a_late_host(hosts, mpirun, tmp_path, "0.2", "300", "0")
    assert (done.returncode, done.stdout) == (0, "0 wrong, late: 2\n" * 4), done.stderr
    assert re.search(r"ddlrun\.ddl: h3 begins reductions 0\.\d+ s after the others: it is taken last", done.stderr)


@pytest.mark.openmpi(4)
@pytest.mark.extra
def test_trials_with_a_host_that_is_very_late_take_less_than_the_time_limit(mpirun: str, tmp_path: Path) -> None:
    """There are twelve trials, in one allreduce. With the whole delay they would take more than 20 s."""
    with Cluster(hosts_per_rack=4, racks=1) as hosts:
        done = run_with_a_late_host(hosts, mpirun, tmp_path, "1.7", "20", "10")
    assert done.returncode == 0, done.stderr
    assert [line.partition(",")[0] for line in done.stdout.splitlines()] == ["0 wrong"] * 4


# The measurement takes several seconds over the slow NIC; rank 3 leaves it in the middle.
LEAVES = """
import os, signal, sys, threading
from datetime import timedelta
import torch, torch.distributed as dist
import ddlrun.ddl.torch
dist.init_process_group("ddl", timeout=timedelta(seconds=8))
leave = {"stop": lambda: os.kill(os.getpid(), signal.SIGSTOP), "abort": lambda: dist.group.WORLD.abort()}[sys.argv[1]]
x = torch.ones(2**20)
dist.barrier()
if dist.get_rank() == 3:
    threading.Timer(1, leave).start()
try:
    dist.all_reduce(x)
except RuntimeError as error:
    print(error, flush=True)
os._exit(1)
"""


@pytest.mark.openmpi(4)
@pytest.mark.parametrize(
    ("leaves", "error"),
    [
        ("stop", "allreduce was not complete at the timeout of 8 s: rank 3 did not reply"),
        ("abort", "rank 3: the process group was aborted"),
    ],
)
def test_a_rank_may_leave_a_measurement_of_the_nics(
    slow_nic: Cluster, mpirun: str, tmp_path: Path, leaves: str, error: str
) -> None:
    needs.package("torch", "torch==2.13.0")
    argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), "-H", "h1:1,h2:1,h3:1,h4:1", "--checks", "none"]
    argv += ["--env", "DDLRUN_DDL_TUNING=measure=1M"]
    done = slow_nic.run("h1", [*argv, sys.executable, "-c", LEAVES, leaves], cwd=ROOT, timeout=300)
    assert error in done.stdout, done.stderr
    assert "has waited" not in done.stderr
