"""The clients of other hosts, such as ssh: their start, and the script that they run there."""

from __future__ import annotations

import os

from ddlrun.agent.archive import BOOTSTRAP
from ddlrun.agent.local_ranks import fork
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.protocol import AGENT_RUN
from ddlrun.keeper.signals import IGNORED
from ddlrun.wire.pipes import PipeConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.agent.protocol import AgentTree

GREETING = b"@ddlrun-agent "
"""The beginning of the line by which an agent reports that it runs: its version, or WANTED."""
WANTED = b"archive"
"""The greeting of a host without ddlrun, which waits for the archive of the agent's modules."""
SHELL = b"shell"
"""The greeting of the shell that becomes the agent."""
# The bytes of what a login has printed that are reported.
MOST_NOISE = 4096


class ClientGroup:
    """A process group that gets SIGTERM when this process ends, even if it is killed.

    Where the network is cut, the programs would not notice that for minutes. The leader of the group waits for the end
    of a pipe that only this process holds. A program does not arrange that itself, by prctl(2) after a fork: to fork
    Python takes 2 ms more for each program than posix_spawn.
    """

    def __init__(self) -> None:
        """Start the leader."""
        end, self._held = os.pipe()

        def lead() -> None:
            os.setpgid(0, 0)
            os.read(end, 1)
            os.kill(0, signal.SIGTERM)

        self.leader = fork(lead, end)
        os.setpgid(self.leader, self.leader)
        os.close(end)

    def start(self, words: list[str]) -> tuple[int, PipeConnection, int]:
        """Start a program; return its process id, the pipes of its standard input and output, and that of its errors.

        Raises OSError.
        """
        pipes = [os.pipe() for _ in range(3)]
        (stdin, held), *outputs = pipes
        ends = [stdin, *(end for _, end in outputs)]
        files = [(os.POSIX_SPAWN_DUP2, end, fd) for fd, end in enumerate(ends)]
        try:
            pid = os.posix_spawnp(
                words[0], words, os.environ, file_actions=files, setpgroup=self.leader, setsigdef=IGNORED
            )
        except OSError:
            for fd in (held, *(fd for fd, _ in outputs)):
                os.close(fd)
            raise
        finally:
            for fd in ends:
                os.close(fd)
        return pid, PipeConnection(outputs[0][0], held), outputs[1][0]

    def close(self) -> None:
        """End the leader, and all programs of the group that are left."""
        self.release()
        os.killpg(self.leader, signal.SIGTERM)
        os.killpg(self.leader, signal.SIGCONT)  # it may have been stopped
        os.waitpid(self.leader, 0)

    def release(self) -> None:
        """Leave the programs to themselves, after the leader was killed."""
        os.close(self._held)


def agent_script(tree: AgentTree, *, ship: bool) -> str:
    """Return the sh script that becomes the agent: that of the host's ddlrun, or one that waits for the archive."""
    python, script = _quote(tree.python), _quote(tree.script)
    installed = "" if ship else f'[ ! -r {script} ] || exec "$python" -I -S -X utf8 {script} --agent\n'
    return (  # the braces make sh parse all of it before it runs any
        f'{{\necho "@ddlrun-agent shell"\npython={python}; [ -x "$python" ] || python=python3\n'
        f"{AGENT_RUN}={_quote(tree.run)}; export {AGENT_RUN}\n"
        f'{installed}exec "$python" -I -S -X utf8 -c {_quote(BOOTSTRAP)} {script} --agent\n}}\n'
    )


def take_greeting(printed: bytearray, noise: bytearray) -> bytes | None:
    """Remove all lines up to the first one with a greeting; return that, None if it has not arrived.

    What a login shell prints before it is added to `noise`.
    """
    at = printed.find(GREETING)
    end = printed.find(b"\n", at) if at >= 0 else -1
    before = at if end >= 0 else printed.rfind(b"\n") + 1
    greeting = bytes(printed[at + len(GREETING) : end]) if end >= 0 else None
    noise += printed[:before]
    del noise[MOST_NOISE:]
    del printed[: end + 1 or before]
    return greeting


def _quote(word: str) -> str:
    """Return a word as sh reads it; shlex takes 5 ms to import."""
    return "'" + word.replace("'", "'\\''") + "'"
