"""A command whose output is passed on, in the calling thread, while it runs."""

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from ddlrun.errors import EXIT_TERMINATED
from ddlrun.rank.prctl import PR_SET_PDEATHSIG, load_prctl

CHUNK = 1 << 16
Sink = Callable[[bytes], None]


def stream_command(argv: Sequence[str], environ: Mapping[str, str], sinks: tuple[Sink, Sink]) -> int:
    """Run a command to its end, without standard input, and return its exit code.

    The command has a session of its own, so that it gets signals from here alone. A KeyboardInterrupt becomes its
    SIGINT, and is raised when the command has ended. Any other exception ends it by SIGTERM.

    Args:
        argv: The command.
        environ: Its environment.
        sinks: Called with blocks of its standard output and of its standard error; with an empty block at the end.
    """
    interrupt = None
    with subprocess.Popen(  # noqa: S603 - argv lists, no shell
        argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        while True:
            try:
                _pass_on(process, sinks)
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


def _pass_on(process: subprocess.Popen[bytes], sinks: tuple[Sink, Sink]) -> None:
    """Pass on the output of a command until it has closed both pipes."""
    with selectors.DefaultSelector() as selector:
        for pipe, sink in zip((process.stdout, process.stderr), sinks, strict=True):
            if pipe is not None and not pipe.closed:
                selector.register(pipe, selectors.EVENT_READ, sink)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, CHUNK)
                key.data(data)
                if not data:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]  # a pipe of Popen


def depend_on(parent: int) -> None:
    """Let this process end by SIGTERM when its parent has ended, and by SIGINT even if the parent ignores its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    load_prctl()(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(EXIT_TERMINATED)
