"""Commands whose output is passed on while they run, and the exceptions that end them."""

import os
import signal
import sys
from pathlib import Path

import pytest

from ddlrun.remote.streamed_process import stream_command
from tests.support.processes import mark, running

# Prints a line per SIGINT, and ends at the second one.
OBEDIENT = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
for line in ("first", "second"):
    signal.sigwait({signal.SIGINT})
    print(line, flush=True)
"""


def test_output_and_exit_code() -> None:
    out, err, answer = bytearray(), bytearray(), bytearray()
    code = (
        "import os, sys; os.write(1, b'o' * 200_000); os.write(2, b'e'); print(os.environ['NAME']); "
        "os.write(int(sys.argv[1]), b'a' * 100_000); sys.exit(7)"
    )
    returned = stream_command(
        [sys.executable, "-c", code], {**os.environ, "NAME": "x"}, (out.extend, err.extend, answer.extend)
    )
    assert (returned, bytes(out), bytes(err), bytes(answer)) == (7, b"o" * 200_000 + b"x\n", b"e", b"a" * 100_000)


def test_each_interrupt_is_passed_on_and_raised_after_the_end() -> None:
    seen = bytearray()

    def interrupt(data: bytes) -> None:
        seen.extend(data)
        if data in (b"ready\n", b"first\n"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stream_command([sys.executable, "-c", OBEDIENT], os.environ, (interrupt, seen.extend, seen.extend))
    assert seen == b"ready\nfirst\nsecond\n"


def test_another_exception_ends_the_command(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    argv = ["sh", "-c", f"trap 'echo > {ended}; exit' TERM; echo ready; while :; do sleep 0.05; done"]

    def fail(_: bytes) -> None:
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        stream_command(argv, os.environ, (fail, fail, fail))
    assert ended.exists()


def test_after_another_exception_its_output_is_discarded() -> None:
    argv = ["sh", "-c", "trap 'echo late; exit' TERM; echo ready; while :; do sleep 0.05; done"]
    seen = bytearray()

    def fail(data: bytes) -> None:
        seen.extend(data)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        stream_command(argv, os.environ, (fail, fail))
    assert seen == b"ready\n"


def test_a_program_that_holds_its_pipes_is_not_waited_for() -> None:
    seconds = mark()
    try:
        assert stream_command(["sh", "-c", f"sleep {seconds} & exit 7"], os.environ, (len, len)) == 7
    finally:
        for pid in running(seconds):
            os.kill(pid, signal.SIGKILL)
