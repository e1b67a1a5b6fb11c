"""One case of `tests.bench.scale`, in a process that does nothing else: prints JSON."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddlrun.allreduce_algorithms import AllreduceAlgorithm
from ddlrun.application.inputs import reach
from ddlrun.hosts import parse_hosts
from ddlrun.keeper import protocol
from ddlrun.managers.openmpi.dialects import OpenMpi4
from ddlrun.mapping.rankfile import render
from ddlrun.network.cost import Cost, CostModel
from ddlrun.network.forecast import wiring_of
from ddlrun.network.message_counts import GridAxis, axes_of
from ddlrun.network.presets import gradient_of, parse_links
from ddlrun.preflight.findings import Level
from ddlrun.preflight.judge import NAMES
from ddlrun.preflight.run import PreflightRequest, check_facts
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.links import HostLinks
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.system_limits import allow_files
from ddlrun.remote.tasks import TaskReply
from ddlrun.supervise.keeper_connection import KeeperConnection
from ddlrun.supervise.keepers import KeeperEvents, Keepers
from ddlrun.supervise.listener import Listener, check_files
from ddlrun.topology import RankOrder, parse_topology
from ddlrun.wire.loop import Loop
from tests.support.keepers import SimulatedKeeper
from tests.support.oracle import map_ranks
from tests.support.shapes import cores_by_package, hwloc_topology, machine, placement
from tests.support.simulated import simulate_replies

# Connections before ddlrun accepts the first: fewer than the backlog of its listener.
BACKLOG = 3000
ORACLE_SECONDS = 3000.0


def cpu() -> float:
    """Return the CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def mib() -> float:
    """Return the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def words(path: str) -> list[object]:
    """Return the bytes of a plan's command, of its longest word and of the longest variable."""
    plan = json.loads(Path(path).read_text())
    sizes = [len(word) + 1 for word in plan["command"]]
    size, longest = max((len(f"{name}={value}") + 1, name) for name, value in plan["variables"].items())
    return [sum(sizes), max(sizes), f"{size:,} ({longest})"]


def preflight(hosts: str) -> dict[str, float]:
    """Return the cost of writing all tasks and of checking the replies, without that of simulating these."""
    listed = parse_hosts(f"n[00001-{int(hosts):05}]")
    first = listed.names[0]
    own = dict(simulate_replies([os.uname().nodename], time.time()))[os.uname().nodename]
    costs: dict[str, float] = {}

    def there(_: str, tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, TaskReply]:
        written = [json.dumps(task) for task in tasks.values()]
        begin = cpu()
        values = dict(simulate_replies(listed.names, time.time()))
        costs.update(task=len(written[0]), reply=len(json.dumps(values[first])), simulated=cpu() - begin)
        return {name: TaskReply(value, FinishedProcess(0, "", "")) for name, value in values.items()}

    begin = cpu()
    here = TaskReply(own, FinishedProcess(0, "", ""))
    target = reach(HostLinks(AgentLauncher()))._replace(task_here=lambda *_: lambda: here, tasks_there=there)
    report = check_facts(
        listed, PreflightRequest(OpenMpi4("/usr/bin/mpirun", "4.1.4", ""), only=frozenset(NAMES)), target
    )
    assert all(finding.level is Level.OK for finding in report.findings)
    return {**costs, "check": cpu() - begin - costs["simulated"], "mib": mib()}


def keepers(ranks: str) -> dict[str, float]:
    """Return the CPU seconds that keepers cost in ddlrun; a second process has their ends of the connections."""
    count = int(ranks)
    check_files(count)
    allow_files(2 * count)
    listener, loop = Listener(("127.0.0.1",)), Loop()
    (order, orders), (ready, signal) = os.pipe(), os.pipe()
    if os.fork() == 0:
        _run_keepers(count, listener, order, signal)
    messages: list[bytes] = []

    def receive(_: KeeperConnection, kind: bytes, _text: bytes) -> None:
        messages.append(kind)

    def gone(*_: object) -> None:
        raise SystemExit("a keeper was rejected")

    ours = Keepers(listener, loop, KeeperEvents(receive, gone, gone, gone, gone), ranks=count)

    def receive_all(count: int) -> float:
        begin = cpu()
        while len(messages) < count:
            loop.wait(1)
        return cpu() - begin

    os.read(ready, 1)
    accepted = receive_all(2 * count)
    os.write(orders, b"x")
    os.read(ready, 1)
    received = receive_all(3 * count)
    begin = cpu()
    ours.send_all(protocol.HEARTBEAT)
    sent = cpu() - begin
    os.write(orders, b"x")
    return {"accept": accepted, "receive": received, "send": sent, "mib": mib()}


def _run_keepers(count: int, listener: Listener, order: int, signal: int) -> None:
    """Connect, greet, prove it, send the rank, and after an order a heartbeat."""
    simulated = []
    for number in range(count):
        simulated.append(SimulatedKeeper(listener))
        simulated[-1].greet()
        if number + 1 == min(count, BACKLOG):
            os.write(signal, b"x")
    for keeper in simulated:
        keeper.read_welcome()
        keeper.send((protocol.HEARTBEAT, b""), (protocol.HELLO, b"0\tn00001\t0\t1"))
    os.read(order, 1)
    for keeper in simulated:
        keeper.send((protocol.HEARTBEAT, b""))
    os.write(signal, b"x")
    os.read(order, 1)
    os._exit(0)


def allreduce(*shapes: str) -> list[tuple[str, list[list[str]]]]:
    """Predict allreduces on H100s, with 25 hosts per rack and uplinks of half the rate of their NICs."""
    sizes = {name: gradient_of(name) for name in ("bert-large", "resnet50")}
    tables = {f"{name}, {size / 1e6:,.0f} MB; ms (what limits it)": (size, _time) for name, size in sizes.items()}
    tables["messages one after the other"] = (sizes["resnet50"], _steps)
    return [
        (title, [[f"{_ranks(shape):,}", shape, *map(cell, _costs(shape, size))] for shape in shapes])
        for title, (size, cell) in tables.items()
    ]


def _ranks(shape: str) -> int:
    return parse_topology(shape).size


def _time(cost: Cost) -> str:
    return f"{cost.seconds * 1e3:,.1f} ({cost.busiest})"


def _steps(cost: Cost) -> str:
    return f"{cost.steps:,}"


def _costs(shape: str, size: int) -> list[Cost]:
    topology = parse_topology(shape)
    fabric = parse_links("nvlink4,8xib-ndr,2:1", 25)
    wiring = wiring_of(parse_topology(f"8x25x{topology.hosts // 25}"), fabric)
    model = CostModel(axes_of(topology), wiring, fabric)
    one_ring = CostModel([GridAxis(topology.size, 1)], wiring, fabric)
    return [
        model.best("p", size),
        model.best("r", size),
        model.cost(AllreduceAlgorithm("chunks", ("halving",) * len(topology.dims), size, 1), size),
        one_ring.cost(AllreduceAlgorithm("native"), size),
    ]


def oracle(major: str, shape: str) -> list[object]:
    """Compare the ranks of a real mpirun with the placement; return a row."""
    hosts = int(shape.partition("x")[2])
    placed = placement(shape, [f"n{host:05}" for host in range(1, hosts + 1)], machine("minsky"), RankOrder.HOST)
    text = "".join(render(placed, "scale"))
    mpirun = os.environ.get(f"MPIRUN{major}", "mpirun")
    mapped = map_ranks(int(major), text, hwloc_topology("minsky"), mpirun=mpirun, seconds=ORACLE_SECONDS)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    as_planned = mapped == cores_by_package(placed)
    seconds, peak = f"{usage.ru_utime + usage.ru_stime:.0f}", usage.ru_maxrss // 1024
    return [major, f"{hosts:,}", f"{len(mapped):,}", f"{len(text):,}", seconds, peak, as_planned]


CASES: dict[str, Callable[..., Any]] = {
    case.__name__: case for case in (words, preflight, keepers, allreduce, oracle)
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](*sys.argv[2:])))
