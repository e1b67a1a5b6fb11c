"""Replies of hosts that want to harm ddlrun or its user: every text from a host is hostile input."""

import os
import random
import re
import time
from pathlib import Path

import pytest

from ddlrun.errors import HostError
from ddlrun.machine import Machine
from ddlrun.machine.cpus import parse_cpu_mask
from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.machine.probe_reply import SECTIONS, machine_of, parse_answer
from ddlrun.network.subnet_selection import Network
from ddlrun.preflight.facts import HostFacts, parse_facts
from ddlrun.preflight.findings import FindingCode
from ddlrun.preflight.tcp import judge_tcp
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.fan_out import run_on_hosts
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.tasks import TaskReply
from tests.machines.facts import load
from tests.machines.render_hwloc import render_hwloc
from tests.machines.render_lscpu import render_json, render_table
from tests.machines.render_numactl import render_numactl
from tests.machines.render_ppc64_cpu import render_ppc64_cpu
from tests.support.simulated import simulate_replies

XML = render_hwloc(load("laptop-2-cores"))
ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
BOMB = f'<!DOCTYPE topology [<!ENTITY e0 "x">{ENTITIES}]>'
EXTERNAL = '<!DOCTYPE topology [<!ENTITY secret SYSTEM "file://{}">]>'


def with_doctype(doctype: str, text: str) -> str:
    """Return lstopo's XML with another document type, and a text in the name of the machine."""
    body = XML[XML.index("<topology") :]
    return doctype + body.replace("<object ", f'<object name="{text}" ', 1)


@pytest.mark.parametrize("form", ["bomb", "external", "parameter"])
def test_xml_entities_are_refused(tmp_path: Path, form: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    texts = {
        "bomb": with_doctype(BOMB, "&e9;"),
        "external": with_doctype(EXTERNAL.format(secret), "") + "&secret;",
        "parameter": with_doctype(f'<!DOCTYPE topology [<!ENTITY % p SYSTEM "file://{secret}"> %p;]>', ""),
    }
    with pytest.raises(HostError, match="its XML declares entities") as caught:
        parse_hwloc(texts[form], "h")
    assert "secret" not in caught.value.problem


def test_an_external_document_type_is_not_read(tmp_path: Path) -> None:
    dtd = tmp_path / "evil.dtd"
    dtd.write_text('<!ENTITY evil "text">')
    for text in ("", "&evil;"):
        assert parse_hwloc(with_doctype(f'<!DOCTYPE topology SYSTEM "{dtd}">', text), "h") == parse_hwloc(XML, "h")


def test_deeply_nested_xml_is_an_error() -> None:
    deep = '<object type="Group" cpuset="0x1">' * 20_000 + "</object>" * 20_000
    with pytest.raises(HostError):
        parse_hwloc(f'<topology><object type="Machine" cpuset="0x1">{deep}</object></topology>', "h")


def test_a_mask_of_enormous_words_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not a word of a mask"):
        parse_cpu_mask("0x" + "f" * 10_000_000)


def test_a_reply_cannot_choose_the_names_of_files() -> None:
    names = ["../../.ssh/authorized_keys", "/etc/passwd", "hosts", ".bashrc", "manifest"]
    text = "".join(f"@ddlrun begin {name}\ntext\n@ddlrun end {name} 0\n" for name in [*names, "uname.txt"])
    sections = parse_answer(f"{text}@ddlrun done\n", "h").sections
    assert sections == {"uname.txt": "text\n"}
    assert set(SECTIONS).isdisjoint(names)


@pytest.mark.parametrize("key", ["'$(touch${IFS}pwned)'", "';reboot;'", "1;2", "٣"])
def test_a_reply_cannot_put_commands_into_the_next_script(key: str) -> None:
    assert parse_answer(f"@ddlrun key {key}\n@ddlrun done\n", "h").key == ""


def test_control_characters_of_hosts_are_escaped(tmp_path: Path) -> None:
    reply = tmp_path / "reply"
    reply.write_bytes(b"\x1b]0;title\x07\x1b[31mred\x1b[0m\r\nname\t\xe2\x80\xae\xff\n")
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\ncat {reply}; cat {reply} >&2; exit 3\n")
    agent.chmod(0o755)
    answer = run_on_hosts({"h1": "true\n"}, AgentLauncher("agent", (str(agent),)), 300.0)["h1"]
    text = "\\x1b]0;title\\x07red\nname\t\\u202e\ufffd"
    assert (answer.code, answer.out, answer.err) == (3, text, text)


FLOODS = {"lines": "yes", "one line": "cat /dev/zero", "errors": "yes >&2"}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_reply_without_end_is_cut_off(tmp_path: Path, flood: str) -> None:
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\n[ "$1" = h1 ] || exec echo good\n{flood}\n')
    agent.chmod(0o755)
    replies = run_on_hosts(dict.fromkeys(("h1", "h2"), "true\n"), AgentLauncher("agent", (str(agent),)), 300.0)
    assert (replies["h1"].out, replies["h1"].err) == ("", "its reply is too long")
    assert replies["h1"].code
    assert replies["h2"] == FinishedProcess(0, "good", "")


def test_a_reply_without_end_by_ssh_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec yes\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run_on_hosts({"h1": "true\n"}, AgentLauncher(), 300.0)["h1"].err == "its reply is too long"


def test_a_command_that_ends_before_it_has_read_its_script_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply has the reason. No pipe would hold the script, and ddlrun would get SIGPIPE."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho refused >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = f"true {'x' * 1_000_000}\n"
    assert run_on_hosts({"h1": script}, AgentLauncher(), 300.0)["h1"] == FinishedProcess(255, "", "refused")


@pytest.mark.parametrize("name", ["", "?", "@all", "h&x", "-oProxyCommand=touch started", "\x1b]0;title\x07"])
def test_a_text_that_is_no_host_name_is_neither_a_pattern_nor_an_option(tmp_path: Path, name: str) -> None:
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\necho $1 >>{tmp_path}/started; echo good\n")
    agent.chmod(0o755)
    replies = run_on_hosts(dict.fromkeys(("h1", name), "true\n"), AgentLauncher("agent", (str(agent),)), 300.0)
    assert replies["h1"] == FinishedProcess(0, "good", "")
    assert re.fullmatch(r"nothing was started there: (a host name is missing|.* is not a host name.*)|.* a user;.*",
                        replies[name].err)  # fmt: skip
    assert (tmp_path / "started").read_text() == "h1\n"


REPORT = '{"listening": true, "reached": {"h2": %s}, "unresolved": [], "since": 1, "until": %s}'


@pytest.mark.parametrize(
    "reply",
    ["", "{", "[]", "1", '"text"', "{}", "[" * 100_000, REPORT % ("null", '"soon"'), REPORT % ("null", "[]"),
     '{"listening": true, "reached": [], "since": 1, "until": 2}', REPORT % ("null", "1" + "0" * 400)],
)  # fmt: skip
def test_an_impossible_report_of_connections_is_none(reply: str) -> None:
    replies = {
        host: TaskReply.read(FinishedProcess(0, text, "")) for host, text in (("h1", f"@task {reply}"), ("h2", ""))
    }
    findings = judge_tcp(["h1", "h2"], replies, Network((), {}, {}, "", ()))
    assert {finding.code for finding in findings} == {FindingCode.TCP_WITHOUT_ANSWER}


def test_control_characters_in_a_report_of_connections_are_escaped() -> None:
    own, other = (f"@task {REPORT % (error, '2')}" for error in (r'"\u001b[2Jerror"', "null"))
    texts = {"h1": own, "h2": other.replace("h2", "h1")}
    replies = {host: TaskReply.read(FinishedProcess(0, text, "")) for host, text in texts.items()}
    findings = judge_tcp(["h1", "h2"], replies, Network((), {}, {}, "", ()))
    assert [finding.message for finding in findings if finding.host == "h1"] == [
        r"cannot connect to h2: \x1b[2Jerror (the other direction works)"
    ]


NASTY = (
    "9" * 5000, "²", "٣", "-1", "nan", "inf", "", "0x" + "f" * 100_000, "99999999999", "1e400", "0-99999999", "../../x",
    "<b>", " ", "0-0-0", ",", ":", "/", "[" * 50_000, "4294967296",
)  # fmt: skip


def spoil(text: str, draw: random.Random) -> str:
    """Replace one word or sign of a text."""
    token = draw.choice(list(re.finditer(r"[A-Za-z0-9_.]+|[-:,/]", text)))
    return text[: token.start()] + draw.choice(NASTY) + text[token.end() :]


def texts_of_tools() -> dict[str, str]:
    facts = load("power9-16-cores")
    return {
        "lstopo.xml": render_hwloc(facts),
        "lscpu.txt": render_table(facts),
        "lscpu.json": render_json(facts),
        "numactl.txt": render_numactl(facts),
        "ppc64_cpu.txt": render_ppc64_cpu(facts),
        "nvidia-topo.txt": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-63\nGPU1\tNV2\t X \t64-127\n",
        "nvidia-gpus.csv": "0, GPU-a, 00000004:04:00.0, V100\n1, GPU-b, 00000035:03:00.0, V100\n",
    }


def test_a_reply_with_one_wrong_word_is_read_or_an_error_of_its_host() -> None:
    draw = random.Random(18)  # noqa: S311 - a series that is the same each time
    texts, (_, reply) = texts_of_tools(), next(simulate_replies(["h"], time.time()))
    read = failed = 0
    for _ in range(60):
        name = draw.choice(list(texts))
        try:
            assert isinstance(machine_of({**texts, name: spoil(texts[name], draw)}, "h"), Machine)
            read += 1
        except HostError:
            failed += 1
        try:
            part = draw.choice(list(reply))
            assert isinstance(parse_facts({**reply, part: spoil(reply[part], draw)}, "h"), HostFacts)
        except HostError:
            failed += 1
    assert read
    assert failed
