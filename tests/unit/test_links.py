"""The links to agents, with sh in place of ssh: programs and jobs that follow each other, lost hosts, and the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ddlrun.agent import protocol
from ddlrun.agent.children import Children
from ddlrun.agent.job import Job
from ddlrun.agent.protocol import AgentTree, LostHost, ProgramEnd, ProgramOutput, ProgramRequest
from ddlrun.keeper.protocol import VERSION
from ddlrun.managers.own import START
from ddlrun.remote.agent_links import idle_seconds
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.tasks import TaskReply
from ddlrun.wire.authentication import SHA256
from ddlrun.wire.frames import Checksums, Encoder
from ddlrun.wire.loop import Loop
from tests.support.agent_job import job_environ, start_job
from tests.support.processes import mark, running
from tests.support.waiting import PATIENCE, wait_until

SHELL = "#!/bin/sh\necho Welcome to $1\n{before}\nexec env -i PATH=$PATH HOME=/ sh -s\n"


class Links:
    """Links as ddlrun has them, and what has arrived over them."""

    def __init__(self, folder: Path, before: str, fan_out: int, script: str = START) -> None:
        """Begin with a launcher that runs some lines of sh first."""
        self.folder = folder
        launcher = folder / "shell"
        launcher.write_text(SHELL.format(before=before))
        launcher.chmod(0o755)
        self.tree = AgentTree(
            launcher=[str(launcher), "@host"], python=sys.executable, script=script, fan_out=fan_out, run="20261127-me"
        )
        self.loop = Loop()
        self.children = Children(self.loop, self._on_message, VERSION)
        self.active: Job | None = None
        self.reports: list[tuple[bytes, bytes]] = []
        self.outputs: dict[tuple[str, int, int], bytes] = {}
        self.noise: dict[str, bytes] = {}
        self.ends: dict[tuple[str, int], int | None] = {}
        self.lost: list[LostHost] = []

    def _on_message(self, kind: bytes, text: bytes) -> None:
        if kind == protocol.OUTPUT:
            output = ProgramOutput.parse(text)
            if output.number == protocol.LOGIN:
                self.noise[output.host] = output.data
            else:
                key = output.host, output.number, output.stream
                self.outputs[key] = self.outputs.get(key, b"") + output.data
        elif kind == protocol.ENDED:
            end = ProgramEnd.parse(text)
            self.ends[end.host, end.number] = end.code
        else:
            if kind == protocol.LOST:
                self.lost.append(LostHost.parse(text))
            if self.active is not None:
                self.active.report(kind, text)

    def wait(self, condition: Callable[[], object]) -> None:
        """Drive the loop until a condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, (self.ends, self.lost)
            self.loop.wait(0.05)

    def run(self, script: str, *hosts: str, number: int = 1, seconds: float = 0, module: str = "") -> None:
        """Start a program."""
        request = ProgramRequest(number=number, seconds=seconds, hosts=hosts, script=script.encode(), module=module)
        self.children.run(request)

    def result(self, script: str, host: str, number: int) -> tuple[int | None, bytes]:
        """Run a program on a host; return its exit code and its standard output."""
        self.run(script, host, number=number)
        self.wait(lambda: (host, number) in self.ends)
        return self.ends[host, number], self.outputs.get((host, number, 1), b"")

    @contextmanager
    def job(self, script: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a job on three hosts; provide the agent of this host, which has no ranks."""
        self.active = Job(self.loop, self.children)
        self.active.on_report = lambda *report: self.reports.append(report)
        environ = {**job_environ("1x3"), **variables}
        agent = start_job(self.active, ["sh", "-c", script], ["one", "two", "three"], environ)
        try:
            yield agent
        finally:
            agent.kill()
            agent.wait()
        self.active.close()
        self.wait(lambda: self.children.over)


@contextmanager
def linked(folder: Path, before: str = "", fan_out: int = 1, script: str = START) -> Iterator[Links]:
    """Provide links to hosts one, two and three: each leads to the next one, unless the first agents start more."""
    links = Links(folder, before, fan_out, script)
    with opened(links, "one", "two", "three"):
        yield links


@contextmanager
def opened(links: Links, *hosts: str) -> Iterator[None]:
    """Provide links to hosts. Nothing is left of them at the end."""
    links.children.open(links.tree, hosts)
    try:
        yield
    finally:
        links.children.dismiss(links.loop.wait)
        links.loop.close()
        left = [process for process in psutil.Process().children() if process.status() != psutil.STATUS_ZOMBIE]
        assert [process.cmdline() for process in left if str(links.folder) in " ".join(process.cmdline())] == []


@pytest.mark.parametrize("fan_out", [1, 2, 3])
def test_a_program_runs_on_the_hosts_that_are_named(tmp_path: Path, fan_out: int) -> None:
    with linked(tmp_path, fan_out=fan_out) as links:
        links.run("echo out $PWD $(env | grep -c ^DDLRUN_); echo err >&2; exit 7", "one", "three")
        links.wait(lambda: (len(links.ends), len(links.noise)) == (2, 3))
    assert links.ends == {("one", 1): 7, ("three", 1): 7}
    expected = f"out {os.getcwd()} 0\n".encode(), b"err\n"
    assert links.outputs == {(host, 1, at): expected[at - 1] for host in ("one", "three") for at in (1, 2)}
    assert links.noise == {host: f"Welcome to {host}\n".encode() for host in ("one", "two", "three")}


def test_long_output_and_input_arrive(tmp_path: Path) -> None:
    size = 12_000_000
    with linked(tmp_path) as links:
        links.run(f"{{\nhead -c {size} /dev/zero\nexit\n}}\n{'#' * 3_000_000}", "three")
        links.wait(lambda: links.ends)
    assert (links.ends, links.outputs) == ({("three", 1): 0}, {("three", 1, 1): bytes(size)})


def test_a_program_waits_while_nobody_reads_its_output(tmp_path: Path) -> None:
    file = tmp_path / "written"
    with linked(tmp_path) as links:
        links.run(f"while head -c 65536 /dev/zero; do echo >>{file}; done", "three")
        links.wait(file.exists)
        sizes = [0]

        def stands() -> bool:
            sizes.append(file.stat().st_size)
            return len(sizes) > 10 and len({*sizes[-10:]}) == 1

        wait_until(stands)
        written = sizes[-1]
        links.wait(lambda: file.stat().st_size > written)
        links.children.stop(1)
        links.wait(lambda: links.ends)
    assert links.ends == {("three", 1): 128 + signal.SIGTERM}


def test_a_program_ends_with_its_time_and_its_process_group(tmp_path: Path) -> None:
    seconds = mark()
    with linked(tmp_path) as links:
        links.run(f"sleep {seconds} & sleep {seconds}", "two", seconds=0.1)
        links.wait(lambda: links.ends)
        assert links.ends == {("two", 1): None}
        wait_until(lambda: not running(seconds))  # each dies some time after its SIGKILL
        links.run(f"trap '' TERM; sleep {seconds} & echo; wait", "two", number=2)
        links.wait(lambda: links.outputs)
        links.children.stop(2)
        links.wait(lambda: len(links.ends) == 2)
        assert links.ends["two", 2] == 128 + signal.SIGKILL
        wait_until(lambda: not running(seconds))


# An agent that reports the end of program 1 after two messages that keep it.
KEPT = """
import os, sys
from ddlrun.agent import protocol
from ddlrun.wire.frames import Checksums, Decoder, Encoder
left = int(sys.argv[1])
while left:
    left -= len(os.read(0, left))
print("@ddlrun-agent {version}", flush=True)
decoder, keeps = Decoder(Checksums(), protocol.TO_AGENT), 0
while keeps < 2:
    keeps += [kind for kind, _ in decoder.feed(os.read(0, 1 << 16))].count(protocol.KEEP)
end = protocol.ProgramEnd(host="one", number=1, code=keeps)
os.write(1, b"".join(Encoder(Checksums(), protocol.FROM_AGENT).encode(protocol.ENDED, end.pack())))
os.read(0, 1)
"""


def test_agents_get_messages_that_keep_them(tmp_path: Path) -> None:
    links = Links(tmp_path, "", 1)
    launcher = [sys.executable, "-c", KEPT.format(version=VERSION), "@bytes"]
    tree = AgentTree(launcher=launcher, python="", script="", fan_out=1, run="", idle=0.6)
    links.children.open(tree, ["one"])
    links.run("", "one")
    links.wait(lambda: links.ends)
    links.children.dismiss(links.loop.wait)
    links.loop.close()
    assert links.ends == {("one", 1): 2}


@pytest.mark.parametrize(("heartbeat", "seconds"), [(None, 120), (0, 86400), (1, 10), (30, 120), (300, 1200)])
def test_agents_without_work_end_after_some_heartbeats(heartbeat: float | None, seconds: float) -> None:
    assert idle_seconds(heartbeat) == seconds


PEER = "ddlrun.preflight.peer"


def peer_task(seconds: float, **to: str) -> str:
    """Return the task of a host, on a port of its own, that connects to others, which do not listen."""
    return json.dumps({
        "own": "a", "bind": "127.0.0.1", "to": to, "ports": [0], "secret": f"{SHA256}:{'5e' * 32}", "seconds": seconds,
    })  # fmt: skip


@pytest.mark.parametrize("script", [START, "/no/such/script"], ids=["installed", "archive"])
def test_a_task_runs_in_a_fork_of_the_agent(tmp_path: Path, script: str) -> None:
    with linked(tmp_path, fan_out=2, script=script) as links:
        links.run(peer_task(60), "one", "three", module=PEER)
        links.wait(lambda: len(links.ends) == 2)
    assert links.ends == {("one", 1): 0, ("three", 1): 0}
    for host in ("one", "three"):
        reply = TaskReply.read(FinishedProcess(0, links.outputs.pop((host, 1, 1)).decode(), ""))
        assert (reply.value["listening"], reply.value["reached"]) == (True, {})
    assert links.outputs == {}


@pytest.mark.parametrize(
    ("module", "text", "error"),
    [
        (PEER, "{}", "KeyError: 'seconds'"),
        (PEER, "{", "ValueError: '{' is not JSON"),
        ("os", "{}", "ValueError: 'os' is not a module of a task"),
        ("ddlrun.preflight.no", "{}", "ValueError: 'ddlrun.preflight.no' is not a module of a task"),
    ],
)
def test_a_task_that_fails_shows_why(tmp_path: Path, module: str, text: str, error: str) -> None:
    with linked(tmp_path) as links:
        links.run(text, "two", module=module)
        links.wait(lambda: links.ends)
        assert links.result("echo fine", "two", 2) == (0, b"fine\n")
    assert links.ends["two", 1] == 1
    assert error in links.outputs["two", 1, 2].decode().splitlines()[-1]


def test_a_task_ends_with_its_time_and_is_stopped(tmp_path: Path) -> None:
    with linked(tmp_path, fan_out=3) as links:
        agent = psutil.Process(int(links.result("echo $PPID", "two", 1)[1]))
        links.run(peer_task(300, b="127.0.0.2"), "two", number=2, seconds=0.1, module=PEER)
        links.wait(lambda: ("two", 2) in links.ends)
        links.run(peer_task(300, b="127.0.0.2"), "two", number=3, module=PEER)
        links.wait(agent.children)
        links.children.stop(3)
        links.wait(lambda: ("two", 3) in links.ends)
        assert (links.ends["two", 2], links.ends["two", 3]) == (None, 128 + signal.SIGTERM)
        links.run(peer_task(300, b="127.0.0.2"), "two", number=4, module=PEER)
        links.wait(agent.children)
        (task,) = agent.children()
    task.wait(PATIENCE)


def test_programs_end_with_the_links(tmp_path: Path) -> None:
    seconds = mark()
    with linked(tmp_path) as links:
        links.run(f"exec sleep {seconds}", "one", "two", "three")
        links.wait(lambda: len(running(seconds)) == 3)
    wait_until(lambda: not running(seconds))


def test_a_lost_host_answers_each_program_with_its_reason(tmp_path: Path) -> None:
    refuse = "[ $1 = two ] && { echo warning >&2; echo 'port 22: Connection refused' >&2; exit 255; }"
    with linked(tmp_path, before=refuse) as links:
        links.run("echo $0", "one", "three")
        links.wait(lambda: links.ends and links.lost)
        links.run("true", "two", number=2)
        links.wait(lambda: len(links.lost) == 2)
        lost = links.lost[0]
        assert (lost, lost.name, lost.below, lost.code) == (links.lost[1], "two", ["three"], 255)
        assert lost.reason == "its agent did not start (shell on one: exit code 255)"
        assert lost.errors == "warning\nport 22: Connection refused\n"
        links.children.open(links.tree, ["three"])
        assert links.result("echo again", "three", 3) == (0, b"again\n")


def test_a_login_that_prints_without_end_is_the_reason(tmp_path: Path) -> None:
    with linked(tmp_path, before="[ $1 = two ] && exec yes", fan_out=2) as links:
        links.run("echo $0", "one", "two")
        links.wait(lambda: links.ends and links.lost)
        assert [(lost.name, lost.errors) for lost in links.lost] == [("two", "its reply is too long")]


@pytest.mark.parametrize(("run", "shown"), [("20261127-me", "a banner\na banner of two\n"), ("", "")])
def test_what_logins_write_to_standard_error_is_shown_in_a_launch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], run: str, shown: str
) -> None:
    links = Links(tmp_path, "[ $1 = one ] && echo a banner >&2 || echo a banner of $1 >&2", 1)
    links.tree = AgentTree(**{**vars(links.tree), "run": run})
    with opened(links, "one", "two"):
        assert links.result("echo up", "two", 1) == (0, b"up\n")
    assert capfd.readouterr().err == shown


@pytest.mark.parametrize("at_once", [False, True])
def test_a_launcher_may_end_by_itself_unless_it_is_to_end_at_once(tmp_path: Path, *, at_once: bool) -> None:
    reached = list[set[str]]()
    with linked(tmp_path, fan_out=3) as links:
        links.run("true", "one", "two", "three")
        links.wait(lambda: len(links.ends) == 3)

        def wait(seconds: float) -> None:
            reached.append(links.children.names)
            links.loop.wait(seconds)

        links.children.dismiss(wait, at_once=at_once)
    assert reached[0] == (set() if at_once else {"one", "two", "three"})


def test_a_missing_launcher_is_the_reason() -> None:
    loop, lost = Loop(), list[LostHost]()
    children = Children(loop, lambda _kind, text: lost.append(LostHost.parse(text)), VERSION)
    children.open(AgentTree(launcher=["no-such-ssh", "@host"], python="", script="", fan_out=1, run=""), ["one"])
    children.run(ProgramRequest(number=1, seconds=0, hosts=["one"], script=b""))
    loop.wait()
    children.dismiss(loop.wait)
    loop.close()
    assert [(host.name, host.code, host.errors) for host in lost] == [("one", 127, "no-such-ssh: not on PATH\n")]


def test_the_leader_of_the_programs_that_lead_to_hosts_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with linked(tmp_path) as links:
        agent = psutil.Process(int(links.result("echo $PPID", "one", 1)[1]))
        links.result("true", "three", 2)
        (leader,) = (child for child in agent.children() if os.getpgid(child.pid) == child.pid)
        leader.kill()
        wait_until(lambda: not leader.is_running())
        assert links.result("echo up", "three", 3) == (0, b"up\n")
    assert (links.lost, capfd.readouterr().err) == ([], "")


def test_nothing_is_left_of_an_agent_that_is_replaced(tmp_path: Path) -> None:
    before = psutil.Process().children()
    other = f"if mkdir {tmp_path}/other 2>/dev/null; then echo '@ddlrun-agent 0.1.0'; exec cat; fi"
    with linked(tmp_path, before=other) as links:
        assert links.result("echo up", "one", 1) == (0, b"up\n")
        made = [child for child in psutil.Process().children() if child not in before]
        assert [child.status() for child in made if child.status() == psutil.STATUS_ZOMBIE] == []


def test_a_dropped_host_is_lost_at_once_and_linked_again(tmp_path: Path) -> None:
    with linked(tmp_path, fan_out=3) as links:
        agent = int(links.result("echo $PPID", "two", 1)[1])
        os.kill(agent, signal.SIGSTOP)
        links.run("true", "two", number=2)
        links.children.drop(["two"])
        assert links.children.names == {"one", "three"}
        links.wait(lambda: links.lost)
        links.children.open(links.tree, ["two"])
        assert links.result("echo $PPID", "two", 3)[0] == 0
    assert [(host.name, host.reason) for host in links.lost] == [
        ("two", "the connection to its agent ended (shell: signal 9)")
    ]


def test_jobs_follow_each_other_on_the_same_agents(tmp_path: Path) -> None:
    report = f"echo $DDLRUN_RANK $FIRST $SECOND $PWD >>{tmp_path}/ranks"
    with linked(tmp_path) as links:
        before = links.result("echo $PPID", "three", 1)
        for number, (code, variables) in enumerate([(0, {"FIRST": "1"}), (5, {"SECOND": "2"})], 2):
            with links.job(f"{report}; exit {code}", **variables) as agent:
                links.wait(lambda agent=agent: agent.poll() is not None)  # type: ignore[misc]
            assert agent.returncode == code
            failed = [protocol.ExitedRank.parse(text).code for _, text in links.reports]
            assert set(failed) == ({code} if code else set())
            assert links.result("echo $PPID $FIRST $SECOND $PWD", "three", number)[1].split() == [
                before[1].strip(), os.getcwd().encode(),
            ]  # fmt: skip
    rows = sorted((tmp_path / "ranks").read_text().splitlines())
    assert set(rows) >= {f"{rank} 1 {os.getcwd()}" for rank in range(3)}
    assert len([row for row in rows if " 2 " in row]) >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_a_root_ends_its_job_alone(tmp_path: Path, number: int) -> None:
    seconds = mark()
    with linked(tmp_path) as links:
        with links.job(f"exec sleep {seconds}") as agent:
            links.wait(lambda: len(running(seconds)) == 3)
            agent.send_signal(number)
            links.wait(lambda: agent.poll() is not None)
        assert running(seconds) == []
        assert links.result("echo up", "three", 1) == (0, b"up\n")


def test_a_host_that_is_lost_during_a_job_ends_the_job(tmp_path: Path) -> None:
    with linked(tmp_path) as links:
        third = int(links.result("echo $PPID", "three", 1)[1])
        with links.job(f"[ $DDLRUN_RANK = 2 ] && touch {tmp_path}/up; exec sleep 300") as agent:
            links.wait((tmp_path / "up").exists)
            os.kill(third, signal.SIGKILL)
            links.wait(lambda: agent.poll() is not None)
        assert (agent.returncode, [host.name for host in links.lost]) == (3, ["three"])
        assert links.result("echo up", "two", 2) == (0, b"up\n")


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        (protocol.PMI, protocol.pack_words([b"7", b"key value\n"]), 0),
        (protocol.LOST, LostHost(name="two", reason="gone", errors="\udcff").pack(), 3),
        (protocol.EXITED, protocol.ExitedRank(rank=0, code=10**20).pack(), 255),
        (protocol.EXITED, protocol.ExitedRank(rank=0, code=-(10**20)).pack(), 255),
    ],
    ids=["host", "text", "code", "signal"],
)
def test_what_an_agent_would_not_say_does_no_harm(tmp_path: Path, kind: bytes, text: bytes, code: int) -> None:
    with linked(tmp_path) as links, links.job(f"until [ -e {tmp_path}/go ]; do sleep 0.01; done") as agent:
        assert links.active is not None
        for _ in range(4):
            links.active.report(kind, text)
        (tmp_path / "go").touch()
        links.wait(lambda: agent.poll() is not None)
        assert agent.returncode == code


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (protocol.OUTPUT, b""),
        (protocol.OUTPUT, b"\0\0\0\3two"),
        (protocol.OUTPUT, b"\0\0\0\4four\0\0\0\0031 1\0\0\0\4text"),
        (protocol.EXITED, b""),
        (protocol.UNFINISHED, b"two"),
        (protocol.PMI, b""),
    ],
)
def test_an_agent_speaks_for_its_own_hosts_alone(tmp_path: Path, kind: bytes, message: bytes) -> None:
    frame = b"".join(Encoder(Checksums(), protocol.FROM_AGENT).encode(kind, message))
    text = "".join(f"\\{byte:03o}" for byte in frame)
    liar = f"[ $1 != two ] || {{ echo '@ddlrun-agent {VERSION}'; printf '{text}'; exec sleep 300; }}"
    with linked(tmp_path, before=liar) as links:
        links.run("true", "one", "two")
        links.wait(lambda: links.ends and links.lost)
        assert (links.ends, links.outputs, links.lost[0].name) == ({("one", 1): 0}, {}, "two")
        assert links.lost[0].reason == "a message of its agent, or to it, was altered on the way (shell on one)"
