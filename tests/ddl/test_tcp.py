"""The runtime library without MPI: ranks as plain processes, and endpoints of one process."""

import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddlrun.ddl.group.engine import Engine
from ddlrun.ddl.group.operation import Chunk, Limits
from ddlrun.ddl.group.reduce_ops import find_reduce_op
from ddlrun.ddl.schedules.schedule import broadcast
from ddlrun.ddl.transports.communicators import LANE
from ddlrun.ddl.transports.tcp.address_exchange import AddressExchange, Membership
from ddlrun.ddl.transports.tcp.communicator import Messages, TcpCommunicator, TcpTransport
from ddlrun.ddl.transports.tcp.connection import PeerConnection
from ddlrun.ddl.transports.tcp.connections import RankAddress
from ddlrun.ddl.transports.tcp.endpoint import Endpoint
from ddlrun.ddl.transports.tcp.loans import OwnMemory, PeerMemory, RevokedMemoryError, address_of
from ddlrun.ddl.transports.tcp.message import Completion, Mailbox
from ddlrun.ddl.transports.tcp.own_host import listen
from ddlrun.ddl.transports.tcp.protocol import ENVELOPE, KINDS, KNOCK, MESSAGE, Claim, make_secret
from ddlrun.ddl.transports.tcp.world import read_job
from ddlrun.errors import InputError, LostRankError
from ddlrun.wire.authentication import connect_as
from ddlrun.wire.connection import ClosedError
from ddlrun.wire.frames import Checksums, Encoder
from ddlrun.wire.listening import MOST_UNAUTHENTICATED
from ddlrun.wire.loop import Loop
from tests.conftest import launch_line
from tests.ddl.test_mpi import started
from tests.support.altering_proxy import Place, altering
from tests.support.ports import reserved_port

SECRET = "secret"  # noqa: S105 - of these tests
TCP = "DDLRUN_DDL_TRANSPORT=tcp"
ROOT = Path(__file__).parents[2]
RANKS = ROOT / "tests" / "ddl" / "allreduce_ranks.py"
FAULTS = ROOT / "tests" / "ddl" / "lost_ranks.py"


def started_alone(ranks: int, *arguments: str, **environ: str) -> list[subprocess.CompletedProcess[str]]:
    """Run ranks as plain processes, and return their ends in rank order."""
    with reserved_port() as port:
        return ends_of_ranks(ranks, *arguments, **{"MASTER_PORT": str(port), **environ})


def ends_of_ranks(ranks: int, *arguments: str, **environ: str) -> list[subprocess.CompletedProcess[str]]:
    """Run ranks that meet at MASTER_PORT, and return their ends in rank order: those that hang are killed."""
    launched = ("OMPI_", "PMI", "RANK", "WORLD_SIZE", "TORCHELASTIC_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    env |= {"PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", **environ}
    processes = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env={**env, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ends = []
    try:
        for process in processes:
            try:
                out, errors = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                for late in processes:
                    late.kill()
                out, errors = process.communicate()
            ends.append(subprocess.CompletedProcess(process.args, process.returncode, out, errors))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return ends


@pytest.mark.parametrize(
    ("ranks", "arguments"), [(4, "--quick 2x2x1"), pytest.param(6, "--quick 1x2x3 5x1x1", marks=pytest.mark.extra)]
)
def test_every_mode_dtype_operation_and_shape(ranks: int, arguments: str) -> None:
    first, *others = started_alone(ranks, str(RANKS), *arguments.split())
    assert (first.returncode, first.stdout.strip()[-7:]) == (0, "0 wrong"), first.stdout + first.stderr
    assert [(end.returncode, end.stderr) for end in others] == [(0, "")] * len(others)


@pytest.mark.extra
@pytest.mark.parametrize("major", [5], indirect=True)
def test_sums_have_the_same_bits_as_over_mpi(mpirun: str) -> None:
    arguments = [str(RANKS), "--bits", "--quick", "2x2x1"]
    over_tcp = started_alone(4, *arguments)[0].stdout
    over_mpi = started(mpirun, 4, *arguments).stdout
    assert "bits " in over_tcp
    assert over_tcp == over_mpi


@pytest.mark.parametrize("case", ["killed", pytest.param("unequal", marks=pytest.mark.extra)])
def test_a_lost_rank_is_named_on_all_others(case: str) -> None:
    ends = started_alone(3, str(FAULTS), case)
    if case == "killed":
        assert ends[2].returncode == -9
        assert all("rank 2 is lost" in end.stdout for end in ends[:2]), ends
        return
    problems = {end.stdout.split(" ", 1)[0] for end in ends}
    assert problems <= {"InputError", "LostRankError"}, ends
    assert "InputError" in problems, ends


@pytest.mark.parametrize("case", ["files", "files but one"])
def test_a_rank_that_may_open_no_more_files_says_so(case: str) -> None:
    *others, last = started_alone(3, str(FAULTS), case)
    limit = r"too many open files: raise this process's limit of \d+ \(ulimit -Hn\)"
    assert re.fullmatch(rf"LostRankError rank 2 of 3: {limit}\n", last.stdout), last
    assert all("rank 2 is lost" in end.stdout for end in others), others


def test_a_rank_whose_reduction_is_interrupted_ends_and_is_lost_to_others() -> None:
    *others, last = started_alone(3, str(FAULTS), "interrupted")
    assert last.stdout.startswith("LostRankError rank 2 of 3: an earlier call was interrupted (KeyboardInterrupt)"), (
        last
    )
    assert all("rank 2 is lost" in end.stdout for end in others), others
    assert "reductions under way" not in last.stderr


def test_a_rank_raises_its_limit_of_open_files() -> None:
    ends = started_alone(3, str(FAULTS), "files that may be more")
    assert [end.stdout for end in ends] == ["fine\n"] * 3, ends


@pytest.mark.extra
def test_a_message_of_another_length_that_came_early_is_an_input_error() -> None:
    first, second = started_alone(2, str(FAULTS), "early")
    assert first.stdout.startswith("LostRankError rank 0 of 2: rank 1 is lost: "), first
    assert second.stdout.startswith("InputError rank 1 of 2: all_reduce: sum of float64 of shape (2000,): "), second
    assert "a message of rank 0 has " in second.stdout


def test_messages_are_sent_where_the_memory_cannot_be_read_any_more() -> None:
    ends = started_alone(2, str(FAULTS), "forbidden")
    assert [end.stdout for end in ends] == ["1.0 copied\n4.0 sent\nfine\n"] * 2, ends


@pytest.mark.extra
def test_a_rank_with_another_secret_is_refused() -> None:
    environ = {"DDLRUN_DDL_SECRET": "this", "DDLRUN_DDL_START_TIMEOUT": "10"}
    ends = started_alone(2, str(FAULTS), "secret", **environ)
    assert "refuses this rank" in ends[1].stdout
    assert "rank 1 did not arrive within 10 s" in ends[0].stdout


SECRETIVE = """
import os, pathlib, sys
import numpy as np
from ddlrun import ddl

with ddl.init("-mode r"):
    print(*ddl.all_reduce(np.ones(2), "sum"), len(os.environ["DDLRUN_DDL_SECRET"]) >= 32)
    pathlib.Path(sys.argv[1], str(ddl.rank())).write_text(os.environ["DDLRUN_DDL_SECRET"])
    if ddl.rank() == 0:
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if os.environ["DDLRUN_DDL_SECRET"].encode() in path.read_bytes():
                    print("seen", path)
            except OSError:
                continue
"""


def test_ddlrun_gives_the_ranks_of_a_run_a_secret(tmp_path: Path) -> None:
    argv = [*launch_line("ddlrun", tmp_path), "-np", "2", "--output", "no-tag", "--env", TCP]
    done = subprocess.run(
        [*argv, sys.executable, "-c", SECRETIVE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2.0 2.0 True\n" * 2), done.stderr
    secret, other = ((tmp_path / str(rank)).read_text() for rank in (0, 1))
    assert secret == other
    assert all(secret.encode() not in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert secret not in done.stderr


def test_ranks_that_do_not_arrive_are_named() -> None:
    job = member(0, 4)
    with pytest.raises(LostRankError, match=r"^rank 0 of 4: ranks 1-3 did not arrive within 0 s$"):
        AddressExchange(job, listen("127.0.0.1")).collect()


def test_what_a_job_without_mpi_needs() -> None:
    right = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
    assert read_job(right) == Membership(rank=1, size=2, address="h1", port=29500, secret="", seconds=300)
    with pytest.raises(InputError, match="MASTER_ADDR, MASTER_PORT is not set"):
        read_job({"RANK": "1", "WORLD_SIZE": "2"})
    with pytest.raises(InputError, match="RANK 2: WORLD_SIZE is 2"):
        read_job({**right, "RANK": "2"})
    with pytest.raises(InputError, match="MASTER_PORT 'x': it is not a number"):
        read_job({**right, "MASTER_PORT": "x"})


def member(rank: int, size: int) -> Membership:
    return Membership(rank=rank, size=size, address="127.0.0.1", port=0, secret="", seconds=0)


@contextmanager
def endpoints(
    size: int,
    secrets: list[str] | None = None,
    hosts: str = "hhhhh",
    reach: Callable[[int, int], int] = lambda _rank, port: port,
) -> Iterator[list[Endpoint]]:
    """Yield endpoints of a job, all in this process, with the names of their hosts.

    `reach(rank, port)` returns the port by which a rank is reached that listens at `port`.
    """
    listeners = [listen("127.0.0.1") for _ in range(size)]
    addresses = [
        RankAddress("127.0.0.1", reach(rank, listener.getsockname()[1]), host)
        for rank, (listener, host) in enumerate(zip(listeners, hosts, strict=False))
    ]
    made = [
        Endpoint(member(rank, size), listener, make_secret((secrets or [SECRET] * size)[rank]), addresses.__getitem__)
        for rank, listener in enumerate(listeners)
    ]
    try:
        yield made
    finally:
        for endpoint in made:
            endpoint.close()


def together(made: list[Endpoint], call: Callable[[TcpCommunicator], Any]) -> list[Any]:
    """Call a function on all ranks, each in a thread of its own; return the results."""
    results: list[Any] = [None] * len(made)

    def run(rank: int) -> None:
        try:
            results[rank] = call(TcpCommunicator(made[rank], range(len(made)), 1))
        except (LostRankError, RuntimeError) as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return results


def poll_on(*made: Endpoint) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        for endpoint in made:
            endpoint.poll(0.01)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("step 3")])
def test_an_interrupted_call_closes_the_connections_of_its_rank(error: BaseException) -> None:
    class Owner:
        """Raises an exception when a message is complete, as a signal handler may do anywhere."""

        def __setattr__(self, name: str, value: int) -> None:
            super().__setattr__(name, value)
            if not value:
                raise error

    with endpoints(2, hosts="ab") as (here, there):
        owner = Owner()
        super(Owner, owner).__setattr__("open", 0)
        here.post_receive(1, 1, 7, Completion(owner, [], memoryview(bytearray(9))))
        there.post_send(0, 1, 7, memoryview(bytes(9)), Completion(Messages(TcpCommunicator(there, range(2), 1)), []))
        with pytest.raises(type(error)):
            poll_on(here, there)
        for call in (
            lambda: here.poll(0),
            lambda: here.post_send(1, 1, 7, memoryview(bytes(9)), Completion(owner, [])),
            lambda: here.post_receive(1, 1, 7, Completion(Messages(TcpCommunicator(here, range(2), 1)), [])),
        ):
            with pytest.raises(
                LostRankError, match=rf"rank 0 of 2: an earlier call was interrupted \({type(error).__name__}"
            ):
                call()
        there.post_receive(0, 1, 7, Completion(Messages(TcpCommunicator(there, range(2), 1)), []))
        with pytest.raises(LostRankError, match="rank 1 of 2: rank 0 is lost"):
            poll_on(there)


def test_messages_wait_for_their_buffers_and_keep_their_order() -> None:
    def call(comm: TcpCommunicator) -> list[int]:
        other, messages = comm.Dup(), Messages(comm)
        if comm.rank == 0:
            for number in range(3):
                messages.send(bytes([number]) * 9, 1, 7)
                messages.send(bytes([10 + number]) * 5, 1, 8)
            foreign = Messages(other)
            foreign.send(b"other", 1, 7)
            foreign.Wait()
            messages.Wait()
            comm.Barrier()
            return []
        comm.Barrier()  # all messages are here before their buffers
        buffers = [bytearray(5 if tag == 8 else 9) for tag in (8, 7, 8, 7, 8, 7)]
        for tag, buffer in zip((8, 7, 8, 7, 8, 7), buffers, strict=True):
            messages.receive(buffer, 0, tag)
        text = bytearray(5)
        messages_of_other = Messages(other)
        messages_of_other.receive(text, 0, 7)
        messages_of_other.Wait()
        messages.Wait()
        assert text == b"other"
        return [buffer[0] for buffer in buffers]

    with endpoints(2) as made:
        assert together(made, call) == [[], [10, 0, 11, 1, 12, 2]]


def test_collectives_of_any_number_of_ranks_and_roots() -> None:
    def call(comm: TcpCommunicator) -> Any:
        odd = comm.Split(comm.rank % 2, -comm.rank)
        large = np.full(3 << 20, comm.rank, np.uint8)
        comm.Bcast(large, 3)
        rows = np.empty((comm.size, 2))
        comm.Iallgather(np.array([comm.rank, 1.0]), rows).Wait()
        engine: Engine = Engine(TcpTransport[Chunk](comm.Dup()), comm.rank)
        text = np.full(100_000, comm.rank, np.uint8)
        steps = broadcast(comm.rank, comm.size, 2, 1000)
        engine.wait(
            engine.start(text, find_reduce_op("uint8", "sum"), lambda _count, _division: steps, Limits(1000, 4))
        )
        return (
            comm.allgather(comm.rank),
            comm.bcast(comm.rank, 4),
            odd.allgather(comm.rank),
            set(large.tolist()),
            [*rows[:, 0]],
            set(text.tolist()),
            comm.split_hosts().size,
        )

    everyone = [0, 1, 2, 3, 4]
    with endpoints(5) as made:
        results = together(made, call)
    assert results == [
        (everyone, 4, [4, 2, 0] if rank % 2 == 0 else [3, 1], {3}, everyone, {2}, 5) for rank in everyone
    ]


def test_an_end_without_the_secret_is_not_heard() -> None:
    refused = threading.Event()

    def call(comm: TcpCommunicator) -> Any:
        if comm.rank == 1:
            while not refused.is_set():
                comm.endpoint.poll(0.01)
            return None
        messages = Messages(comm)
        messages.send(b"x", 1, 0)
        try:
            messages.Wait()
        finally:
            refused.set()
        return None

    with endpoints(2, ["one", "another"]) as made:
        assert together(made, call)[0] == "rank 0 of 2: rank 1 is lost: it does not know the secret of the job"


@pytest.mark.parametrize(
    ("to_server", "byte", "error"),
    [
        pytest.param(True, 3, "", id="greeting"),
        pytest.param(True, 45, "rank 1 is lost: it has ended", id="confirmation"),
        pytest.param(False, 20, "rank 1 is lost: it does not know the secret of the job", id="welcome"),
        pytest.param(True, 57, "rank 0 is lost: a message was altered on the way", id="kind"),
        pytest.param(True, 60, "rank 0 is lost: a message was altered on the way", id="group"),
        pytest.param(False, 42, "rank 1 is lost: a message was altered on the way", id="tag"),
        pytest.param(False, 46, "rank 1 is lost: a message was altered on the way", id="length"),
        pytest.param(False, 60, "rank 1 is lost: a message was altered on the way", id="object"),
    ],
)
def test_an_altered_byte_is_an_error_that_names_the_peer(*, to_server: bool, byte: int, error: str) -> None:
    ports = {}

    def reach(rank: int, port: int) -> int:
        ports[rank] = port
        return proxy.port if rank else port

    def call(comm: TcpCommunicator) -> Any:
        try:
            return comm.allgather(comm.rank)
        except LostRankError:
            comm.endpoint.close()
            raise

    place = Place(to_server, byte)
    with altering(place, lambda: ports[1]) as proxy, endpoints(2, hosts="ab", reach=reach) as made:
        results = together(made, call)
    assert proxy.altered
    named = [f"rank {1 - rank} is lost: " in result for rank, result in enumerate(results) if result != [0, 1]]
    assert all(named), results
    assert any(str(result).endswith(error or "[0, 1]") for result in results), results


def is_closed(file: socket.socket) -> bool:
    try:
        return not file.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


@pytest.mark.parametrize("forges", [False, True])
def test_unauthenticated_connections_are_limited_and_displace_no_rank(*, forges: bool) -> None:
    """The connection of rank 0 is the oldest one: it may be closed, too, and the rank connects again."""
    greeting, _ = next(connect_as(make_secret("another"), Claim(KNOCK, 0, 1).pack()))
    most, more = MOST_UNAUTHENTICATED + 2, 20
    with endpoints(2) as made:
        messages, buffer = Messages(TcpCommunicator(made[0], range(2), 1)), bytearray(1)
        messages.send(b"x", 1, 0)
        address = made[0].address_of(1)
        clients = [socket.create_connection((address.address, address.port)) for _ in range(most + more)]
        for client in clients if forges else ():
            client.send(greeting)
        while made[1].poll(0.1):
            pass
        assert [is_closed(client) for client in clients] == [True] * more + [forges] * most
        arrival = Messages(TcpCommunicator(made[1], range(2), 1))
        arrival.receive(buffer, 0, 0)
        while arrival.open or messages.open:
            for endpoint in made:
                endpoint.poll(0.01)
        assert buffer == b"x"
        for client in clients:
            client.close()


def test_a_rank_that_has_ended_is_named() -> None:
    def call(comm: TcpCommunicator) -> Any:
        if comm.rank == 1:
            comm.endpoint.close()
            return "ended"
        return comm.bcast(0, 1)

    for size in (2, 3):
        with endpoints(size) as made:
            results = together(made, call)
        lost = [result for result in results if result != "ended"]
        assert all("rank 1 is lost: " in result for result in lost), results


def test_a_lost_rank_is_named_over_a_connection_that_was_not_ready() -> None:
    ended, reported = threading.Event(), threading.Event()

    def call(comm: TcpCommunicator) -> Any:
        messages = Messages(comm)
        if comm.rank == 2:
            comm.endpoint.close()
            ended.set()
            return None
        if comm.rank == 0:
            messages.receive(bytearray(1), 1, 0)
            reported.wait(300)
            messages.Wait()
            return None
        ended.wait(300)
        messages.receive(bytearray(1), 0, 0)
        try:
            messages.receive(bytearray(1), 2, 0)
            messages.Wait()
        finally:
            reported.set()
            comm.endpoint.close()
        return None

    with endpoints(3) as made:
        third, reporter, _ = together(made, call)
    assert reporter == "rank 1 of 3: rank 2 is lost: it has ended"
    assert third == "rank 0 of 3: rank 2 is lost: as rank 1 reports"


class Owner:
    """An owner of messages."""

    open = 0


def wait_for_owner(transport: TcpTransport[Owner], owner: Owner) -> None:
    while owner.open:
        transport.wait_some(60)


LONG, SHORT = 1 << 20, 9
LENGTHS = (LONG, SHORT, LONG, SHORT, SHORT, LONG)


@pytest.mark.parametrize("posted", ["early", "late"])
def test_long_messages_are_copied_from_the_memory_of_their_sender(posted: str) -> None:
    lent, read = threading.Event(), threading.Event()

    def call(comm: TcpCommunicator) -> Any:
        transport, owner = TcpTransport[Owner](comm.Dup()), Owner()
        comm.Barrier()
        comm.Barrier()  # the offers of memory have come
        if comm.rank == 0:
            if posted == "early":
                lent.wait(300)
            parts = [np.full(length, number, np.uint8) for number, length in enumerate(LENGTHS)]
            for part in parts:
                transport.post_send(part.data, 1, 5, owner)
            waiting = owner.open
            lent.set()
            read.wait(300 if posted == "late" else 0)
            wait_for_owner(transport, owner)
            return waiting
        buffers = [np.zeros(length, np.uint8) for length in LENGTHS]
        if posted == "late":
            lent.wait(300)
            comm.endpoint.poll(60)
        for buffer in buffers:
            transport.post_receive(buffer.data, 0, 5, owner)
        lent.set()
        wait_for_owner(transport, owner)
        read.set()
        return [set(buffer.tolist()) for buffer in buffers]

    with endpoints(2) as made:
        waiting, contents = together(made, call)
    assert contents == [{number} for number in range(len(LENGTHS))]
    assert waiting == LENGTHS.count(LONG)


def test_a_message_in_the_memory_of_a_lost_rank_is_not_used() -> None:
    lent = threading.Event()

    def call(comm: TcpCommunicator) -> Any:
        transport, owner = TcpTransport[Owner](comm.Dup()), Owner()
        comm.Barrier()
        comm.Barrier()
        if comm.rank == 0:
            data = np.ones(LONG, np.uint8)
            transport.post_send(data.data, 1, 5, owner)
            comm.endpoint.close()
            data[:] = 2  # as a program may, once the loss of a rank is an error
            lent.set()
            return "ended"
        lent.wait(300)
        transport.post_receive(memoryview(bytearray(LONG)), 0, 5, owner)
        wait_for_owner(transport, owner)
        return "complete"

    with endpoints(2) as made:
        assert together(made, call) == ["ended", "rank 1 of 2: rank 0 is lost: it has ended"]


def test_a_rank_that_has_sent_all_may_end_while_its_messages_arrive() -> None:
    ended = threading.Event()

    def call(comm: TcpCommunicator) -> Any:
        exchange_over_connections(comm)
        transport, owner, endpoint = TcpTransport[Owner](comm.Dup()), Owner(), comm.endpoint
        data = np.full(LONG, comm.rank, np.uint8)
        if comm.rank == 0:
            transport.post_send(data.data, 1, 2 * LANE, owner)
            wait_for_owner(transport, owner)
            endpoint.close()
            ended.set()
        else:
            ended.wait(300)
            transport.post_receive(data.data, 0, 2 * LANE, owner)
            endpoint.end(endpoint.connections.get(0, 1), ClosedError())  # as if its end came first
            wait_for_owner(transport, owner)
        return set(data.tolist())

    with endpoints(2, hosts="ab") as made:
        assert together(made, call) == [{0}, {0}]


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_connection_that_broke_before_a_message_was_awaited_is_a_failure(waiting: int) -> None:
    broken, noticed = threading.Event(), threading.Event()

    def call(comm: TcpCommunicator) -> Any:
        exchange_over_connections(comm)
        transport, owner, endpoint = TcpTransport[Owner](comm.Dup()), Owner(), comm.endpoint
        if comm.rank != waiting:
            file: Any = endpoint.connections.get(waiting, 2).link
            file.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            file.close()
            broken.set()
            noticed.wait(300)
            return "ended"
        broken.wait(300)
        assert endpoint.poll(60)
        try:
            transport.post_receive(memoryview(bytearray(1)), 1 - waiting, 0, owner)
            return transport.wait_some(5)
        finally:
            noticed.set()

    with endpoints(2, hosts="ab") as made:
        results = together(made, call)
    assert f"rank {1 - waiting} is lost: " in results[waiting], results


def test_what_is_still_to_be_sent_is_kept_once_messages_are_given_up() -> None:
    changed = threading.Event()

    def call(comm: TcpCommunicator) -> Any:
        messages, data = Messages(comm), np.ones(64 * LONG, np.uint8)
        if comm.rank == 0:
            messages.send(data, 1, 5)
            comm.endpoint.give_up()
            data[:] = 2
            changed.set()
        else:
            changed.wait(300)
            messages.receive(data, 0, 5)
        messages.Wait()
        return set(data.tolist())

    with endpoints(2) as made:
        assert together(made, call) == [{2}, {1}]


def test_memory_is_read_only_where_the_digest_of_the_rank_is() -> None:
    own = OwnMemory(make_secret(SECRET), 3)
    assert PeerMemory(own.offer).is_readable(own.digest(3))
    assert not PeerMemory(own.offer).is_readable(own.digest(2))
    assert not PeerMemory(own.offer).is_readable(OwnMemory(make_secret("another"), 3).digest(3))
    assert not PeerMemory(own.offer + 1).is_readable(own.digest(3))
    assert not PeerMemory(own.offer | 1 << 63).is_readable(own.digest(3))  # there is no such process
    own.revoke()
    assert not PeerMemory(own.offer).is_readable(own.digest(3))


def test_memory_that_a_peer_revoked_and_freed_is_no_fault_of_the_peer() -> None:
    own, pages, target = OwnMemory(make_secret(SECRET), 3), mmap.mmap(-1, 1 << 20), memoryview(bytearray(1 << 20))
    peer, address = PeerMemory(own.offer), address_of(pages)
    peer.copy(address, target)
    pages.close()
    with pytest.raises(OSError, match="Bad address"):  # it has no reason to free what it has lent
        peer.copy(address, target)
    own.revoke()
    with pytest.raises(RevokedMemoryError):
        peer.copy(address, target)


def exchange_over_connections(comm: TcpCommunicator) -> Any:
    """Send 40 messages over four connections; return the received numbers and that of the connections."""
    transport, owner = TcpTransport[Owner](comm.Dup()), Owner()
    sent = [np.full(LONG, number, np.uint8) for number in range(40)]
    received = [np.zeros(LONG, np.uint8) for _ in sent]
    for number, part in enumerate(sent):
        transport.post_send(part.data, 1 - comm.rank, number % 2 + number % 4 * LANE, owner)
    for number, part in enumerate(received):
        transport.post_receive(part.data, 1 - comm.rank, number % 2 + number % 4 * LANE, owner)
    wait_for_owner(transport, owner)
    comm.Barrier()
    return [set(part.tolist()) for part in received], len(comm.endpoint.connections.all())


def test_messages_take_several_connections_to_another_host_and_keep_their_order() -> None:
    numbers = [{number} for number in range(40)]
    for hosts, connections in (("hh", 1), ("ab", 4)):
        with endpoints(2, hosts=hosts) as made:
            assert together(made, exchange_over_connections) == [(numbers, connections)] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_a_lost_rank_is_named_over_a_further_connection(first: int) -> None:
    def call(comm: TcpCommunicator) -> Any:
        comm.Barrier()
        transport, owner = TcpTransport[Owner](comm.Dup()), Owner()
        if comm.rank == first:
            comm.endpoint.close()
            return "ended"
        data = np.ones(64 * LONG, np.uint8)
        transport.post_send(data.data, first, 3 * LANE, owner)
        wait_for_owner(transport, owner)
        return "complete"

    with endpoints(2, hosts="ab") as made:
        results = together(made, call)
    assert results[1 - first].endswith(f"rank {first} is lost: it has ended"), results


def test_a_rank_is_woken_up_once_a_long_message_is_complete() -> None:
    size, early = 60_000, 10_000
    buffer, complete, owner, loop = bytearray(size), list[Any](), Owner(), Loop()
    connection = PeerConnection(1, Mailbox(1), OwnMemory(make_secret(SECRET), 0), {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        connection.connect(server.accept()[0])
    connection.join(loop, connection.move)
    connection.post_receive(1, 1, Completion(owner, complete, memoryview(buffer)))
    encoder, data = Encoder(Checksums(), KINDS), bytes(range(250)) * (size // 250)
    sender.sendall(b"".join([*encoder.encode(MESSAGE, ENVELOPE.pack(1, 1, size)), data[:early]]))
    while not connection._incoming or connection._incoming.at < early:  # noqa: SLF001
        assert loop.wait(300)
    sender.sendall(data[early:-1])
    assert not loop.wait(0.05)
    sender.sendall(data[-1:])
    assert loop.wait(300)
    assert (complete, bytes(buffer)) == ([owner], data)
    sender.sendall(encoder.encode(MESSAGE, ENVELOPE.pack(1, 2, 0))[0])
    assert loop.wait(300)
    sender.close()
    connection.close()
    loop.close()
