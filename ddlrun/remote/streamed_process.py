"""A command whose output is passed on, in the calling thread, while it runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
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
    with closing(Loop()) as loop, open(receiving, "rb", buffering=0) as answer, subprocess.Popen(  # noqa: S603 - argv lists, no shell
        [*argv, str(sending)], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, pass_fds=[sending],
    ) as process:  # fmt: skip
        os.close(sending)
        unread = [pipe for pipe in (process.stdout, process.stderr, answer) if pipe is not None]
        for pipe, sink in zip(tuple(unread), sinks, strict=True):
            loop.watch(pipe.fileno(), READ, partial(_pass_on, pipe, sink, loop, unread))
        while unread or process.poll() is None:
            try:
                if unread:
                    loop.wait()
                else:
                    process.wait()
            except KeyboardInterrupt as error:
                interrupt = error
                process.send_signal(signal.SIGINT)
            except BaseException:
                process.terminate()
                raise  # the context closes the pipes and waits
    if interrupt is not None:
        raise interrupt
    return process.returncode


def _pass_on(pipe: IO[bytes], sink: Sink, loop: Loop, unread: list[IO[bytes]], _events: int) -> None:
    """Pass on what a pipe holds; after its end, watch it no longer."""
    data = os.read(pipe.fileno(), CHUNK)
    if not data:
        loop.forget(pipe.fileno())
        unread.remove(pipe)
    sink(data)


def depend_on(parent: int) -> None:
    """Let this process end by SIGTERM when its parent has ended, and by SIGINT even if the parent ignores its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    load_prctl()(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(EXIT_TERMINATED)
