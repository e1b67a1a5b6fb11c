"""Thousands of simulated hosts: a whole plan, and work that grows linearly with the hosts; counted, not timed."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddlrun.application.inputs import reach, read_machines
from ddlrun.environment.exports import MOST_CHARACTERS
from ddlrun.environment.placement_variables import render_rank_variables
from ddlrun.hosts import Host, HostList, render_hostfile
from ddlrun.keeper import protocol
from ddlrun.managers.openmpi.dialects import OpenMpi4
from ddlrun.mapping.rankfile import render
from ddlrun.network.addresses import Address
from ddlrun.network.subnet_selection import choose_network
from ddlrun.network.variables import network_variables
from ddlrun.plan.plan import placement_dict
from ddlrun.preflight.findings import Level, render_lines
from ddlrun.preflight.judge import NAMES
from ddlrun.preflight.run import PreflightReport, PreflightRequest, check_facts
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.links import HostLinks
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.system_limits import OTHER_FILES, allow_files
from ddlrun.remote.tasks import TaskReply
from ddlrun.supervise.listener import FEWEST_FILES, MANAGER_FILES
from ddlrun.wire.listening import MOST_UNAUTHENTICATED
from tests.conftest import MPIRUNS, OWN, launch_line
from tests.support.keepers import SimulatedKeeper, is_readable, serving
from tests.support.shapes import machine, placement
from tests.support.simulated import simulate_replies


def test_a_launch_over_12500_hosts_is_planned(tmp_path: Path) -> None:
    line = launch_line(MPIRUNS[4], tmp_path, "--dry-run", "--machine", "dgx-h100", "--topology", "8x25x500")
    done = subprocess.run(
        [*line, "-H", "n[00001-12500]", "true"], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "100000 ranks on n[00001-12500], 8 per host" in done.stdout
    assert len(done.stdout) < 10_000
    rankfile = (tmp_path / "run" / "rankfile").read_text()
    ranks = [line for line in rankfile.splitlines() if not line.startswith("#")]
    assert len(ranks) == 100_000
    assert (ranks[0].split(" slot")[0], ranks[-1].split(" slot")[0]) == ("rank 0=n00001", "rank 99999=n12500")
    hosts = (tmp_path / "run" / "hostfile").read_text().splitlines()
    assert (len(hosts), hosts[-1]) == (12_500, "n12500 slots=8")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    longest = max([*plan["command"], *(f"{name}={value}" for name, value in plan["variables"].items())], key=len)
    assert len(longest) < 128 << 10, "no process can be started with a longer word"
    assert any("TF_CONFIG: left out" in note for note in plan["notes"])


class Name(str):
    """A name of a host that counts its comparisons and look-ups."""

    __slots__ = ()
    uses = 0

    def __eq__(self, other: object) -> bool:
        """Compare as text."""
        Name.uses += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        """Hash as text."""
        Name.uses += 1
        return str.__hash__(self)


def named(count: int) -> HostList:
    return HostList(tuple(Host(Name(f"n{host:05}")) for host in range(count)), "test")


def planned(hosts: HostList, _: Path) -> None:
    placed = placement("2x5x" + str(len(hosts) // 5), list(hosts.names), machine("minsky"))
    assert "".join(render(placed, "test"))
    assert render_hostfile(hosts)
    assert render_rank_variables(placed, "p")
    assert placement_dict(placed)
    assert str(hosts)


def looked(hosts: HostList, _: Path) -> PreflightReport:
    """Check hosts of which every third has another version of mpi4py, and the last resolves all names wrongly."""

    def there() -> Iterator[tuple[str, TaskReply]]:
        for number, (name, value) in enumerate(simulate_replies(hosts.names, time.time())):
            own = value["own"] if number % 3 else value["own"].replace("mpi4py 4.1.2", "mpi4py 4.0.0")
            own = own if name != hosts.names[-1] else own.replace(" 10.", " 11.")
            yield name, TaskReply({**value, "own": own}, done)

    done = FinishedProcess(0, "", "")
    here = TaskReply(dict(simulate_replies([os.uname().nodename], time.time()))[os.uname().nodename], done)
    target = reach(HostLinks(AgentLauncher()))._replace(
        task_here=lambda *_: lambda: here, tasks_there=lambda *_: dict(there())
    )
    return check_facts(hosts, PreflightRequest(OpenMpi4("/usr/bin/mpirun", "4.1.4", ""), only=frozenset(NAMES)), target)


def by_none(_kind: str, _value: str) -> dict[str, str]:
    return {}


def checked(hosts: HostList, folder: Path) -> None:
    assert render_lines([finding for finding in looked(hosts, folder).findings if finding.level is not Level.OK])


def chosen(hosts: HostList, _: Path) -> None:
    """Choose the network of hosts that each have a subnet of their own as well, and different interface names."""
    every = {
        name: (
            Address(f"eth{number}", f"10.{number // 250}.{number % 250}.1", 8),
            Address("ib0", f"172.16.{number // 64}.{number % 64 * 4 + 1}", 30),
        )
        for number, name in enumerate(hosts.names)
    }
    network = choose_network(every)
    assert network.subnets == ("10.0.0.0/8",)
    assert len(network.summary) < 10_000
    assert all(
        len(value) < MOST_CHARACTERS for value in network_variables(network, lambda _kind, _value: {})[0].values()
    )


def loaded(hosts: HostList, folder: Path) -> None:
    folder /= str(len(hosts))
    for name in hosts.names:
        (folder / name).mkdir(parents=True)
        (folder / name / "sysfs.txt").write_text("cpu/online:0\ncpu/cpu0/topology/thread_siblings_list:0\nddlrun:end\n")
    (folder / "hosts").write_text(render_hostfile(hosts))
    assert len(read_machines(hosts, str(folder))) == len(hosts)


@pytest.mark.parametrize(("work", "few"), [(planned, 100), (checked, 100), (chosen, 200), (loaded, 40)])
def test_work_grows_linearly_with_the_hosts(work: Callable[[HostList, Path], None], few: int, tmp_path: Path) -> None:
    uses = []
    for count in (few, 4 * few):
        hosts = named(count)
        Name.uses = 0
        work(hosts, tmp_path)
        uses.append(Name.uses)
    assert uses[0] > 0
    assert uses[1] < 5 * uses[0], "four times the hosts took more than five times the comparisons of names"


def test_interfaces_of_too_many_hosts_are_left_out() -> None:
    every = {
        f"n{number:05}": (Address(f"eth{number}", f"10.{number >> 8}.{number & 255}.1", 8),) for number in range(9000)
    }
    variables, notes = network_variables(choose_network(every), by_none)
    assert "DDLRUN_IFNAMES" not in variables
    assert any("left to Gloo" in note for note in notes)


def test_equal_hosts_share_a_machine_despite_some_kib_of_memory() -> None:
    report = looked(named(30), Path())
    assert len({id(machine) for machine in report.machines().values()}) == 1


def test_keepers_that_connect_at_the_same_time_are_accepted() -> None:
    """Connect twice as many as may wait without a greeting."""
    with serving() as served, contextlib.ExitStack() as stack:
        keepers = []
        for _ in range(400):
            keepers.append(stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener))))
            keepers[-1].greet()
        served.until(lambda: all(is_readable(keeper.link) for keeper in keepers))
        for keeper in keepers:
            keeper.read_welcome()
            keeper.send((protocol.HEARTBEAT, b""))
        served.until(lambda: len(served.messages) == len(keepers))
        assert (served.hang_ups, served.violations) == ([], [])


def test_a_keeper_that_is_slow_to_greet_is_not_displaced_by_other_connections() -> None:
    with serving() as served, contextlib.ExitStack() as stack:
        slow = stack.enter_context(contextlib.closing(SimulatedKeeper(served.listener)))
        clients = [SimulatedKeeper(served.listener) for _ in range(MOST_UNAUTHENTICATED + 1)]
        for client in clients:
            stack.callback(client.close)
            client.link.sendall(client.greeting[:-1])
        served.until(lambda: is_readable(clients[0].link))  # it was closed to make room
        slow.greet()
        served.until(lambda: is_readable(slow.link))
        slow.read_welcome()


def test_the_limit_of_open_files_is_raised_to_what_is_needed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 512
    opened = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
        allow_files(low - opened - OTHER_FILES)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low, before[1])
        allow_files(low - opened - OTHER_FILES + 1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low + 1, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ((256 - FEWEST_FILES,), ""),
        ((257 - FEWEST_FILES,), "opens up to 257 files"),
        ((1, 256 - MANAGER_FILES), ""),
        ((1, 258 - MANAGER_FILES), "opens up to 258 files"),
    ],
)
def test_more_ranks_than_files_may_be_open_are_an_error(counts: tuple[int, ...], problem: str) -> None:
    code = f"from ddlrun.supervise.listener import check_files; check_files(*{counts})"
    argv = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if problem else 0)
    assert problem in done.stderr if problem else done.stderr == ""


def test_files_of_the_process_manager_count(tmp_path: Path) -> None:
    line = launch_line(OWN, tmp_path, "--quiet", "-np", "40", "-H", f"{os.uname().nodename}:40", "--bind", "none")
    argv = ["sh", "-c", 'ulimit -n 89 && exec "$@"', "sh", *line, "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    problem = "a job of 40 ranks opens up to 96 files on this machine, which allows 89 (ulimit -n)"
    remedy = "set '* - nofile 96' in /etc/security/limits.conf"
    assert (done.returncode, done.stderr) == (5, f"ddlrun: error: {problem}; {remedy}\n")


def test_few_open_files_are_enough_for_a_small_job(mpirun: str, tmp_path: Path) -> None:
    line = launch_line(mpirun, tmp_path, "--quiet", "-np", "2", "echo", "done")
    argv = ["sh", "-c", f'ulimit -n {2 + FEWEST_FILES} && exec "$@"', "sh", *line]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.count("done")) == (0, 2), done.stderr
