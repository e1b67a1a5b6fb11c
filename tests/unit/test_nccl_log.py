"""NCCL's log: the networks of hosts, in the formats of several versions, and what is wrong with them."""

import json
import sys
from pathlib import Path

import pytest

from ddlrun.network.nccl_log import NcclInit, TransportProblem, find_transport_problems, parse_nccl_log
from tests.conftest import OWN, launch_line
from tests.support.launches import run

DOCTOR = [sys.executable, "-m", "ddlrun", "doctor"]
# A rank that prints its level, and writes lines as NCCL does.
RANK = """
import os, sys
print(os.environ.get("NCCL_DEBUG", "none"))
if path := os.environ.get("NCCL_DEBUG_FILE"):
    with open(path, "w") as file:
        file.writelines(f"{line}\\n" for line in sys.argv[1:])
"""


def log(host: str, *texts: str, before: str = "") -> list[str]:
    """Return lines as NCCL prints them; a WARN has the line of its source before it."""
    kinds = [text.partition("NCCL WARN ") for text in texts]
    return [
        f"{before}{host}:714:9{index:02d} [{index % 8}] " + (text if kind else f"NCCL INFO {text}")
        for index, (text, (_, kind, _)) in enumerate(zip(texts, kinds, strict=True))
    ]


ROCE = log(
    "n1",
    "Bootstrap : Using bond0:10.0.0.1<0>",
    "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB bond0:10.0.0.1<0>",
    "Using non-device net plugin version 0",
    "Using network IB",
    "comm 0x55 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1c000 commId 0x65 - Init START",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0(3)/GDRDMA/Shared",
    "Init timings: rank 2 nranks 16 total 1.08 (kernels 0.51, bootstrap 0.22, rest 0.01)",
    "Init timings - ncclCommInitRankConfig: rank 3 nranks 8 total 55.01 (kernels 52.45, alloc 0.41, rest 0.00)",
    before="[2] ",
)
# An old version, whose names of channels have no communicator, and which prints the interfaces of both networks.
OLD = log(
    "n2",
    "Bootstrap : Using [0]eth0:10.0.0.2<0>",
    "NET/Socket : Using [0]eth0:10.0.0.2<0> [1]virbr0:192.168.122.1<0>",
    "NET/IB : Using [0]mlx5_1:1/IB ; OOB eth0:10.0.0.2<0>",
    "Using network IB",
    "Ring 00 : 7 -> 8 [send] via NET/IB/0",
)
NO_DEVICE = log(
    "n3",
    "misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed",
    "transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_0",
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.0.0.3<0>",
    "Initialized NET plugin Socket",
    "Assigned NET plugin Socket to comm",
    "Using network Socket",
    "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'",
    "Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0",
)
EFA = log("n4", "NET/OFI Selected Provider is efa (found 16 nics)", "Using network Libfabric")
DISABLED = log("n5", "NCCL_IB_DISABLE set by environment to 1.", "Using network Socket")
NO_DIRECT = log("n6", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "Using network IBext_v8")


@pytest.mark.parametrize(
    ("lines", "host", "text"),
    [
        (ROCE, "n1", "IB with GPUDirect RDMA (mlx5_0:1/RoCE, mlx5_1:1/RoCE), bootstrap over bond0"),
        (OLD, "n2", "IB without GPUDirect RDMA (mlx5_1:1/IB), bootstrap over eth0"),
        (NO_DEVICE, "n3", "Socket (eth0)"),
        (EFA, "n4", "Libfabric"),
        (NO_DIRECT, "n6", "IBext_v8 without GPUDirect RDMA"),
    ],
)
def test_the_network_of_a_host(lines: list[str], host: str, text: str) -> None:
    hosts = parse_nccl_log(["loss 0.3", *lines, "NCCL version 2.21.5+cuda12.4"])
    assert {name: value.text for name, value in hosts.items()} == {host: text}


def test_the_time_of_each_start() -> None:
    assert parse_nccl_log(ROCE)["n1"].inits == (NcclInit(2, 16, 1.08), NcclInit(3, 8, 55.01))


@pytest.mark.parametrize(
    ("lines", "rdma", "texts"),
    [
        ([*ROCE, *[line.replace("n1", "n7") for line in ROCE]], {"n1": ("mlx5_0",)}, []),
        (
            NO_DEVICE, {},
            [("n3 uses sockets: it could not open mlx5_0; check ulimit -l, /dev/infiniband in containers, and "
              "NCCL_IB_HCA")],
        ),
        (
            log("n8", "Using network Socket"), {"n8": ("mlx5_0", "mlx5_1")},
            [("n8 uses sockets: although it has mlx5_0, mlx5_1; check ulimit -l, /dev/infiniband in containers, and "
              "NCCL_IB_HCA")],
        ),
        (DISABLED, {}, ["n5 uses sockets: NCCL_IB_DISABLE is 1; unset it"]),
        (log("n8", "Using network Socket"), {}, []),
        ([*ROCE, *EFA], {}, ["hosts differ: n1: IB with GPUDirect RDMA; n4: Libfabric"]),
        ([*ROCE, *OLD], {}, ["hosts differ: n1: IB with GPUDirect RDMA; n2: IB without GPUDirect RDMA"]),
    ],
)  # fmt: skip
def test_the_problems_of_networks(lines: list[str], rdma: dict[str, tuple[str, ...]], texts: list[str]) -> None:
    assert [finding.text for finding in find_transport_problems(parse_nccl_log(lines), rdma)] == texts


def test_the_expected_network() -> None:
    hosts = parse_nccl_log([*NO_DIRECT, *EFA])
    unexpected = [
        finding.hosts
        for finding in find_transport_problems(hosts, {}, "ib")
        if finding.problem is TransportProblem.UNEXPECTED
    ]
    assert unexpected == [("n4",)]


def test_the_doctor_reads_logs_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "n1.log").write_text("\n".join(ROCE))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "n3").write_text("\n".join(NO_DEVICE))
    argv = [*DOCTOR, "--dumps", str(tmp_path)]
    seen = run(argv)
    assert (seen.returncode, seen.stdout.splitlines()[2]) == (0, "slowest start of NCCL: 8 ranks in 55.01 s on n1")
    expected = run([*argv, "--expect-transport", "IB", "--json"])
    problems = {problem["problem"]: problem["hosts"] for problem in json.loads(expected.stdout)["nccl"]["problems"]}
    assert (expected.returncode, problems["unexpected"]) == (5, ["n3"])
    (tmp_path / "n1.log").unlink()
    (tmp_path / "below" / "n3").write_text("nothing")
    unknown = run([*argv, "--expect-transport", "IB"])
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "has lines of NCCL; set NCCL_DEBUG=INFO for the ranks" in unknown.stderr


def test_a_host_that_has_not_printed_yet_whether_it_has_gpudirect_does_not_differ() -> None:
    hosts = parse_nccl_log([*ROCE, *log("n7", "Using network IB")])
    assert find_transport_problems(hosts, {}) == []


def test_the_first_rank_of_a_host_with_gpus_logs_for_ddlrun_alone(tmp_path: Path) -> None:
    line = launch_line(OWN, tmp_path, "-np", "2", "--quiet", "--output", "no-tag")
    done = run(line, sys.executable, "-c", RANK, *NO_DEVICE, CUDA_VISIBLE_DEVICES=0)
    assert sorted(done.stdout.splitlines()) == ["INFO", "none"]
    assert done.stderr.startswith("ddlrun: warning: NCCL: localhost uses sockets: it could not open mlx5_0;")
    kept = (tmp_path / "run" / "nccl" / "localhost.log").read_text()
    assert ("Using network Socket" in kept, "Assigned NET plugin" in kept) == (True, False)
    shown = run([*DOCTOR, str(tmp_path / "run")])
    assert shown.stdout.splitlines()[0] == "NCCL on localhost: Socket (eth0)"


@pytest.mark.parametrize("variable", ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE"])
def test_what_a_user_lets_nccl_log_stays(tmp_path: Path, variable: str) -> None:
    (tmp_path / "value").write_text("NCCL_DEBUG=WARN\n")
    line = launch_line(OWN, tmp_path, "-np", "1", "--quiet", sys.executable, "-c", RANK, *NO_DEVICE)
    done = run(line, **{"CUDA_VISIBLE_DEVICES": 0, variable: tmp_path / "value"})
    level = str(tmp_path / "value") if variable == "NCCL_DEBUG" else "none"
    assert (done.stdout, done.stderr) == (f"{level}\n", "")
    assert not (tmp_path / "run" / "nccl").exists()
