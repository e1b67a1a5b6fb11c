"""The backend "ddl" of torch.distributed, beside gloo."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlrun.ddl.group.engine import Engine
from ddlrun.ddl.group.operation import Chunk, Limits
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.schedules.schedule import broadcast
from ddlrun.ddl.transports.tcp.communicator import Messages, TcpCommunicator, TcpTransport
from ddlrun.errors import LostRankError
from ddlrun.keeper.program import HOOK
from tests.conftest import OWN, launch_line
from tests.ddl.test_tcp import ROOT, endpoints, started_alone
from tests.support import needs
from tests.support.ports import reserved_port

needs.package("torch", "torch==2.13.0", module=True)

import torch

from ddlrun.ddl.torch.backend.errors import GroupError
from ddlrun.ddl.torch.backend.progress_thread import ProgressThread
from ddlrun.ddl.torch.backend.reductions import ReduceOp, find_operator
from ddlrun.ddl.torch.backend.works import Call, FutureWork
from tests.ddl import conformance

RANKS = Path(__file__).parent / "backend_ranks.py"
DEVICE_RANKS = Path(__file__).parent / "device_ranks.py"
CALLBACK = "Got the following error when running the callback:"
pytestmark = pytest.mark.extra
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


# The sums of the backend and of ddl, of the same arrays over several steps.
NARROW = """
import os, torch, torch.distributed as dist
import ddlrun.ddl.torch
from ddlrun import ddl
dist.init_process_group("ddl")
ddl.init("-mode r")
rank = dist.get_rank()
mine = torch.rand(100_003, generator=torch.Generator().manual_seed(rank)) - 0.5
exact = sum(torch.rand(100_003, generator=torch.Generator().manual_seed(r)) - 0.5 for r in range(3))
by_group, by_ddl = mine.clone(), mine.clone()
for step in range(3):
    dist.all_reduce(by_group.copy_(mine))
    ddl.all_reduce(by_ddl.copy_(mine), in_place=True)
    assert torch.equal(by_group, by_ddl), step
errors = (by_group - exact).abs()
longs = torch.full((100_003,), rank)
dist.all_reduce(longs)
assert (longs == 3).all()
os.write(1, f"{bool(errors.max() > 1e-5)} {bool(errors.max() < 0.1)}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("wire", ["bfloat16:X", "int8:X"])
def test_the_backend_narrows_float32_to_the_same_bits_as_ddl(wire: str) -> None:
    ends = started_alone(3, "-c", NARROW, DDLRUN_DDL_TUNING=f"wire={wire},flat=4K")
    assert [(end.stdout, end.stderr) for end in ends] == [("True True\n", "")] * 3


# Every second rank begins its allreduce only after a message of one that has begun it already.
EXPLORES = """
import os, torch, torch.distributed as dist
import ddlrun.ddl.torch
dist.init_process_group("ddl")
rank = dist.get_rank()
for count in (2**18, 2**18, 2**16):
    x, message = torch.full((count,), float(rank)), torch.tensor([rank])
    if rank == 0:
        dist.recv(message, 1)
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        dist.send(message, 0)
    work.wait()
    assert (x == 3).all(), count
dist.destroy_process_group()
"""


def test_the_backend_explores_by_name_and_keeps_the_results(tmp_path: Path) -> None:
    for _ in range(2):
        ends = started_alone(3, "-c", EXPLORES, DDLRUN_DDL_TUNING="explore=5", XDG_STATE_HOME=str(tmp_path))
        assert [(end.returncode, end.stderr) for end in ends] == [(0, "")] * 3
    (file,) = tmp_path.glob("ddlrun/explored/*.json")
    assert sorted(json.loads(file.read_text())["algorithms"]) == ["float32 1048576 start", "float32 262144 start"]


def test_results_are_those_of_gloo_and_errors_name_ranks() -> None:
    """The start-up hook of ranks waits at the end for gloo's threads, of which one may abort the process otherwise."""
    # Where there is a GPU, torch's PowerSGD takes tensors on the CPU for its own.
    environ = {"PYTHONPATH": f"{HOOK}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    with reserved_port() as port:
        ends = started_alone(3, str(RANKS), str(port), **environ)
    assert [(end.returncode, end.stderr) for end in ends if end.returncode] == []
    outputs = [end.stdout.splitlines() for end in ends]
    assert [lines[-1] for lines in outputs] == [f"{count} results, of which differ: []" for count in (30, 26, 27)]
    assert [line.split(": ")[3] for line in outputs[2][:3]] == [
        "invalid output tensor list at index 0",
        "invalid tensor size at index 0",
        "the output has 2 rows, which 3 ranks do not divide",
    ]
    refused = [f"{kind}: ArgumentError: backend ddl: {text}; use SUM, or cast to another type" for kind, text in (
        ("bits", "float32 does not support BAND"), ("average", "bool does not support AVG"),
        ("factor", "float32 does not support PREMUL_SUM"),
    )]  # fmt: skip
    assert all(lines[3:6] == refused for lines in outputs)
    assert {lines[6] for lines in outputs} == {
        "tag: ArgumentError: ddl send: tag 1099511627776 is not from 0 to 2147483647"
    }
    assert [lines[7] for lines in outputs] == [
        f"itself: ArgumentError: ddl send: rank {rank} is this rank; copy the tensor instead" for rank in range(3)
    ]
    late = "was not complete at the timeout of 10 s: rank 2 had not"
    for rank in (0, 1):
        assert [line.replace(f"rank {rank}: ", "") for line in outputs[rank][9:13]] == [
            f"silent: GroupError: group 2 (3 ranks), allreduce {late} called it",
            f"then: GroupError: group 2 (3 ranks), allreduce {late} called it",
            f"ddp: RuntimeError: {CALLBACK} GroupError: group 3 (3 ranks), allreduce {late} called it",
            f"recv: GroupError: group 4 (3 ranks), recv with tag 4 {late} sent it",
        ]
    assert outputs[0][13:-1] == [
        f"some: GroupError: group 5 (2 ranks), rank 0: allreduce {late} called it",
        "monitored: GroupError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms",
        "aborted: group 6 (3 ranks), rank 0: the process group was aborted",
        "after: GroupError: group 6 (3 ranks), rank 0: the process group was aborted",
        "absent: GroupError: group 8 (3 ranks), rank 0: rank 2 did not arrive within 10 s",
    ]
    assert outputs[1][13:-1] == [
        "aborted: GroupError: group 6 (3 ranks), rank 1: rank 0 is lost: it has ended",
        "peer: GroupError: group 7 (2 ranks), rank 1: rank 2 is lost: it reports an error of its own",
        "absent: GroupError: group 8 (3 ranks), rank 1: rank 2 did not arrive within 10 s",
    ]
    shorter = "recv with tag 0 (float32[5]): rank 1 is in another call, or its tensor has another size; all ranks must "
    shorter += "make the same calls, with tensors of the same size and type"
    assert outputs[2][9:-1] == [f"shorter: WrongLengthError: group 7 (2 ranks), rank 2: {shorter}"]
    assert all(line.startswith("[rank") for end in ends for line in end.stderr.splitlines()), ends


def test_every_operation_has_the_results_of_gloo_for_every_type_shape_and_group_size() -> None:
    signs = conformance.run(3)
    assert {case: found for case, found in signs.items() if set(found) - set("=+.")} == {}
    assert {case for case, found in signs.items() if "=" in found} >= {
        ("allreduce AVG", "complex64"),
        ("gather", "bool"),
    }


def test_a_collective_that_is_completed_by_the_start_of_another_one_is_noticed() -> None:
    data, done, started = np.zeros(1 << 26, np.uint8), threading.Event(), threading.Event()
    with endpoints(2, hosts="ab") as (here, there):
        transport = TcpTransport[Chunk](TcpCommunicator(here, range(2), 1))
        engine = Engine(transport, 0)
        thread = ProgressThread(here, engine, transport, 300, lambda _rank: True)

        def start() -> Callable[[], bool]:
            operation = engine.start(
                data, find_reduce_op("uint8", "sum"), lambda count, _: broadcast(0, 2, 0, count), Limits(len(data))
            )
            return lambda: not operation.left

        def start_another() -> Callable[[], bool]:
            started.set()
            while not transport.complete:
                there.poll(0.01)
                here.connections.get(1).flush()  # as any wait does
            return lambda: False

        try:
            thread.submit(Call("broadcast", None), start, done.set)
            while not here.connections.all() or not here.connections.get(1).is_connected:
                there.poll(0.01)
            thread.submit(Call("allreduce", None), start_another, lambda: None)
            assert started.wait(60)
            assert done.wait(60)
        finally:
            thread.abort()


@pytest.mark.parametrize("place", ["start", "progress"])
def test_an_exception_in_the_thread_fails_all_works_of_the_group(place: str) -> None:
    def breaks() -> Any:
        raise TypeError(place)

    with endpoints(2, hosts="ab") as (here, there):
        transport = TcpTransport[Chunk](TcpCommunicator(here, range(2), 1))
        thread = ProgressThread(here, Engine(transport, 0), transport, 300, lambda _rank: True)
        try:
            waits = thread.submit(Call("recv", None, missing="nothing"), lambda: lambda: False, lambda: None)
            start = breaks if place == "start" else lambda: breaks
            broken = thread.submit(Call("allreduce", None), start, lambda: None)
            message = Messages(TcpCommunicator(there, range(2), 1))
            message.receive(np.empty(1), 0, 0)
            with pytest.raises(LostRankError, match="rank 1 of 2: rank 0 is lost: it reports an error of its own"):
                message.Wait()
            later = thread.submit(Call("allreduce", None), lambda: lambda: True, lambda: None)
            for future in (broken, waits, later):
                with pytest.raises(GroupError, match=f"rank 0 of 2: TypeError: {place}"):
                    future.wait()
        finally:
            thread.abort()


def test_the_average_of_integers_is_divided_towards_zero() -> None:
    """As with NCCL, for which programs use it. More ranks than the type can count are not an error."""
    for dtype, values, divisor, average in (
        ("int8", [-7, 7, 100], 5, [-1, 1, 20]), ("int8", [-7, 7, 100], 300, [0, 0, 0]), ("uint64", [2**63], 2, [2**62]),
    ):  # fmt: skip
        mine = np.array(values, dtype)
        find_operator(ReduceOp.AVG, dtype).combine(mine, np.zeros_like(mine), divisor)
        assert mine.tolist() == average


def test_futures_are_complete_when_their_works_are() -> None:
    for _ in range(100):
        source: torch.futures.Future[int] = torch.futures.Future()
        work = FutureWork(source, 5)
        given = work.get_future()
        threading.Thread(target=source.set_result, args=(5,)).start()
        work.wait()
        assert (given.value(), work.get_future().value()) == (5, 5)


ENDS = """
import time
import torch
import torch.distributed as dist
import ddlrun.ddl.torch
dist.init_process_group("ddl", store=dist.HashStore(), rank=0, world_size=1)

def callback(_future):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass
    print("called back", flush=True)

dist.all_reduce(torch.ones(3), async_op=True).get_future().then(callback)
"""


@pytest.mark.parametrize("last", ["", "dist.destroy_process_group()"])
def test_a_script_may_end_while_a_callback_runs(last: str) -> None:
    """Python kills threads at its end, and C++ code aborts the process when it is killed."""
    done = subprocess.run([sys.executable, "-c", ENDS + last], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "called back\n"), done.stderr


FORKS = """
import os, sys
import torch
import torch.distributed as dist
import ddlrun.ddl.torch
dist.init_process_group("ddl", store=dist.HashStore(), rank=0, world_size=1)
child = os.fork()
try:
    dist.all_reduce(torch.ones(3))
except RuntimeError as error:
    print(error)
if child:
    sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_call_in_a_forked_process_is_an_error() -> None:
    """It has no thread that could complete the call."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False, timeout=120)
    owner = "default group (1 ranks), rank 0: the process group is that of the parent process; create another one here"
    assert (done.returncode, done.stdout) == (0, owner + "\n"), done.stderr


BY_NAME = """
import sys
import torch
import torch.distributed as dist
print([name for name in sys.modules if name.partition(".")[0] == "ddlrun"])
dist.init_process_group("ddl", store=dist.HashStore(), rank=0, world_size=1)
value = torch.ones(3)
dist.all_reduce(value)
dist.distributed_c10d._set_pg_timeout(__import__("datetime").timedelta(seconds=9))
print(dist.get_backend(), value.tolist())
import ddlrun.ddl.torch
"""


# Without torch's entry point for extensions.
UNEXTENDED = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def test_a_rank_knows_the_backend_by_its_name() -> None:
    environ = {**os.environ, **UNEXTENDED, "PYTHONPATH": f"{HOOK}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", BY_NAME], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\nddl [1.0, 1.0, 1.0]\n"), done.stderr


DDP = """
import sys
import torch
assert not {"ddlrun.ddl", "ddlrun.errors", "mpi4py"} & {*sys.modules}
torch.distributed.init_process_group("ddl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.full((1, 2), 2.0 * torch.distributed.get_rank())).sum().backward()
print(model.module.weight.grad.tolist())
torch.distributed.destroy_process_group()
"""


def train(folder: Path, argv: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Train over two ranks with a launcher."""
    script = folder / "train.py"
    script.write_text(DDP)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    return subprocess.run([*argv, str(script)], env=environ, capture_output=True, text=True, check=False, timeout=300)


def test_under_ddlrun_a_script_needs_no_import(tmp_path: Path) -> None:
    options = ("-np", "2", "--output", "no-tag")
    done = train(tmp_path, launch_line(OWN, tmp_path, *options), UNEXTENDED)
    assert (done.returncode, done.stdout.count("[[1.0, 1.0]]")) == (0, 2), done.stderr
    done = train(tmp_path, launch_line(OWN, tmp_path / "off", *options), {**UNEXTENDED, "DDLRUN_HOOK": "none"})
    assert done.returncode == 1
    assert "Unknown backend type ddl" in done.stderr, done.stderr


def test_under_torchrun_a_script_needs_no_import_where_ddlrun_is_installed(tmp_path: Path) -> None:
    installed = tmp_path / "ddlrun-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ddlrun\nVersion: 0\n")
    project = (ROOT / "pyproject.toml").read_text()
    (function,) = re.findall(r'entry-points."torch.backends"\]\nddl = "(.*)"', project)
    (installed / "entry_points.txt").write_text(f"[torch.backends]\nddl = {function}\n")
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = train(tmp_path, argv, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (done.returncode, done.stdout.count("[[1.0, 1.0]]")) == (0, 2), done.stderr


# What torch imports of TorchComms: it has gloo, and no other backend.
TORCHCOMMS = {
    "__init__.py": """
def is_backend_built(backend):
    return backend == "gloo"
def new_comm(backend, *arguments, **words):
    raise RuntimeError(f"TorchComms makes {backend}")
""",
    "_comms.py": """
class _BackendWrapper:
    pass
def _is_backend_registered(backend):
    return False
""",
    "hooks.py": "class FlightRecorderHook:\n    pass\n",
}
BESIDE_TORCHCOMMS = """
import torch
import torch.distributed as dist
dist.init_process_group("ddl")
some, rank = dist.new_group(), dist.get_rank()
rows = list(torch.zeros(2, 1)) if rank == 0 else None
dist.gather(torch.ones(1), rows, 0, group=some)
dist.barrier()
print(dist.distributed_c10d._TORCHCOMM_AVAILABLE, rows)
"""


def test_torchcomms_makes_no_groups_of_the_backend(tmp_path: Path) -> None:
    """A stand-in takes its place, as there is no release of it."""
    (tmp_path / "torchcomms").mkdir()
    for name, text in TORCHCOMMS.items():
        (tmp_path / "torchcomms" / name).write_text(text)
    environ = {"PYTHONPATH": f"{HOOK}:{tmp_path}:{ROOT}", "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1", **UNEXTENDED}
    ends = started_alone(2, "-c", BESIDE_TORCHCOMMS, **environ)
    assert [end.stdout for end in ends] == [
        "True [tensor([1.]), tensor([1.])]\n",
        "True None\n",
    ], [end.stderr for end in ends]


def test_a_python_without_ddlrun_is_named(tmp_path: Path) -> None:
    (tmp_path / "ddlrun").mkdir()
    (tmp_path / "ddlrun" / "__init__.py").touch()  # hides the one of this Python
    environ = {**os.environ, **UNEXTENDED, "PYTHONPATH": f"{HOOK}:{tmp_path}"}
    argv = [sys.executable, "-c", BY_NAME]
    done = subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"""ModuleNotFoundError: backend "ddl": no module 'ddlrun.ddl': install ddlrun for {sys.executable}"""
    )


ALONE = """
import torch
import torch.distributed as dist
import ddlrun.ddl.torch
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    dist.all_reduce(torch.ones(3), group=dist.new_group(backend="ddl"))
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("DDLRUN_DDL_LINKS=nics=100+50", "DDLRUN_DDL_LINKS 'nics=100+50': 2 NICs, but the job has 1\n"),
        ("DDLRUN_DDL_TUNING=speed=9", "DDLRUN_DDL_TUNING 'speed=9': 'speed=9' is not NAME=NUMBER with "),
    ],
)
def test_a_wrong_variable_is_an_error_of_the_group(variable: str, message: str) -> None:
    name, _, value = variable.partition("=")
    environ = {**os.environ, name: value, "PYTHONPATH": f"{HOOK}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", ALONE], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(message), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("device", "backend"), [("meta", "fake"), ("meta", "gloo"), pytest.param("cuda", "nccl", marks=NO_GPU)]
)
def test_tensors_on_another_device_go_to_the_backend_that_the_script_names(device: str, backend: str) -> None:
    """On the device "meta", whose tensors have no data, torch calls the backend as it does for GPUs."""
    size = 3  # NCCL's ranks share GPUs if there are fewer
    with reserved_port() as first, reserved_port() as second:
        ends = started_alone(size, str(DEVICE_RANKS), device, backend, str(first), str(second))
    assert [end.stderr for end in ends if end.returncode] == []
    for rank, end in enumerate(ends):
        place = f"cuda:{rank % torch.cuda.device_count()}" if device == "cuda" else device
        remedy = f"cpu:ddl,{device}:{'nccl' if device == 'cuda' else 'BACKEND'}"
        refusal = f"ArgumentError: backend ddl: the group has no backend for tensors on {place}; name one when you "
        refusal += f'create it, as in init_process_group("{remedy}")'
        members = sorted({0, size - 1})
        everyone = f"[{', '.join([f'{size}.0'] * 3)}] {list(range(size))}"
        some = f"[{', '.join([f'{len(members)}.0'] * 3)}] {list(range(len(members)))}"
        ended = f"GroupError: group 1 ({len(members)} ranks), rank {rank}: the process group has ended"
        assert end.stdout.splitlines() == [
            line
            for names in (f"cpu:ddl,{device}:{backend}", f"{device}:{backend},cpu:ddl")
            for line in (
                f"['done'] {everyone}",
                f"{names} True True ['cpu', '{device}']",
                f"ArgumentError: ddl broadcast: invalid tensor device at index 1: {place}, not cpu",
                f"ArgumentError: ddl broadcast: tensors on {place} and on other devices in one call",
                *((f"['done'] {some}", ended) if rank in members else ()),
                f"['done'] {everyone}",
                f"{sorted([refusal, 'done'])} {everyone}",
                "True",
            )
        ]
