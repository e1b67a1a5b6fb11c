"""Relays in place of ssh clients: their commands run over ddlrun's links, here to agents on this machine."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ddlrun.agent.protocol import EXIT_LOST
from ddlrun.managers.end import EndCode
from ddlrun.managers.openmpi.dialects import OpenMpi4, OpenMpi5
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.links import HostLinks
from ddlrun.supervise.relays import RELAY, Relays
from ddlrun.wire.loop import Loop

LAUNCHER = AgentLauncher("ssh", ("-p", "h1"))

# The last argument is the command; the process that runs it is the client.
SSH = """#!/bin/sh
echo $$ >>{pids}
for word; do :; done
exec sh -c "$word"
"""


class Served:
    """Relays that a loop serves, with what their commands have printed."""

    def __init__(self, folder: Path) -> None:
        self.links = HostLinks(LAUNCHER)
        self.links.agents.link(["h1", "h2"])
        self.relays = Relays(self.links, ["h1", "h2"], {}, 0, str(folder))
        self.printed = [b"", b""]
        self.loop = Loop()
        self.loop.watch_loop(self.links.agents.loop)
        self.relays.serve(self.loop, self._add)

    def _add(self, stream: int, data: bytes) -> None:
        self.printed[stream] += data

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*RELAY, *words], env={**os.environ, **self.relays.variables})

    def wait(self, relay: subprocess.Popen[bytes]) -> int:
        while relay.poll() is None:
            self.loop.wait(0.05)
        return relay.returncode

    def close(self) -> None:
        self.relays.close()
        self.loop.close()
        self.links.close()


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an ssh on PATH whose hosts are this machine; return the file with the clients' processes."""
    (tmp_path / "ssh").write_text(SSH.format(pids=tmp_path / "pids"))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "pids"


@pytest.fixture
def served(pids: Path, tmp_path: Path) -> Iterator[Served]:
    assert not pids.exists()
    with closing(Served(tmp_path)) as made:
        yield made


COMMANDS = (("h1", ["echo one;", "exit 7"]), ("h2", ["printf %s 'two  words\\\n\udcff' >&2"]))


def test_a_command_runs_over_the_link(served: Served) -> None:
    relays = [served.start("-p", "h1", host, *words) for host, words in COMMANDS]
    assert [served.wait(relay) for relay in relays] == [7, 0]
    assert served.printed == [b"one\n", b"two  words\\\n\xff"]


def test_a_daemon_that_is_killed_is_a_lost_host(served: Served) -> None:
    assert served.wait(served.start("-p", "h1", "h2", "kill -9 $$")) == 137
    assert [(loss.code, loss.host) for loss in served.relays.losses] == [(EndCode.LOST_DAEMON, "h2")]


def test_a_relay_to_an_unknown_host_fails(served: Served) -> None:
    assert served.wait(served.start("-p", "h1", "h3", "true")) == EXIT_LOST


def test_a_relay_ends_with_its_link(served: Served, pids: Path) -> None:
    relay = served.start("-p", "h1", "h2", "echo $$; exec sleep 600")
    while not served.printed[0]:
        served.loop.wait(0.05)
    for pid in pids.read_text().split():  # the agents, which cannot end the command
        os.kill(int(pid), signal.SIGKILL)
    os.kill(int(served.printed[0]), signal.SIGKILL)
    assert served.wait(relay) == EXIT_LOST
    assert (EndCode.LOST_HOST, "h2") in [(loss.code, loss.host) for loss in served.relays.losses]


def test_a_relay_ends_with_ddlrun(served: Served) -> None:
    relay = served.start("-p", "h1", "h2", "echo runs; exec sleep 600")
    while not served.printed[0]:
        served.loop.wait(0.05)
    served.relays.close()
    assert relay.wait() == EXIT_LOST


def test_a_relay_that_starts_after_the_end_of_ddlrun_ends(served: Served) -> None:
    served.relays.close()
    assert served.start("-p", "h1", "h2", "true").wait(300) == EXIT_LOST


def test_without_ddlrun_a_relay_becomes_ssh(pids: Path) -> None:
    done = subprocess.run([*RELAY, "h1", "echo 'not over a link'"], capture_output=True, check=True)
    assert (done.stdout, len(pids.read_text().split())) == (b"not over a link\n", 1)


def test_mpirun_starts_relays_in_place_of_ssh() -> None:
    old, new = OpenMpi4("/usr/bin/mpirun", "4.1.4", ""), OpenMpi5("/usr/bin/mpirun", "5.0.11", "")
    few, many = new.relay_variables(RELAY, 64), new.relay_variables(RELAY, 65)
    assert few["PRTE_MCA_plm_ssh_agent"] == many["PRTE_MCA_plm_ssh_agent"] == " ".join(RELAY)
    assert [it["PRTE_MCA_plm_ssh_no_tree_spawn"] for it in (few, many)] == ["0", "1"]
    assert old.relay_variables(RELAY, 65)["OMPI_MCA_orte_leave_session_attached"] == "1"


def test_mpirun_keeps_an_agent_of_the_user_or_the_site(tmp_path: Path) -> None:
    mpirun = OpenMpi5(f"{tmp_path}/bin/mpirun", "5.0.11", "")
    assert mpirun.find_relay_obstacle(RELAY, {}) is None
    assert mpirun.find_relay_obstacle(RELAY, {"PRTE_MCA_plm_ssh_agent": "rsh"}) == "PRTE_MCA_plm_ssh_agent is set"
    assert mpirun.find_relay_obstacle(["/a b/python"], {}) == "it would split '/a b/python'"
    file = tmp_path / "etc/openmpi-mca-params.conf"
    file.parent.mkdir()
    file.write_text("# plm_ssh_agent = ssh\n")
    assert mpirun.find_relay_obstacle(RELAY, {}) is None
    file.write_text("plm_ssh_agent = rsh\n")
    assert mpirun.find_relay_obstacle(RELAY, {}) == f"{file} names an agent"
