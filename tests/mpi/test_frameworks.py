"""What ranks find in their environment for each framework, and the options of other launchers."""

import contextlib
import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.cli.launch import command as launch_command
from ddlrun.cli.options.argv import split_argv
from ddlrun.cli.options.translation import translate
from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.environment.framework_builds import FrameworkBuild, parse_build, render_builds
from ddlrun.environment.frameworks import (
    AUTO,
    MOST_WORKERS,
    OWN,
    WORKERS,
    Rendezvous,
    count_ports,
    parse_frameworks,
    plan_framework_variables,
    resolve,
)
from ddlrun.environment.horovod_hierarchical import (
    HorovodContext,
    find_collectives_choice,
    plan_hierarchical_variables,
)
from ddlrun.environment.library_settings import SETTINGS
from ddlrun.environment.rendezvous_ports import FIRST, LAST, choose_ports, is_free_here, parse_ports
from ddlrun.errors import InputError, PreflightError
from ddlrun.managers.openmpi.dialects import OpenMpi4
from ddlrun.plan.plan import START
from ddlrun.preflight.host_facts import list_ports
from ddlrun.topology import RankOrder
from tests.conftest import MPIRUNS, launch_line
from tests.support import needs
from tests.support.shapes import machine, placement
from tests.unit.test_settings import HOROVODS_OWN

pytestmark = pytest.mark.openmpi(4)

TOLD = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
    "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS MASTER_ADDR "
    "MASTER_PORT TF_CONFIG JAX_COORDINATOR_ADDRESS JAX_NUM_PROCESSES JAX_PROCESS_ID JAX_LOCAL_DEVICE_IDS "
    "OMPI_MCA_orte_hnp_uri DDLRUN_RANK_ORDER DDLRUN_OWN CUDA_VISIBLE_DEVICES"
).split()
TELL = f"import json, os; os.write(1, (json.dumps([os.environ.get(n) for n in {TOLD}]) + '\\n').encode())"
Ranks = list[dict[str, str]]
Launch = Callable[..., subprocess.CompletedProcess[str]]


def told(done: subprocess.CompletedProcess[str]) -> Ranks:
    """Return what each rank said, by its RANK."""
    assert done.returncode == 0, done.stderr
    ranks = [
        {name: value for name, value in zip(TOLD, json.loads(line), strict=True) if value is not None}
        for line in done.stdout.splitlines()
    ]
    return sorted(ranks, key=lambda rank: int(rank.get("RANK", 0)))


@pytest.fixture
def launch(mpirun: str, tmp_path: Path) -> Launch:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [*launch_line(mpirun, tmp_path, "--output", "no-tag"), *arguments]
        environ = {**os.environ, **env}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)

    return run


# -- names and ports ------------------------------------------------------------------------------


def test_lists_of_frameworks() -> None:
    assert parse_frameworks("auto") == ()
    assert parse_frameworks("Torch, jax,torch") == ("torch", "jax")
    for text in ("pytorch", "", "torch,x"):
        with pytest.raises(InputError, match="there are auto, torch, tensorflow"):
            parse_frameworks(text)


def test_auto_is_all_that_do_not_contradict_each_other() -> None:
    assert resolve((), horovod=False, ddl=False) == (AUTO, "auto")
    assert "tensorflow" not in resolve((), horovod=True, ddl=False)[0]
    assert "tensorflow" not in resolve((), horovod=False, ddl=True)[0]
    assert resolve(("tensorflow",), horovod=True, ddl=True)[0] == ("tensorflow",)


@given(st.text(), st.integers(1, 20), st.frozensets(st.integers(FIRST, LAST), max_size=200))
def test_ports_are_free_and_in_a_row(run_id: str, count: int, taken: frozenset[int]) -> None:
    ports = choose_ports(run_id, count, lambda port: port not in taken)
    assert len(ports) == count
    assert ports[0] >= FIRST
    assert ports[-1] <= LAST
    assert not taken & {*ports}
    assert ports == choose_ports(run_id, count, lambda port: port not in taken)


def test_no_free_ports() -> None:
    with pytest.raises(PreflightError, match="no 3 ports in a row from 20000 to 27999 are free"):
        choose_ports("run", 3, lambda port: port % 3 != 0)
    assert choose_ports("run", 2, lambda port: port in (LAST - 1, LAST)) == range(LAST - 1, LAST + 1)


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def taken(request: pytest.FixtureRequest) -> Iterator[int]:
    address = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    with socket.socket(request.param) as server:
        try:
            server.bind((address, 0))
        except OSError:
            needs.skip(f"no address {address}")
    with socket.socket(request.param) as server:
        for port in range(FIRST, LAST):
            try:
                server.bind((address, port))
                break
            except OSError:
                continue
        server.listen()
        yield port


def test_a_port_that_somebody_has(taken: int) -> None:
    assert not is_free_here(taken)
    assert taken in parse_ports(" ".join(list_ports()))


def test_a_rank_that_finds_its_port_taken_says_so(taken: int) -> None:
    told = {
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1",
        "DDLRUN_TOPOLOGY": "1x1x1", "DDLRUN_RANK_ORDER": "host", "DDLRUN_OWN": "RANK=rank",
        "DDLRUN_PORTS": f"MASTER_PORT={taken}", "PATH": os.environ["PATH"],
    }  # fmt: skip
    argv = [sys.executable, "-I", "-S", START, "true"]
    done = subprocess.run(argv, env=told, capture_output=True, text=True, check=False)
    said = f"port {taken} (MASTER_PORT) was free, and now another process has it"
    assert (said in done.stderr) == is_ipv4(taken)


def is_ipv4(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 60).close()
    except OSError:
        return False
    return True


# -- the tables -----------------------------------------------------------------------------------


def variables(
    topology: str, hosts: list[str], own: tuple[str, ...] = (), exported: tuple[str, ...] = (), *names: str
) -> tuple[dict[str, str], list[str]]:
    placed = placement(topology, hosts, machine("1x2"), RankOrder.HOST)
    inherited = dict(text.partition("=")[::2] for text in exported)
    found = plan_framework_variables(names or AUTO, placed, Rendezvous(tuple(hosts), 20000), own, inherited)
    return {**found.rendezvous, **found.ranks}, list(found.notes)


def test_addresses_and_ports() -> None:
    found, notes = variables("2x2", ["fd00::1", "fd00::2"])
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("fd00::1", "20000")
    assert found["JAX_COORDINATOR_ADDRESS"] == "[fd00::1]:20001"
    assert found[WORKERS] == "20002 [fd00::1],[fd00::2]"
    assert notes == []


def test_an_exported_loopback_address_serves_one_host_alone() -> None:
    exported = ("MASTER_ADDR=localhost", "MASTER_PORT=29500", "JAX_COORDINATOR_ADDRESS=127.0.0.1:3")
    found, notes = variables("2x2", ["10.0.0.1", "10.0.0.2"], (), exported)
    assert (found["MASTER_ADDR"], found["JAX_COORDINATOR_ADDRESS"]) == ("10.0.0.1", "10.0.0.1:20001")
    assert "MASTER_ADDR=localhost: replaced, as other hosts do not reach it" in notes
    assert not {"MASTER_ADDR", "MASTER_PORT"} & {*variables("2x1", ["10.0.0.1"], (), exported)[0]}


def test_what_the_user_set_stays() -> None:
    found, notes = variables("2x1", ["a"], ("RANK", "MASTER_PORT"), ("MASTER_ADDR", "WORLD_SIZE"))
    assert not {"MASTER_ADDR", "MASTER_PORT"} & {*found}
    assert "RANK=rank" not in found[OWN].split()
    assert "WORLD_SIZE=size" in found[OWN].split()
    assert notes == [
        "MASTER_ADDR, MASTER_PORT, RANK: left as you set them",
        "WORLD_SIZE: set for each rank, whatever is exported; --env passes yours on",
    ]


def test_mpi_alone_gets_nothing() -> None:
    assert variables("2x1", ["a"], (), (), "mpi") == ({}, [])
    assert variables("2x1", ["a"], (), (), "horovod", "ddl") == ({}, [])


def test_more_workers_than_fit_into_a_variable() -> None:
    hosts = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(10_000)]
    found, notes = variables("1x10000", hosts)
    assert WORKERS not in found
    assert "TF_CONFIG" not in found[OWN]
    assert re.fullmatch(r"TF_CONFIG: left out, as 10000 workers do not fit .* \(about \d+ do\); give Multi.*", notes[0])
    assert max(map(len, found.values())) < 1000
    most = int(re.findall(r"about (\d+)", notes[0])[0])
    assert most < MOST_WORKERS
    found, notes = variables(f"1x{most}", hosts[:most])
    assert notes == []
    assert len(found[WORKERS]) < MOST_CHARACTERS


# -- what the ranks read back ---------------------------------------------------------------------


def test_each_rank_knows_who_it_is(launch: Launch) -> None:
    ranks = told(launch("-np", "2", sys.executable, "-c", TELL))
    port = int(ranks[0]["MASTER_PORT"])
    assert FIRST <= port < LAST
    for number, rank in enumerate(ranks):
        assert rank.pop("OMPI_MCA_orte_hnp_uri")
        assert json.loads(rank.pop("TF_CONFIG")) == {
            "cluster": {"worker": [f"127.0.0.1:{port + 2}", f"127.0.0.1:{port + 3}"]},
            "task": {"type": "worker", "index": number},
        }
        assert rank == {
            "RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(number), "ROLE_WORLD_SIZE": "2",
            "ROLE_NAME": "default", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port + 1}",
            "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number), "DDLRUN_RANK_ORDER": "host",
        }  # fmt: skip


def test_one_framework_alone(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("framework: [torch]\n")
    (rank,) = told(launch("-np", "1", "--config-file", "job.yaml", sys.executable, "-c", TELL))
    assert rank["WORLD_SIZE"] == "1"
    assert not {name for name in rank if name.startswith(("JAX", "TF_"))}


@pytest.mark.parametrize(("names", "order"), [("mpi", "host"), ("ddl", "ddl")])
def test_frameworks_that_need_nothing_more(launch: Launch, names: str, order: str) -> None:
    ranks = told(launch("-np", "2", "--framework", names, sys.executable, "-c", TELL))
    assert [{*rank} - {"OMPI_MCA_orte_hnp_uri"} for rank in ranks] == [{"DDLRUN_RANK_ORDER"}] * 2
    assert ranks[0]["DDLRUN_RANK_ORDER"] == order


def test_the_users_own_address_and_rank(launch: Launch) -> None:
    words = ("-np", "1", "--env", "RANK=7", "--verbose", sys.executable, "-c", TELL)
    done = launch(*words, MASTER_ADDR="elsewhere", WORLD_SIZE="99")
    (rank,) = told(done)
    assert (rank["RANK"], rank["MASTER_ADDR"], rank["WORLD_SIZE"]) == ("7", "elsewhere", "1")
    assert done.stderr.count("MASTER_ADDR, RANK: left as you set them") == 1
    assert done.stderr.count("WORLD_SIZE: set for each rank") == 1


def test_a_launch_inside_a_rank_starts_anew(launch: Launch) -> None:
    inner = ["launch", "--quiet", "--output", "no-tag", "-np", "1", sys.executable, "-c", TELL]
    forget = "for n in [n for n in os.environ if n.startswith(('OMPI_', 'PMIX', 'PRTE'))]: del os.environ[n]"
    code = f"import os, sys\n{forget}\nos.execv(sys.executable, [sys.executable, '-m', 'ddlrun', *{inner}])"
    environ = {name: os.environ[name] for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")}
    code = code.replace("\nos.execv", f"\nos.environ.update({environ})\nos.execv")
    (rank,) = told(launch("-np", "1", "--env", "MASTER_PORT=1", sys.executable, "-c", code))
    assert rank["MASTER_PORT"] != "1"


@pytest.mark.extra
def test_torch_meets_by_the_environment_alone(launch: Launch, tmp_path: Path) -> None:
    needs.package("torch", "torch==2.13.0")
    (tmp_path / "ddp.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo', init_method='env://')\n"
        "model = DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "model(torch.ones(4, 2) * dist.get_rank()).sum().backward()\n"
        "grad = model.module.weight.grad.tolist()\n"
        "os.write(1, f'{dist.get_rank()} {dist.get_world_size()} {grad}\\n'.encode())\n"
        "dist.destroy_process_group()\n"
        "os._exit(0)\n"  # torch 2.13 now and then aborts when it leaves by itself, under mpirun alone too
    )
    done = launch("-np", "2", "ddp.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 [[2.0, 2.0]]", "1 2 [[2.0, 2.0]]"]


@pytest.fixture
def taking(tmp_path: Path) -> Iterator[str]:
    """Provide the path of a socket that takes the ports whose numbers it gets, and replies when it has."""
    path = str(tmp_path / "taking")
    with socket.socket(socket.AF_UNIX) as requests, ExitStack() as taken:
        requests.bind(path)
        requests.listen()

        def take() -> None:
            while True:
                with requests.accept()[0] as request:
                    number = request.recv(5)
                    if not number:
                        return
                    server = taken.enter_context(socket.socket())
                    server.bind(("", int(number)))
                    server.listen()
                    request.send(b".")

        thread = Thread(target=take)
        thread.start()
        yield path
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(path)
        thread.join()


def test_a_port_that_is_lost_at_the_last_moment(launch: Launch, taking: str) -> None:
    """The decision is on the port alone: the message of the program may say anything, in any language."""
    code = (
        "import os, socket, sys; e = os.environ\n"
        f"if e['DDLRUN_RESTART'] == '0':\n"
        f"    taker = socket.socket(socket.AF_UNIX); taker.connect({taking!r})\n"
        "    taker.send(e['MASTER_PORT'].encode()); taker.recv(1)\n"
        "    sys.exit('puerto ocupado')\n"
        "print('met')"
    )
    done = launch("-np", "1", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (0, "met\n")
    assert re.search(r"another process took port 2\d{4} meanwhile; starting again with others", done.stderr)
    twice = launch("-np", "1", "--run-dir", "twice", sys.executable, "-c", code.replace("== '0'", "!= 'x'"))
    assert twice.returncode == 1
    assert twice.stderr.count("starting again") == 1
    other = "import os; exit(f\"port: {os.environ['MASTER_PORT']}, code: -98, name: EADDRINUSE\")"
    free = launch("-np", "1", "--run-dir", "free", sys.executable, "-c", other)
    assert (free.returncode, "starting again" in free.stderr) == (1, False)


def test_each_setting_of_horovods_file_reaches_the_ranks(launch: Launch, tmp_path: Path) -> None:
    settings = yaml.safe_load(HOROVODS_OWN)
    settings["params"] |= {"hierarchical_allreduce": False}
    del settings["logging"]["hide_timestamp"]  # the same variable, the other way round
    (tmp_path / "horovod.yaml").write_text(yaml.safe_dump(settings))
    names = sorted({setting.variable for setting in SETTINGS if setting.variable.startswith("HOROVOD_")})
    code = f"import json, os; print(json.dumps({{n: os.environ.get(n) for n in {names}}}))"
    done = launch("-np", "1", "--config-file", "horovod.yaml", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "HOROVOD_FUSION_THRESHOLD": "33554432", "HOROVOD_CYCLE_TIME": "5.0", "HOROVOD_CACHE_CAPACITY": "2048",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0", "HOROVOD_HIERARCHICAL_ALLGATHER": "0", "HOROVOD_TORUS_ALLREDUCE": "0",
        "HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": settings["autotune"]["log_file"],
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "3",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "10", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "20",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.8", "HOROVOD_TIMELINE": settings["timeline"]["filename"],
        "HOROVOD_TIMELINE_MARK_CYCLES": "1", "HOROVOD_STALL_CHECK_DISABLE": "0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "60", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0",
        "HOROVOD_MPI_THREADS_DISABLE": "0", "HOROVOD_NUM_NCCL_STREAMS": "1", "HOROVOD_THREAD_AFFINITY": "0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "30", "HOROVOD_LOG_LEVEL": "INFO", "HOROVOD_LOG_HIDE_TIME": "0",
    }  # fmt: skip


# -- one process a GPU ----------------------------------------------------------------------------


def show(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ddlrun", "show", "env", "--json", "--machine", "ac922-4gpu", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [("-np", "8"), ("--ranks-per-host", "core")])
def test_more_ranks_than_gpus_have_none_of_their_own(words: tuple[str, ...]) -> None:
    done = show(*words, "x.sh")
    assert done.returncode == 0, done.stderr
    assert "nvidia" not in json.loads(done.stdout)["set"]["DDLRUN_SEATS"]
    argv = [sys.executable, "-m", "ddlrun", "launch", "--dry-run", "--machine", "ac922-4gpu", *words, "x.sh"]
    planned = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    assert " ranks, 4 GPUs: no rank has a GPU of its own; --share-gpus assigns them in turn" in planned
    assert "nvidia" not in json.loads(done.stdout)["set"]["DDLRUN_SEATS"]


def test_shared_gpus() -> None:
    done = show("-np", "8", "--share-gpus", "--gpu-order", "2,1,0", "x.sh")
    assert done.returncode == 0, done.stderr
    seats = json.loads(done.stdout)["set"]["DDLRUN_SEATS"].partition("*")[2].split(";")
    assert {seat.split("@")[2] for seat in seats} == {"nvidia=2,1,0"}
    own = json.loads(show("-np", "8", "--share-gpus", "--framework", "tensorflow", "x.sh").stdout)["set"]
    seats = own["DDLRUN_SEATS"].partition("*")[2].split(";")
    assert [seat.split("@")[2] for seat in seats] == [f"nvidia={gpu}" for gpu in (0, 1, 2, 3) * 2]


def test_one_rank_of_tensorflow_sees_all_gpus() -> None:
    done = show("-np", "1", "--framework", "tensorflow", "--gpu-order", "1,0", "x.sh")
    assert json.loads(done.stdout)["set"]["DDLRUN_SEATS"].split("@")[2] == "nvidia=1,0,2,3"


def test_what_each_rank_sets_is_shown() -> None:
    shown = json.loads(show("--framework", "torch", "x.sh").stdout)
    assert shown["set_by_rank"][:2] == ["RANK", "WORLD_SIZE"]
    assert FIRST <= int(shown["set"]["MASTER_PORT"]) <= LAST


# -- other launchers' words -----------------------------------------------------------------------


def ours(*words: str) -> list[str]:
    context = click.Context(launch_command)
    return translate(words, launch_command.get_params(context)).words


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("-np 4 -H a:2,b:2 python train.py -np 3", "-np 4 -H a:2,b:2 python train.py -np 3"),
        ("-n 4 t.py", "-n 4 t.py"),
        ("--nproc-per-node 2 --nnodes 2 t.py", "--ranks-per-host 2 --nnodes 2 t.py"),
        ("--nproc_per_node=gpu --standalone t.py", "--ranks-per-host gpu t.py"),
        ("--nproc_per_node auto --nnodes 1:1 -m t", "--ranks-per-host gpu-or-core --nnodes 1 -m t"),
        ("--local_ranks_filter=0,1 --shutdown-timeout 5 -r3 t", "--local-ranks 0,1 --grace 5 t"),
        ("--signals-to-handle SIGTERM,sigusr1 --tee 0:3 -t 3 t", "--forward-signals USR1 t"),
        ("--signals-to-handle SIGTERM,SIGINT t", "t"),
        ("--numa-binding exclusive --virtual-local-rank t", "--bind core --visible-gpus own --env LOCAL_RANK=0 t"),
        ("--rdzv-id 7 --role trainer t", "--env TORCHELASTIC_RUN_ID=7 --env ROLE_NAME=trainer t"),
        ("--rdzv_backend=c10d --rdzv-endpoint h:1 --run-path --node_rank=0 --master_port 1 t", "t"),
        ("--oversubscribe --map-by :OVERSUBSCRIBE -map-by ppr:2:node t", "--ranks-per-host 2 t"),
        ("--map-by ppr:2:node:PE=4 t", "--ranks-per-host 2 --cores-per-rank 4 t"),
        ("--map-by node:PE=2,OVERSUBSCRIBE t", "--rank-order ddl --cores-per-rank 2 t"),
        ("--map-by slot:pe=8:nooversubscribe --use_env t", "--cores-per-rank 8 t"),
        ("--map-by rankfile:file=/r/f -map-by slot t", "--rankfile /r/f t"),
        ("--ppn 2 -perhost 3 t", "--ranks-per-host 2 --ranks-per-host 3 t"),
        ("--gloo t", "t"),
        ("-npersocket 1 --bind-to core:overload-allowed t", "--ranks-per-host package --bind core t"),
        ("--map-by node --rank-by slot -bynode t", "--rank-order ddl --rank-order host --rank-order ddl t"),
        ("--map-by ppr:1:package -cpus-per-rank 2 t", "--ranks-per-host package --cores-per-rank 2 t"),
        ("--np 2 -timeout 60 -stdin 1 t", "-np 2 --timeout 60 --stdin-rank 1 t"),
        ("-np2 -n=3 -H=a,b -p22 --ssh_port=5 t", "-np 2 -n 3 -H a,b -p 22 --ssh-port=5 t"),
        ("--multi_gpu --num_processes 2 --num_machines 1 --machine_rank=0 t", "-np 2 --nnodes 1 t"),
        ("--mixed_precision=bf16 --cpu t", "--env ACCELERATE_MIXED_PRECISION=bf16 --env ACCELERATE_USE_CPU=true t"),
        ("--num_cpu_threads_per_process 4 --same_network t", "--env OMP_NUM_THREADS=4 t"),
        ("--num_gpus 4 --num_nodes=2 --no_local_rank t", "--ranks-per-host 4 --nnodes 2 t"),
        ("-ppn 2 -hosts a,b -rr -bootstrap ssh t", "--ranks-per-host 2 --host a,b --rank-order ddl --launcher ssh t"),
        ("--nproc-per-node=cpu --max-restarts 3 t.py", "--ranks-per-host core --restarts 3 t.py"),
        ("-n 2 -host a,b -x A --allow-run-as-root t", "-n 2 --host a,b -x A --allow-run-as-root t"),
        ("-npernode 2 -hostfile f --bind-to socket t", "--ranks-per-host 2 --hostfile f --bind package t"),
        ("--mca coll han -np 2 -mca a b t", "-np 2 --mpi-args '--mca coll han --mca a b' t"),
        ("--mpi-args '-x A' --mpiarg --x --mpiarg=-y='1 2' t", """--mpi-args "-x A --x '-y=1 2'" t"""),
        (
            "--mpi --no-stall-check --network-interfaces e0 t",
            "--env HOROVOD_STALL_CHECK_DISABLE=1 --network e0 t",
        ),
        ("-- -n", "-- -n"),
        ("--nonsense 3 t", "--nonsense 3 t"),
        ("--nproc-per-node", "--nproc-per-node"),
    ],
)
def test_other_launchers_words(theirs: str, expected: str) -> None:
    assert ours(*shlex.split(theirs)) == shlex.split(expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--node-rank 1", "--node-rank 1: ddlrun is started once for all hosts"),
        ("--nproc-per-node xpu", "--nproc-per-node xpu: ddlrun counts no Intel GPUs"),
        ("--numa-binding gpu", "unknown binding; write one of node, socket, exclusive, core-complex"),
        ("--tee all", "--tee all: write 0 to 3 for all local ranks"),
        ("--duplicate_stdout_filters loss", "a log per rank, to search with grep"),
        ("--nnodes 1:4", "--restarts, --spare-hosts"),
        ("--min-np 2", "--min-topology"),
        ("--map-by socket", "--map-by socket: ddlrun plans the placement"),
        ("--map-by slot:span t", "--map-by slot:span: ddlrun plans the placement"),
        ("--map-by ppr:2:numa:pe=2 t", "--map-by ppr:2:numa:pe=2: ddlrun plans the placement"),
        ("-N2 -n8 t", "-N2: use --ranks-per-host N for ranks per host"),
        ("-c8 t", "or --cores-per-rank N for their cores (srun)"),
        (
            "-pernode -map-by ppr:2:socket",
            "-map-by ppr:2:socket: write the number of ranks per host: --ranks-per-host N",
        ),
        ("-npersocket 2", "-npersocket 2: write the number of ranks per host"),
        ("-prefix /opt/openmpi", "-prefix: use --mpirun DIR/bin/mpirun for another Open MPI"),
        ("-pathname x", "no such option -pathname"),
        ("-display-map", "-display-map: ddlrun show placement"),
        ("--stdin all", "--stdin all: only one rank can read standard input: --stdin-rank N"),
        ("-report-pid -", "-report-pid: an option of mpirun alone: pass it on in --mpi-args"),
        ("--use_fsdp", "--use_fsdp: accelerate launch alone has it"),
        ("--config_file a.yaml", "--config_file: accelerate's config file is not read"),
        ("--machine_rank 1", "--machine_rank 1: ddlrun is started once for all hosts"),
        ("--include h1@h2", "--include: name hosts with -H HOST,HOST"),
        ("-t 10:00", "a time limit is --timeout"),
        ("\N{EM DASH}np 2", "\N{EM DASH}np: its dash is not an ASCII hyphen; write -np"),
        ("\N{EN DASH}topology=2x1x1", "write --topology=2x1x1"),
        ("\N{EM DASH}host a", "write --host"),
        ("--bind-to l3cache", "--bind-to l3cache: unknown binding; write one of none, core"),
        ("--jsrun", "with mpirun"),
        ("-N 2", "--ranks-per-host N"),
        ("-c 2", "--cores-per-rank N"),
    ],
)
def test_words_that_have_no_like(words: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        ours(*words.split(), "t.py")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--rdzv_backend=c10d", "--rdzv_backend: no effect: ddlrun sets MASTER_ADDR and MASTER_PORT for every rank"),
        (
            "--rdzv_backend=c10d --master-port 2",
            "--rdzv_backend, --master-port: no effect: ddlrun sets MASTER_ADDR and",
        ),
        ("--run-path", "--run-path: no effect: every rank is a Python of its own"),
        ("--node-rank 0", "--node-rank: no effect: ddlrun is started once for all hosts"),
        ("-r 3", "-r: the terminal shows all output, too; --ranks LIST limits it"),
        ("--numa-binding core-complex", "--numa-binding: each rank gets an equal share of the cores"),
        ("--use-gloo", "--use-gloo: no effect: ddlrun starts Horovod over MPI"),
        ("--redirects 0 --tee 3 --standalone --numa-binding node", None),
    ],
)
def test_notes_on_words_without_effect(words: str, note: str | None) -> None:
    notes = translate([*words.split(), "t.py"], launch_command.params).notes
    assert [text.startswith(note or " ") for text in notes] == ([] if note is None else [True]), notes


# A value for each option of torchrun that takes another than a word.
TORCHRUNS_VALUES = {
    "--nnodes": "1", "--nproc-per-node": "2", "--max-restarts": "1", "--node-rank": "0", "--numa-binding": "node",
    "-r": "3", "--redirects": "3", "-t": "3", "--tee": "3", "--local-ranks-filter": "0", "--shutdown-timeout": "5",
    "--signals-to-handle": "SIGUSR1",
}  # fmt: skip


def test_every_spelling_of_torchruns_options_is_taken_or_refused_with_the_reason() -> None:
    needs.package("torch", "torch==2.13.0")
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 - takes a second

    every = get_args_parser()._actions  # noqa: SLF001 - argparse has no other list of them
    actions = [action for action in every if action.option_strings and action.dest != "help"]
    refused = set[str]()
    for action in actions:
        for spelling in action.option_strings:
            plain = spelling.replace("_", "-") if spelling.startswith("--") else spelling
            value = [] if action.nargs == 0 else [TORCHRUNS_VALUES.get(plain, "word")]
            try:
                words = ours(spelling, *value, "t.py")
            except InputError as error:
                assert error.problems[0].startswith(f"{spelling}: ddlrun "), spelling
                refused.add(plain)
                continue
            assert split_argv(words, launch_command.params, has_topology=False).rest == ("t.py",), words
    assert refused == {"--duplicate-stdout-filters", "--duplicate-stderr-filters", "--logs-specs"}


TOPICS = "general debug output input mapping ranking binding devel compatibility launch dvm unsupported".split()


def test_every_option_of_mpirun_is_taken_or_refused_with_the_reason() -> None:
    mpirun = MPIRUNS[4]
    texts = (subprocess.run([mpirun, "--help", topic], capture_output=True, text=True, check=False) for topic in TOPICS)
    rows = re.findall(r"(?m)^ *(-[^ ]+)((?: <arg[0-9]>)*)", "".join(done.stdout for done in texts))
    spellings = {(name, values.count("<")) for names, values in rows for name in names.split("|")}
    assert len(spellings) > 100
    for name, values in spellings - {("-h", 1), ("--help", 1), ("-v", 0)}:
        words = [name, *["1"] * values, "t.py"]
        with contextlib.suppress(InputError):  # the reason
            translated = ours(*words)
            assert split_argv(translated, launch_command.params, has_topology=False).rest == ("t.py",), words


@given(st.lists(st.text(max_size=4) | st.sampled_from(["-np", "2", "--mca", "-m", "--nnodes", "--bind-to", "core"])))
def test_the_scripts_own_words_are_left_alone(words: list[str]) -> None:
    assert ours("x.py", *words) == ["x.py", *words]
    assert ours("-npernode", "2", "--", *words) == ["--ranks-per-host", "2", "--", *words]


def test_submit_and_show_know_them_too(tmp_path: Path) -> None:
    ddlrun = [sys.executable, "-m", "ddlrun"]
    argv = [
        *ddlrun,
        "submit",
        "2x2",
        "--print",
        "--scheduler",
        "slurm",
        "--max-restarts",
        "2",
        "--mca",
        "a",
        "b",
        "x.sh",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "--restarts 2 --mpi-args '--mca a b' x.sh" in done.stdout, done.stderr
    argv = [*ddlrun, "show", "placement", "--machine", "ac922-4gpu", "--nproc_per_node=2", "x.sh"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.startswith("2x1x1: --ranks-per-host 2"), done.stderr


def test_torchruns_hosts_must_be_named(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ddlrun", "launch", "--dry-run", "--machine", "ac922-4gpu", "--nproc-per-node=2"]
    one = subprocess.run([*argv, "--nnodes=2", "x.sh"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (one.returncode, one.stderr) == (
        2, "ddlrun: error: --nnodes 2, but the job has 1 host (this machine); name the hosts: -H HOST,HOST\n",
    )  # fmt: skip
    argv += ["--nnodes=2", "-H", "a,b", "x.sh"]
    two = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert two.stdout.startswith("2x2x1: 4 ranks on a,b")


# -- Horovod's build ------------------------------------------------------------------------------

CPU = FrameworkBuild("0.28.1", {"mpi": True, "gloo": True, "nccl": False, "cuda": False})
GPU = FrameworkBuild("0.28.1", {"mpi": True, "nccl": True, "cuda": True})
ALL = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HOROVOD_TORUS_ALLREDUCE": "1", "HOROVOD_HIERARCHICAL_ALLGATHER": "1",
    "HOROVOD_NUM_NCCL_STREAMS": "2",
}  # fmt: skip


HAN = OpenMpi4.hierarchical


def test_settings_without_effect_are_told() -> None:
    two = HorovodContext(2, gpus=False, hierarchical=HAN, chosen=None)
    no_nccl, han = "horovod.torch is built without NCCL", "Open MPI's coll/han"
    found, notes = plan_hierarchical_variables(ALL, {"horovod.torch": CPU}, two)
    assert found == HAN
    assert notes == [
        f"--hierarchical-allreduce: Horovod's own has no effect ({no_nccl}); {han} is switched on instead",
        "--torus-allreduce has no effect: horovod.torch is built without NCCL",
        "--hierarchical-allgather has no effect: horovod.torch is built without GPUs",
        "--num-nccl-streams has no effect: horovod.torch is built without NCCL",
    ]
    found, notes = plan_hierarchical_variables(ALL, {"horovod.torch": CPU}, two._replace(hierarchical={}))
    assert (found, "is on by itself" in notes[0]) == ({}, True)
    found, notes = plan_hierarchical_variables(ALL, {"horovod.torch": CPU}, two._replace(chosen="OMPI_MCA_coll"))
    assert (found, "left to OMPI_MCA_coll" in notes[0]) == ({}, True)
    found, notes = plan_hierarchical_variables(ALL, {"horovod.torch": CPU}, two._replace(hosts=1))
    assert (found, notes[0]) == ({}, "--hierarchical-allreduce has no effect: horovod.torch is built without NCCL")


def test_hierarchical_settings_on_unequal_hosts_are_noted() -> None:
    unequal = HorovodContext(hosts=2, gpus=True, hierarchical=HAN, chosen=None, unequal=True)
    differ = "the hosts have different numbers of ranks"
    variables, notes = plan_hierarchical_variables(ALL, {"horovod.torch": CPU}, unequal)
    assert variables == {}
    assert notes[0] == (f"--hierarchical-allreduce has no effect: horovod.torch is built without NCCL, and {differ}")
    assert notes[3] == "--num-nccl-streams has no effect: horovod.torch is built without NCCL"
    _, notes = plan_hierarchical_variables(ALL, {"horovod.torch": GPU}, unequal)
    names = ("hierarchical-allreduce", "torus-allreduce", "hierarchical-allgather")
    assert notes == [f"--{name}: {differ}, which makes it slower; leave it out" for name in names]


def test_settings_that_do_something_are_passed_silently() -> None:
    there = {"horovod.torch": GPU}
    assert plan_hierarchical_variables(ALL, there, HorovodContext(2, gpus=True, hierarchical=HAN, chosen=None)) == (
        {},
        [],
    )
    assert plan_hierarchical_variables(
        {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}, {}, HorovodContext(2, gpus=False, hierarchical=HAN, chosen=None)
    ) == (
        {},
        [],
    )
    _, notes = plan_hierarchical_variables(ALL, there, HorovodContext(1, gpus=True, hierarchical=HAN, chosen=None))
    assert [note.rpartition(": ")[2] for note in notes] == ["all ranks are on one host"] * 3
    _, notes = plan_hierarchical_variables(
        {"HOROVOD_TORUS_ALLREDUCE": "1"}, {}, HorovodContext(2, gpus=True, hierarchical=HAN, chosen=None)
    )
    assert notes == ["--torus-allreduce has no effect: Horovod is not installed"]
    slow = {"horovod.torch": parse_build("", "", None)}
    _, notes = plan_hierarchical_variables(
        {"HOROVOD_TORUS_ALLREDUCE": "1"}, slow, HorovodContext(2, gpus=True, hierarchical=HAN, chosen=None)
    )
    assert notes == ["--torus-allreduce may have no effect: its import took too long"]


def test_who_chose_the_collectives() -> None:
    assert find_collectives_choice((), {}, {}) is None
    assert find_collectives_choice(("--mca", "coll", "^han"), {}, {}) == "--mpi-args"
    assert find_collectives_choice((), {"OMPI_MCA_coll_han_priority": "1"}, {}) == "OMPI_MCA_coll_han_priority"
    assert find_collectives_choice((), {}, {"F": "# coll = x\n coll_han_priority=5\n"}) == "F"


def test_check_build() -> None:
    for words in (["launch", "--check-build"], ["launch", "-cb"], ["check", "--check-build"]):
        argv = [sys.executable, "-m", "ddlrun", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        torch = r"\[X\] PyTorch 2\.\S+: gloo" if importlib.util.find_spec("torch") else r"\[ \] PyTorch"
        assert re.search(torch, done.stdout), done.stdout
        assert re.search(r"\[X\] mpi4py 4\.\S+: Open MPI v[45]", done.stdout)


def test_builds_as_horovodrun_shows_them() -> None:
    dud = FrameworkBuild("0.28.1", {}, problem="AttributeError: 'MPI_LIB_CTYPES'")
    shown = render_builds(
        {"torch": FrameworkBuild("2.1", {"gloo": True, "nccl": False}), "jax": FrameworkBuild(None, {})}, "Here"
    )
    assert shown.splitlines() == [
        "Here", "", "Available Frameworks:", "    [X] PyTorch 2.1: gloo", "    [ ] JAX", "", "Horovod: not installed",
    ]  # fmt: skip
    shown = render_builds({"horovod.torch": CPU, "horovod.tensorflow": dud}, "Here")
    assert "    [X] PyTorch 0.28.1: mpi, gloo\n" in shown
    assert "    [ ] TensorFlow 0.28.1: does not work: AttributeError: 'MPI_LIB_CTYPES'\n" in shown
    assert shown.endswith("    [ ] NCCL\n    [ ] DDL\n    [ ] CCL\n    [X] MPI\n    [X] Gloo\n")
    assert parse_build("", "", None).problem == "its import took too long"


def test_ports_for_every_local_rank() -> None:
    assert count_ports(4) == 6
