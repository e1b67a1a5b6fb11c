"""Scripts over links to hosts, with sh in place of ssh: replies, reasons, limits, and what an interrupt leaves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.links import HostLinks
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.tasks import EXIT_NO_PYTHON, TaskReply
from ddlrun.ship.server import MODULE
from tests.support.processes import mark, running
from tests.support.waiting import wait_until

SSH = """#!/bin/sh
for command; do :; done
for word; do
  case $word in h*) host=$word ;; esac
done
echo $host >>{folder}/connections
{before}
exec sh -c "$command"
"""
SRUN = """
while [ $1 != -w ]; do shift; done
[ $2 != h2 ] || {{ echo 'srun: error: h2 is down' >&2; exit 1; }}
echo $2 >>{folder}/connections
shift 2
exec "$@"
"""
REFUSED = "echo 'ssh: connect to host h9 port 22: Connection refused' >&2; exit 255"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on PATH for the stand-in of ssh."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    write_ssh(tmp_path)
    return tmp_path


def write_ssh(folder: Path, before: str = "") -> None:
    """Write an ssh that runs some lines, which know the $host, before it leads to this machine."""
    (folder / "ssh").write_text(SSH.format(folder=folder, before=before))
    (folder / "ssh").chmod(0o755)


@pytest.fixture
def links() -> Iterator[HostLinks]:
    with closing(HostLinks(AgentLauncher())) as made:
        yield made


def connections(folder: Path) -> list[str]:
    return sorted((folder / "connections").read_text().split())


def test_each_host_is_reached_once_for_all_scripts(folder: Path, links: HostLinks) -> None:
    long = f"words='{'ü ' * 100_000}'\necho ${{#words}}\n"
    replies = links.run({"h1": long, "h2": "cat <<'@end'\n100 %h $HOME\n@end"}, 300.0)
    assert int(replies["h1"].out) in (200_000, 300_000)
    assert replies["h2"] == FinishedProcess(0, "100 %h $HOME", "")
    again = links.run(dict.fromkeys(("h1", "h2", "h3"), "echo out; echo err >&2; kill -HUP $$"), 300.0)
    assert set(again.values()) == {FinishedProcess(128 + signal.SIGHUP, "out", "err")}
    assert connections(folder) == ["h1", "h2", "h3"]


@pytest.mark.parametrize("fan_out", [1, 2])
def test_hosts_are_reached_by_way_of_others(folder: Path, fan_out: int) -> None:
    scripts = {f"h{number}": f"echo {number}" for number in range(6)}
    with closing(HostLinks(AgentLauncher(), fan_out=fan_out)) as links:
        for _ in range(2):
            replies = links.run(scripts, 300.0)
            assert {name: reply.out for name, reply in replies.items()} == {name: name[1:] for name in scripts}
    assert connections(folder) == [*scripts]


@pytest.mark.parametrize("bad", ["h1", "h2", "h4"])
def test_hosts_behind_one_that_fails_are_reached_from_here(folder: Path, bad: str) -> None:
    write_ssh(folder, f"[ $host != {bad} ] || {{ {REFUSED}; }}")
    scripts = dict.fromkeys(("h1", "h2", "h3", "h4"), "echo fine")
    with closing(HostLinks(AgentLauncher(), fan_out=1)) as links:
        replies = links.run(scripts, 300.0)
    reason = FinishedProcess(255, "", "ssh: connect to host h9 port 22: Connection refused")
    assert replies == dict.fromkeys(scripts, FinishedProcess(0, "fine", "")) | {bad: reason}


CLEAN = json.dumps({"action": "clean", "folder": "/no/such/folder"})
REPORT = {"removed": 0, "left": 0, "stuck": []}


def test_tasks_share_the_links_of_scripts(folder: Path, links: HostLinks) -> None:
    for _ in range(2):
        tasks = links.run(dict.fromkeys(("h1", "h2"), CLEAN), 300.0, MODULE)
        assert [TaskReply.read(reply).value for reply in tasks.values()] == [REPORT] * 2
        assert links.run({"h1": "echo fine"}, 300.0)["h1"].out == "fine"
    assert connections(folder) == ["h1", "h2"]


@pytest.mark.skipif(not os.path.exists("/usr/share/i18n/locales/de_DE"), reason="no sources of locales")
def test_names_of_files_are_utf_8_in_any_locale(folder: Path, links: HostLinks) -> None:
    locale = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / "de_DE.ISO-8859-1")]
    subprocess.run(locale, check=True, stdout=subprocess.DEVNULL)
    write_ssh(folder, f"export LOCPATH={folder} LC_ALL=de_DE.ISO-8859-1")
    store = folder / "Läufe"
    (store / "objects" / "c0de").mkdir(parents=True)
    store.chmod(0o700)
    os.utime(store / "objects" / "c0de", (0, 0))
    task = {"action": "clean", "folder": str(store), "days": 1, "most_bytes": None}
    reply = links.run({"h1": json.dumps(task)}, 300.0, MODULE)["h1"]
    assert TaskReply.read(reply).value["removed"] == 1


def test_a_script_carries_a_task_where_no_agent_stays(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text('#!/bin/sh\nshift\nexec sh -c "$*" </dev/null\n')
    (tmp_path / "agent").chmod(0o755)
    with closing(HostLinks(AgentLauncher("agent", (str(tmp_path / "agent"),)))) as links:
        replies = links.run(dict.fromkeys(("h1", "h2"), CLEAN), 300.0, MODULE)
    assert [TaskReply.read(reply).value for reply in replies.values()] == [REPORT] * 2


def test_a_host_whose_agent_is_killed_is_tried_once_more(folder: Path, links: HostLinks) -> None:
    script = f"if mkdir {folder}/killed 2>/dev/null; then kill -9 $PPID; exec sleep 10; fi; echo fine"
    assert links.run({"h1": script}, 300.0)["h1"] == FinishedProcess(0, "fine", "")
    assert connections(folder) == ["h1", "h1"]


def test_a_host_without_python_runs_scripts_all_the_same(folder: Path, links: HostLinks) -> None:
    missing = "x" * len(sys.executable)
    script = 'while IFS= read -r line; do echo "$line"; [ "$line" != "}" ] || exit 0; done'
    hide = f"sed -u 's|{sys.executable}|{missing}|' | PATH={folder}/bin sh -c \"$command\"; exit"
    write_ssh(folder, f"[ $host != h1 ] || {{ ({script}) | {hide}; }}")
    (folder / "bin").mkdir()
    for name in ("sh", "head", "timeout"):
        (folder / "bin" / name).symlink_to(Path("/usr/bin", name))
    for _ in range(2):
        replies = links.run({"h1": "command -v python3 || echo fine", "h2": "echo fine"}, 300.0)
        assert [reply.out for reply in replies.values()] == ["fine"] * 2
    assert connections(folder) == ["h1", "h1", "h1", "h2"]
    without, other = map(TaskReply.read, links.run(dict.fromkeys(("h1", "h2"), CLEAN), 300.0, MODULE).values())
    assert (without.value, without.process.code, other.value) == (None, EXIT_NO_PYTHON, REPORT)


@pytest.mark.parametrize(
    ("sinfo", "squeue", "reason"),
    [("h2 down", "7 h[1-3]", "Slurm says: down"), ("h2 idle", "7 h[1,3]", "it is not in the Slurm job any more"),
     ("h2 idle", "8 h1", "srun: error: h2 is down")],
)  # fmt: skip
def test_agents_run_in_steps_of_slurm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sinfo: str, squeue: str, reason: str
) -> None:
    """The step has all that the job has, whatever part each of its tasks is to have."""
    for name, text in {
        "srun": SRUN.format(folder=folder),
        "sinfo": f"echo {sinfo}",
        "squeue": f"echo '{squeue}'",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("SLURM_GPUS", "4")
    with closing(HostLinks(AgentLauncher("srun", ("--jobid=7",)))) as links:
        for word in ("once", "again"):
            replies = links.run(dict.fromkeys(("h1", "h2", "h3"), f"echo {word} $SLURM_GPUS; exit 3"), 300.0)
            down = FinishedProcess(1, "", reason)
            assert replies == {"h1": FinishedProcess(3, word, ""), "h2": down, "h3": FinishedProcess(3, word, "")}
    assert connections(folder) == ["h1", "h3"]


def test_a_launcher_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with closing(HostLinks(AgentLauncher())) as links:
        assert links.run({"h1": ""}, 300.0)["h1"] == FinishedProcess(127, "", "ssh: not on PATH")


@pytest.mark.usefixtures("folder")
def test_a_script_is_ended_after_the_limit_and_its_output_is_kept(links: HostLinks) -> None:
    links.run({"h1": ""}, 300.0)
    seconds = mark()
    replies = links.run({"h1": f"echo begin; sleep {seconds} & wait", "h2": "echo good"}, 1.0)
    assert replies["h1"] == FinishedProcess(None, "begin", "")
    wait_until(lambda: not running(seconds))
    assert links.run({"h1": "echo again"}, 300.0)["h1"].out == "again"


def test_a_host_that_does_not_answer_in_time(folder: Path, links: HostLinks) -> None:
    seconds = mark()
    write_ssh(folder, f"[ $host != h1 ] || exec sleep {seconds}")
    assert links.run({"h1": "echo late"}, 0.3)["h1"] == FinishedProcess(None, "", "")
    links.close()
    assert not running(seconds)


FLOODS = {"lines": "yes", "one line": "cat /dev/zero", "errors": "yes >&2"}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_reply_without_end_is_cut_off(links: HostLinks, flood: str) -> None:
    replies = links.run({"h1": flood, "h2": "echo good"}, 300.0)
    assert (replies["h1"].out, replies["h1"].err) == ("", "its reply is too long")
    assert replies["h1"].code
    assert replies["h2"] == FinishedProcess(0, "good", "")
    assert links.run({"h1": "echo again"}, 300.0)["h1"].out == "again"


@pytest.mark.parametrize("name", ["", "?", "@all", "h&x", "-oProxyCommand=touch started", "\x1b]0;title\x07"])
def test_a_text_that_is_no_host_name_starts_nothing(folder: Path, links: HostLinks, name: str) -> None:
    replies = links.run(dict.fromkeys(("h1", name), "echo good"), 300.0)
    assert replies["h1"] == FinishedProcess(0, "good", "")
    assert replies[name].err.startswith("nothing was started there: ") or " a user;" in replies[name].err
    assert connections(folder) == ["h1"]


def test_a_lost_link_is_reported_and_opened_again(folder: Path, links: HostLinks) -> None:
    def kill_agent() -> FinishedProcess:
        return links.run({"h1": "kill -9 $PPID; exec sleep 10"}, 300.0)["h1"]

    write_ssh(folder, "trap 'exit 255' CHLD; exec 3<&0; sh -c \"$command\" <&3 3<&- & wait; exit 255")
    assert kill_agent() == FinishedProcess(255, "", "the connection to its agent ended (ssh: exit code 255)")
    assert links.run({"h1": "echo again"}, 300.0)["h1"] == FinishedProcess(0, "again", "")
    assert connections(folder) == ["h1", "h1", "h1"]


def test_a_link_that_was_lost_between_scripts_is_opened_again(folder: Path, links: HostLinks) -> None:
    agent = int(links.run({"h1": "echo $PPID"}, 300.0)["h1"].out)
    os.kill(agent, signal.SIGKILL)
    replies = links.run({"h1": "echo again"}, 300.0)
    assert replies["h1"] == FinishedProcess(0, "again", "")
    assert connections(folder) == ["h1", "h1"]


RUN = """
import sys
from contextlib import closing
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.links import HostLinks
with closing(HostLinks(AgentLauncher())) as links:
    links.run(dict.fromkeys(("h1", "h2", "h3"), f"sleep {sys.argv[1]}"), 300.0)
"""


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_of_this_process_ends_all_scripts(number: signal.Signals) -> None:
    seconds = mark()
    with subprocess.Popen([sys.executable, "-c", RUN, seconds], stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(running(seconds)) == 3)
        process.send_signal(number)
        process.communicate()
    assert process.returncode == -number
    wait_until(lambda: not running(seconds))


def test_a_signal_after_a_job_does_not_change_its_exit_code(folder: Path) -> None:
    write_ssh(folder, f'exec 3<&0; sh -c "$command" <&3 3<&-; touch {folder}/over; exec sleep 60')
    argv = [sys.executable, "-m", "ddlrun", "launch", "--allow-run-as-root", "--process-manager", "ddlrun", "--quiet"]
    argv += ["--checks", "none", "--bind-to", "none", "-H", "h1:1,h2:1", "true"]
    environ = {**os.environ, "XDG_STATE_HOME": str(folder)}
    with subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE) as job:
        wait_until((folder / "over").exists)
        job.send_signal(signal.SIGHUP)
        _, errors = job.communicate()
    assert (job.returncode, errors) == (0, b"")
