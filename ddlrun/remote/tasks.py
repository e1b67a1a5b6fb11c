"""Tasks on hosts (see agent/tasks.py): on this machine in a thread, and in scripts where no agent runs."""

import binascii
import json
import re
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ddlrun.agent.archive import BASE, build_archive
from ddlrun.agent.tasks import MARK, TASKS, run_task
from ddlrun.remote.processes import FinishedProcess

# The modules that run a task.
RUNNER = ("agent/__init__.py", "agent/tasks.py", "agent/bare_json.py")
BOOTSTRAP = """
import base64, os, sys
if sys.version_info < (3, 8):
    sys.exit(print("@python", sys.version.split()[0]))
task, archive = sys.stdin.read().split("\\n")[:2]
file = os.memfd_create("ddlrun")
os.write(file, base64.b64decode(archive))
sys.path.insert(0, "/proc/self/fd/%d" % file)
from ddlrun.agent.tasks import print_result
print_result(sys.argv[1], task)
"""
# The exit code of a shell that finds no Python.
EXIT_NO_PYTHON = 127


class TaskReply(NamedTuple):
    """What has become of a task."""

    value: Any
    """Its result; None: there is none."""
    process: FinishedProcess
    """The end of its process."""

    @property
    def printed(self) -> str:
        """The text that the host's shell printed before the result."""
        return self.process.out.partition(MARK)[0]

    @property
    def other_python(self) -> str | None:
        """The version of the host's Python that cannot run a task; empty: it has none; None: that is no problem."""
        line = re.search(r"(?m)^@python ?(.*)$", self.process.out)
        return line[1] if line and self.value is None else None

    @classmethod
    def read(cls, process: FinishedProcess) -> "TaskReply":
        """Return the reply of a task from its output, in which any text of a host may come before the result."""
        line = next((line for line in process.out.splitlines() if line.startswith(MARK)), "")
        try:
            return cls(json.loads(line.removeprefix(MARK)), process)
        except (ValueError, RecursionError):
            return cls(None, process)


def start_task(module: str, task: Mapping[str, Any], seconds: float) -> Callable[[], TaskReply]:
    """Start a task on this machine, in a thread; return a function that waits for its end, up to some seconds."""
    replies: list[TaskReply] = []

    def work() -> None:
        try:
            replies.append(TaskReply(json.loads(run_task(module, json.dumps(task))), FinishedProcess(0, "", "")))
        except Exception as error:  # noqa: BLE001 - as in a process of its own
            replies.append(TaskReply(None, FinishedProcess(1, "", f"{type(error).__name__}: {error}")))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def finish() -> TaskReply:
        thread.join(seconds)
        return replies[0] if replies else TaskReply(None, FinishedProcess(None, "", ""))

    return finish


def as_scripts(texts: Mapping[str, str], module: str) -> Mapping[str, str]:
    """Return the scripts of hosts for sh, given scripts or, with a module, the JSON of tasks."""
    if not (module and texts):
        return texts
    archive = binascii.b2a_base64(build_archive((*BASE, *RUNNER, *TASKS[module])), newline=False).decode()
    return {host: _render_script(module, text, archive) for host, text in texts.items()}


def _render_script(module: str, text: str, archive: str) -> str:
    """Return a script that runs a task under this Python if the host has it, else under python3."""
    return (
        f"python={shlex.quote(sys.executable)}\n"
        '[ -x "$python" ] || python=python3\n'
        '"$python" -I -S -c "" 2>/dev/null || echo @python\n'
        f'exec "$python" -I -S -X utf8 -c {shlex.quote(BOOTSTRAP)} {module}'
        f" <<'@ddlrun'\n{text}\n{archive}\n@ddlrun\n"
    )
