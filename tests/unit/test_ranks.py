"""The ranks of a job: what their keepers report of them and of their hosts."""

import socket
from collections.abc import Iterator

import pytest

from ddlrun.keeper.protocol import ProtocolError, RankEnd
from ddlrun.managers.own import own_manager
from ddlrun.plan.supervision import SupervisedJob
from ddlrun.supervise.keeper_connection import Hello, KeeperConnection
from ddlrun.supervise.ranks import Ranks
from ddlrun.topology import RankOrder, Topology
from tests.support.handshakes import agree

JOB = SupervisedJob(Topology((1, 2)), RankOrder.HOST, ("n0.example.org", "n1.example.org"), own_manager(""))
TRACEBACK = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: no\n'


@pytest.fixture
def peer() -> Iterator[KeeperConnection]:
    with socket.socket() as link:
        peer = KeeperConnection(link, agree()[1], 0.0)
        peer.introduce(Hello(0, "n0", 0))
        yield peer


def test_session_folders_have_the_hosts_names_in_the_job(peer: KeeperConnection) -> None:
    ranks = Ranks(JOB)
    ranks.start(0, "n0")
    ranks.add_session_folder(peer.host, "/scratch/ompi.n0.0/jf.7")
    assert ranks.daemon_folders() == {"n0.example.org": "/scratch/ompi.n0.0/jf.7"}


def test_hosts_without_a_keeper_are_left_unwatched() -> None:
    ranks = Ranks(JOB)
    ranks.start(0, "n0")
    assert ranks.unwatched_hosts() == frozenset()
    ranks.ended_while_starting = True
    assert ranks.unwatched_hosts() == {"n1.example.org"}
    ranks.lost_hosts.add("n1.example.org")
    assert ranks.unwatched_hosts() == frozenset(), "it cannot be reached"


def test_a_rank_runs_from_its_start_to_its_end_or_its_loss(peer: KeeperConnection) -> None:
    ranks = Ranks(JOB)
    for rank, host in enumerate(("n0", "n1")):
        ranks.start(rank, host)
    assert (ranks.running, ranks.missing, ranks.complete, ranks.ended) == ({0, 1}, [], True, False)
    with pytest.raises(ProtocolError, match="has another keeper"):
        ranks.start(0, "n0")
    ranks.end(peer, 0, RankEnd(taken_port=7))
    assert (ranks.running, ranks.ended, ranks.taken_port) == ({1}, False, 7)
    peer.introduce(Hello(1, "n1", 0))
    ranks.lose(peer)
    assert (ranks.running, ranks.lost) == (set(), ["rank 1 on n1"])


@pytest.mark.parametrize("folder", ["", "prted.7", "/home/user", "/home/../prted.7", "/prted.7/", "/prted.7/.."])
def test_other_paths_are_no_session_folders(folder: str) -> None:
    with pytest.raises(ProtocolError):
        Ranks(JOB).add_session_folder("n0", folder)


@pytest.mark.parametrize(
    ("errors", "output", "wrote_to"),
    [
        (b"warning\n", TRACEBACK, "standard output"),
        (b"", TRACEBACK, "standard output"),
        (TRACEBACK, TRACEBACK.replace(b"no", b"caught"), "standard error"),
        (b"config: no such optimizer\n", TRACEBACK + b"epoch\n" * 99, "standard error"),
        (b"", b"epoch 1\n", "standard error"),
    ],
)
def test_the_last_lines_have_the_traceback(peer: KeeperConnection, errors: bytes, output: bytes, wrote_to: str) -> None:
    ranks = Ranks(JOB)
    ranks.end(peer, 0, RankEnd(exit_code=1, tail=errors.decode(), output_tail=output.decode()))
    tail = output if wrote_to == "standard output" else errors
    assert (ranks.ends[0].tail, ranks.ends[0].wrote_to) == (tail.decode(), wrote_to)
