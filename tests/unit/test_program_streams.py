"""Output of a program whose ddlrun reads slowly or is lost, without a job: a pipe and a socket."""

import os
import socket
from collections.abc import Iterator

import pytest

from ddlrun.keeper import protocol
from ddlrun.keeper.connection import LauncherConnection
from ddlrun.keeper.program_streams import OutputPipe
from ddlrun.wire.frames import Agreement, Checksums, Decoder
from ddlrun.wire.loop import Loop


class Flow:
    """A program's end of a pipe, the task that reads the pipe, and ddlrun's end of the connection."""

    def __init__(self) -> None:
        reading, self.program = os.pipe()
        os.set_blocking(self.program, False)
        ours, self.launcher = socket.socketpair()
        agreement = Agreement(b"", Checksums(), Checksums())
        self.connection = LauncherConnection(ours, agreement, heartbeat=0.0, program_secret="")
        self.connection.on_loss = self._on_loss
        self.output = OutputPipe(reading, protocol.OUT)
        self.loop = Loop()
        self.connection.run_in(self.loop, lambda *_: None)
        self.output.begin(self.loop, self.connection)

    def _on_loss(self, _reason: str) -> None:
        self.output.go_on()

    def fill(self) -> int:
        """Write until the pipe and the connection take nothing more; return the number of bytes."""
        written = 0
        while True:
            try:
                written += os.write(self.program, b"x" * 10_000)
            except BlockingIOError:
                if not self.loop.wait(0):
                    return written


@pytest.fixture
def flow() -> Iterator[Flow]:
    made = Flow()
    yield made
    made.loop.close()
    made.output.close()
    made.connection.close()
    made.launcher.close()


def test_a_reader_that_is_slow_stops_the_program_and_loses_nothing(flow: Flow) -> None:
    written = flow.fill()
    assert 0 < flow.connection.unsent < 1 << 17
    os.close(flow.program)
    decoder, received = Decoder(Checksums(), protocol.FROM_KEEPER), 0
    while received < written:
        received += sum(len(text) for _, text in decoder.feed(flow.launcher.recv(1 << 16)))
        flow.loop.wait(0)
    assert (received, flow.output.tail) == (written, b"x" * len(flow.output.tail))


def test_a_program_whose_ddlrun_is_lost_can_go_on_writing(flow: Flow) -> None:
    flow.fill()
    flow.launcher.close()
    while flow.connection.open:
        flow.loop.wait()
    written = 0
    while written < 1 << 20:
        flow.loop.wait()  # the pipe holds something
        written += os.write(flow.program, b"x" * 4096)
    os.close(flow.program)
