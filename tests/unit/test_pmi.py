"""The PMI-1 server of agents: replies, barriers over hosts, and bytes that no MPI library sends."""

import os
import re
import socket
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.agent.job import PmiRoot
from ddlrun.agent.pmi import LONGEST_LINE, PmiServer
from ddlrun.agent.pmi_service import open_link, rank_variables
from ddlrun.agent.pmi_values import LONGEST_KEY, LONGEST_VALUE, MOST_PUT, KeyValues, process_mapping
from tests.support.pmi_ranks import connect, ranks_of

SECONDS = 300.0


class Job:
    """The servers of a job's hosts, and the sockets of its ranks."""

    def __init__(self, hosts: Sequence[int]) -> None:
        self._hosts = hosts
        self.messages: list[tuple[int, bytes]] = []
        """Hosts, and the messages of their servers to the root."""
        self.aborts: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.servers = {
            number: PmiServer(
                hosts.count(number),
                KeyValues("job", len(hosts), "(mapping)"),
                on_barrier=lambda message, number=number: self.messages.append((number, message)),  # type: ignore[misc]
                on_abort=lambda rank, code: self.aborts.append((rank, code)),
                on_note=self.notes.append,
            )
            for number in sorted(set(hosts))
        }
        self.root = PmiRoot(self.servers)
        self.owners = [self.servers[host] for host in hosts]
        self.links, fds = zip(*(connect(server, rank) for rank, server in enumerate(self.owners)), strict=True)
        self.ranks = [socket.socket(fileno=fd) for fd in fds]
        for rank in self.ranks:
            rank.settimeout(SECONDS)

    def connected(self, host: int) -> list[int]:
        """Return the ranks of a host whose connections are open."""
        return [rank for rank in ranks_of(self._hosts, host) if self.links[rank].fileno() >= 0]

    def serve(self) -> None:
        """Let the servers read what is there, once."""
        for host, server in self.servers.items():
            for rank in self.connected(host):
                if not server.on_readable(rank):
                    server.close(rank)

    def meet(self) -> None:
        """Pass on the messages of the servers."""
        for number, message in self.messages:
            reply = self.root.on_message(number, message)
            if reply is not None:
                for server in self.servers.values():
                    server.on_message(reply)
        self.messages.clear()

    def send(self, rank: int, line: bytes) -> None:
        self.ranks[rank].sendall(line)
        self.serve()

    def query(self, rank: int, line: str) -> str:
        self.send(rank, line.encode() + b"\n")
        return self.receive(rank)

    def receive(self, rank: int) -> str:
        return self.ranks[rank].recv(1 << 16).decode()

    def __enter__(self) -> "Job":  # noqa: PYI034 - typing.Self came with 3.11
        return self

    def __exit__(self, *_error: object) -> None:
        for rank in self.ranks:
            rank.close()
        for host, server in self.servers.items():
            for number in self.connected(host):
                server.close(number)


@pytest.fixture
def job() -> Iterator[Job]:
    """Provide a job of two ranks on host 0 and one on host 7."""
    with Job([0, 0, 7]) as created:
        yield created


REPLIES = {
    "cmd=init pmi_version=1 pmi_subversion=1": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
    "cmd=get_maxes": "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024",
    "cmd=get_appnum": "cmd=appnum rc=0 appnum=0",
    "cmd=get_universe_size": "cmd=universe_size rc=0 size=3",
    "cmd=get_my_kvsname": "cmd=my_kvsname rc=0 kvsname=job",
    "cmd=get kvsname=job key=PMI_process_mapping": "cmd=get_result rc=0 msg=success value=(mapping)",
    "cmd=get kvsname=job key=other": "cmd=get_result rc=-1 msg=not_found value=unknown",
    "cmd=get kvsname=jobs key=PMI_process_mapping": "cmd=get_result rc=-1 msg=not_found value=unknown",
    "cmd=get": "cmd=get_result rc=-1 msg=not_found value=unknown",
    "cmd=put kvsname=job key=a value=b": "cmd=put_result rc=0 msg=success",
    "cmd=put kvsname=jobs key=a value=b": "cmd=put_result rc=-1 msg=unknown_kvsname",
    "cmd=put kvsname=job key=a value=": "cmd=put_result rc=-1 msg=invalid_length",
    "cmd=put kvsname=job value=b": "cmd=put_result rc=-1 msg=invalid_length",
    f"cmd=put kvsname=job key={'k' * (LONGEST_KEY + 1)} value=b": "cmd=put_result rc=-1 msg=invalid_length",
    f"cmd=put kvsname=job key=a value={'v' * (LONGEST_VALUE + 1)}": "cmd=put_result rc=-1 msg=invalid_length",
    "cmd=publish_name service=s port=p": "cmd=publish_result rc=-1 msg=not_supported",
    "cmd=finalize": "cmd=finalize_ack rc=0",
    "cmd=dance": "cmd=dance rc=-1 msg=unknown_command",
    "": "cmd= rc=-1 msg=unknown_command",
}


def test_each_request_has_its_reply(job: Job) -> None:
    assert {line: job.query(0, line).rstrip("\n") for line in REPLIES} == REPLIES
    assert not job.notes


@pytest.mark.parametrize(
    "value",
    ["plain", "segments=9", "two words = and more", "a\\ b", "\r", "x" * LONGEST_VALUE],
    ids=["plain", "equals", "spaces", "escaped", "return", "longest"],
)
def test_values_reach_all_hosts_in_a_barrier(job: Job, value: str) -> None:
    assert "rc=0" in job.query(0, f"cmd=put kvsname=job key=-bc-0-seg-1/9 value={value}")
    assert "rc=-1" in job.query(2, "cmd=get kvsname=job key=-bc-0-seg-1/9")
    for rank in range(3):
        job.send(rank, b"cmd=barrier_in\n")
    job.meet()
    assert {job.receive(rank) for rank in range(3)} == {"cmd=barrier_out rc=0\n"}
    for rank in range(3):
        reply = job.query(rank, "cmd=get kvsname=job key=-bc-0-seg-1/9")
        assert reply == f"cmd=get_result rc=0 msg=success value={value}\n"


def test_a_host_sends_one_message_per_barrier(job: Job) -> None:
    job.query(0, "cmd=put kvsname=job key=a value=1")
    job.query(1, "cmd=put kvsname=job key=b value=2")
    job.send(0, b"cmd=barrier_in\n")
    assert job.messages == []
    job.send(1, b"cmd=barrier_in\n")
    assert job.messages == [(0, b"a 1\nb 2\n")]
    assert job.root.on_message(0, b"a 1\nb 2\n") is None
    assert job.root.on_message(7, b"c 3\n") == b"a 1\nb 2\nc 3\n"


def test_barriers_follow_one_another(job: Job) -> None:
    for number in range(3):
        job.query(number, f"cmd=put kvsname=job key=round value={number}")
        for rank in range(3):
            job.send(rank, b"cmd=barrier_in\n")
        job.meet()
        assert {job.receive(rank) for rank in range(3)} == {"cmd=barrier_out rc=0\n"}
        assert f"value={number}\n" in job.query((number + 1) % 3, "cmd=get kvsname=job key=round")


def test_a_line_may_arrive_in_parts(job: Job) -> None:
    for byte in b"cmd=get_appnum":
        job.send(0, bytes([byte]))
    assert job.query(0, "") == "cmd=appnum rc=0 appnum=0\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("cmd=abort exitcode=7 message=out of patience exitcode=8", 7),
        ("cmd=abort exitcode=7", 7),
        ("cmd=abort exitcode=-1", 255),
        ("cmd=abort exitcode=0", 1),
        ("cmd=abort exitcode=1e99", 1),
        ("cmd=abort", 1),
    ],
)
def test_an_abort_is_reported(job: Job, line: str, code: int) -> None:
    job.send(1, line.encode() + b"\n")
    assert job.aborts == [(1, code)]


def test_spawn_is_refused_with_one_reply(job: Job) -> None:
    request = "mcmd=spawn\nnprocs=1\nexecname=python\nargcnt=1\narg1=cmd=finalize\nendcmd"
    assert job.query(0, request) == "cmd=spawn_result rc=-1 msg=not_supported\n"
    assert job.query(0, request) == "cmd=spawn_result rc=-1 msg=not_supported\n"
    assert job.notes == ["rank 0: ddlrun's process manager does not offer MPI_Comm_spawn"]
    assert job.query(0, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0\n"


def test_several_requests_to_spawn_have_one_reply(job: Job) -> None:
    part = b"mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=2\nspawnssofar=%d\nargcnt=0\nendcmd\n"
    for _ in range(2):
        job.send(0, part % 1 + part % 2)
        assert job.receive(0) == "cmd=spawn_result rc=-1 msg=not_supported\n"
    assert job.query(0, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0\n"


def test_another_version_is_refused(job: Job) -> None:
    assert job.query(2, "cmd=init pmi_version=2 pmi_subversion=0") == (
        "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1\n"
    )
    assert job.notes == ["rank 2: its MPI library speaks PMI 2, ddlrun's process manager PMI 1"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"x" * (LONGEST_LINE + 1), f"sent a PMI request of more than {LONGEST_LINE} bytes"),
        (b"cmd=barrier_in\ncmd=barrier_in\n", "entered a barrier twice"),
        (b"cmd=get_maxes\n" * 20_000, "does not read the replies to its PMI requests"),
    ],
    ids=["long", "barrier", "unread"],
)
def test_a_rank_that_breaks_the_protocol_is_cut_off(job: Job, data: bytes, problem: str) -> None:
    keepers_copy = os.dup(job.links[0].fileno())
    job.ranks[0].setblocking(False)
    while len(job.connected(0)) == 2:
        data = data[job.ranks[0].send(data) :] if data else b""
        job.serve()
    assert len(job.connected(0)) == 1
    assert job.notes == [f"rank 0 {problem}: its connection is closed"]
    job.ranks[0].settimeout(SECONDS)
    while job.receive(0):  # a rank that waits for a reply does not wait without end
        pass
    os.close(keepers_copy)
    assert job.query(1, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0\n"


def test_a_rank_cannot_fill_the_memory(job: Job) -> None:
    value = "v" * LONGEST_VALUE
    replies = [job.query(0, f"cmd=put kvsname=job key={key} value={value}") for key in range(MOST_PUT // LONGEST_VALUE)]
    assert replies[-1] == "cmd=put_result rc=-1 msg=too_many_values\n"
    assert "rc=0" in job.query(1, f"cmd=put kvsname=job key=other value={value}")


def test_a_rank_may_end_at_any_time(job: Job) -> None:
    job.send(0, b"cmd=barrier_in\n")
    job.ranks[0].close()
    job.send(1, b"cmd=barrier_in\n")
    job.send(2, b"cmd=barrier_in\n")
    job.meet()
    assert job.receive(1) == "cmd=barrier_out rc=0\n"
    job.serve()
    assert len(job.connected(0)) == 1
    assert not job.notes


def test_variables_name_the_place_of_a_rank() -> None:
    link, fd = open_link()
    assert os.get_inheritable(fd)
    assert rank_variables(3, fd, [1, 3], 4) == {
        "PMI_FD": str(fd), "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"
    }  # fmt: skip
    os.close(fd)
    link.close()


@given(st.lists(st.one_of(st.binary(), st.sampled_from([f"{line}\n".encode() for line in REPLIES]))))
def test_no_bytes_disturb_the_server(parts: list[bytes]) -> None:
    with Job([0, 0]) as job:
        for part in parts:
            if len(job.connected(0)) == 2:
                job.send(0, part)
        assert job.query(1, "cmd=get_appnum") == "cmd=appnum rc=0 appnum=0\n"


@given(st.lists(st.integers(0, 5), min_size=1))
def test_a_mapping_describes_the_hosts(hosts: list[int]) -> None:
    blocks = re.findall(r"\((\d+),(\d+),(\d+)\)", process_mapping(hosts))
    described = [
        host
        for first, number, ranks in (map(int, block) for block in blocks)
        for host in range(first, first + number)
        for _ in range(ranks)
    ]
    order = list(dict.fromkeys(hosts))
    assert described == [order.index(host) for host in hosts]


@pytest.mark.parametrize(
    ("hosts", "mapping"),
    [
        ([0, 0, 0, 0], "(vector,(0,1,4))"),
        ([0, 0, 1, 1, 2, 2], "(vector,(0,3,2))"),
        ([0, 1, 2, 0, 1, 2], "(vector,(0,3,1),(0,3,1))"),
        ([0, 0, 0, 1], "(vector,(0,1,3),(1,1,1))"),
        ([0, 1, 2, 0, 1, 0], "(vector,(0,3,1),(0,2,1),(0,1,1))"),
        ([3, 3, 1, 1], "(vector,(0,2,2))"),
    ],
)
def test_mappings_are_short(hosts: list[int], mapping: str) -> None:
    assert process_mapping(hosts) == mapping


def test_ranks_that_have_not_finalized_mpi_are_known() -> None:
    with Job([0, 0]) as job:
        for rank in (0, 1):
            job.query(rank, "cmd=init pmi_version=1 pmi_subversion=1")
        job.query(0, "cmd=finalize")
        assert job.owners[0].in_mpi == {1}
