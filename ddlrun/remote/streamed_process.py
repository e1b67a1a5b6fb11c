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
# The time that a program which outlives the command, such as an ssh, may hold its pipes open.
LAST_SECONDS = 1.0
Sink = Callable[[bytes], object]


def stream_command(
    argv: Sequence[str], environ: Mapping[str, str], sinks: Sequence[Sink], *, mute: bool = False
) -> int:
    """Run a command to its end, without standard input, and return its exit code.

    The command has a session of its own, so that it gets signals from here alone. A KeyboardInterrupt becomes its
    SIGINT, any other exception its SIGTERM; the last one is raised when the command has ended.

    Args:
        argv: The command. With three sinks it gets one more argument: the number of a descriptor for its answer.
        environ: Its environment.
        sinks: Called with blocks of its standard output, its standard error and its answer; with an empty block at the
            end of each.
        mute: Discard what it writes after an interrupt, as after other exceptions.
    """
    raised: BaseException | None = None
    muted = False
    receiving, sending = os.pipe()
    passed = [sending] if len(sinks) > 2 else []
    with closing(Loop()) as loop, open(receiving, "rb", buffering=0) as answer, subprocess.Popen(  # noqa: S603 - argv lists, no shell
        [*argv, *map(str, passed)], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True, pass_fds=passed,
    ) as process:  # fmt: skip
        os.close(sending)
        unread = [pipe for pipe in (process.stdout, process.stderr, answer)[: len(sinks)] if pipe is not None]

        def pass_on(pipe: IO[bytes], sink: Sink, _events: int) -> None:
            data = os.read(pipe.fileno(), CHUNK)
            if not data:
                loop.forget(pipe.fileno())
                unread.remove(pipe)
            if not muted:
                sink(data)

        for pipe, sink in zip(tuple(unread), sinks, strict=True):
            loop.watch(pipe.fileno(), READ, partial(pass_on, pipe, sink))
        while unread or process.poll() is None:
            try:
                if not unread:
                    process.wait()
                elif not loop.wait(LAST_SECONDS) and process.poll() is not None:
                    break
            except BaseException as error:  # noqa: BLE001 - it is raised later
                interrupted = isinstance(error, KeyboardInterrupt)
                raised, muted = error, mute or muted or not interrupted
                process.send_signal(signal.SIGINT if interrupted else signal.SIGTERM)
    if raised is not None:
        raise raised
    return process.returncode


def depend_on(parent: int) -> None:
    """Let this process end by SIGTERM when its parent has ended, and by SIGINT even if the parent ignores its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    load_prctl()(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(EXIT_TERMINATED)
