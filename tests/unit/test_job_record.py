"""The record of a job: what keepers report about their hosts."""

import socket
from collections.abc import Iterator

import pytest

from ddlrun.keeper.protocol import ProtocolError, RankEnd
from ddlrun.supervise.job_record import JobRecord
from ddlrun.supervise.keeper_connection import Hello, KeeperConnection

TRACEBACK = b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: no\n'


@pytest.fixture
def peer() -> Iterator[KeeperConnection]:
    with socket.socket() as link:
        peer = KeeperConnection(link, 0.0)
        peer.introduce(Hello(0, "n0", 0))
        yield peer


def test_session_folders_have_the_hosts_names_in_the_job(peer: KeeperConnection) -> None:
    record = JobRecord()
    record.job_names["n0"] = "n0.example.org"
    record.add_session_folder(peer, "/scratch/ompi.n0.0/jf.7")
    assert record.folders_of_daemons() == {"n0.example.org": "/scratch/ompi.n0.0/jf.7"}


@pytest.mark.parametrize("folder", ["", "prted.7", "/home/user", "/home/../prted.7", "/prted.7/", "/prted.7/.."])
def test_other_paths_are_no_session_folders(peer: KeeperConnection, folder: str) -> None:
    with pytest.raises(ProtocolError):
        JobRecord().add_session_folder(peer, folder)


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
    record = JobRecord()
    record.add_end(peer, RankEnd(exit_code=1, tail=errors.decode(), output_tail=output.decode()))
    tail = output if wrote_to == "standard output" else errors
    assert (record.ends[0].tail, record.ends[0].wrote_to) == (tail.decode(), wrote_to)
