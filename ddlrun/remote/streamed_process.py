"""A command whose output is passed on, in the calling thread, while it runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO

from ddlrun.errors import EXIT_TERMINATED
from ddlrun.keeper.forks import PR_SET_PDEATHSIG, load_prctl
from ddlrun.wire.loop import READ, Loop

CHUNK = 1 << 16
Sink = Callable[[bytes], None]


def stream_command(argv: Sequence[str], environ: Mapping[str, str], sinks: tuple[Sink, Sink, Sink]) -> int:
    """Run a command to its end, without standard input, and return its exit code.

    The command has a session of its own, so that it gets signals from here alone. A KeyboardInterrupt becomes its
    SIGINT, and is raised when the command has ended. Any other exception ends it by SIGTERM.

    Args:
        argv: The command. It gets one more argument: the number of a descriptor for its answer.
        environ: Its environment.
        sinks: Called with blocks of its standard output, its standard error and its answer; with an empty block at the
            end of each.
    """
    interrupt = None
    receiving, sending = os.pipe()
    with open(receiving, "rb", buffering=0) as answer, open(sending, "wb", buffering=0) as theirs, subprocess.Popen(  # noqa: S603 - argv lists, no shell
        [*argv, str(sending)], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, pass_fds=[sending],
    ) as process:  # fmt: skip
        theirs.close()
        streams = [stream for stream in (process.stdout, process.stderr, answer) if stream is not None]
        pipes = [*zip(streams, sinks, strict=True)]
        while True:
            try:
                _pass_on(pipes)
                code = process.wait()
                break
            except KeyboardInterrupt as error:
                interrupt = error
                process.send_signal(signal.SIGINT)
            except BaseException:
                process.terminate()
                raise  # the context closes the pipes and waits
    if interrupt is not None:
        raise interrupt
    return code


def _pass_on(pipes: Sequence[tuple[IO[bytes], Sink]]) -> None:
    """Pass on what a command writes until it has closed all pipes."""
    loop = Loop()

    def read(pipe: IO[bytes], sink: Sink, _events: int) -> None:
        data = os.read(pipe.fileno(), CHUNK)
        sink(data)
        if not data:
            loop.forget(pipe.fileno())
            pipe.close()

    try:
        for pipe, sink in pipes:
            if not pipe.closed:
                loop.watch(pipe.fileno(), READ, partial(read, pipe, sink))
        while not all(pipe.closed for pipe, _ in pipes):
            loop.wait()
    finally:
        loop.close()


def depend_on(parent: int) -> None:
    """Let this process end by SIGTERM when its parent has ended, and by SIGINT even if the parent ignores its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    load_prctl()(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(EXIT_TERMINATED)
