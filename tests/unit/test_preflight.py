"""Facts of hosts give findings with their remedies; no host is needed."""

import binascii
import json
import os
import string
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from ddlrun.application.check import parse_checks
from ddlrun.errors import InputError, PreflightError, UnreachableError
from ddlrun.machine import NIC, Machine
from ddlrun.managers.openmpi.dialects import parse_program
from ddlrun.managers.own import own_manager
from ddlrun.network.addresses import Address
from ddlrun.network.subnet_selection import Network, RejectedSubnet, choose_network
from ddlrun.plan.container import ContainerRequest
from ddlrun.preflight import host_facts
from ddlrun.preflight.facts import (
    TASK,
    FactsRequest,
    FileDigest,
    HostFacts,
    KernelInstance,
    LeftoverProcess,
    parse_facts,
    render_task,
)
from ddlrun.preflight.findings import FindingCode, Level, PreflightFinding, group_findings, render_lines
from ddlrun.preflight.host_python import find_libraries, find_packages
from ddlrun.preflight.identity import find_aliases
from ddlrun.preflight.judge import NAMES, PreflightFacts, judge
from ddlrun.preflight.run import PreflightReport, PreflightRequest, ambiguous_interfaces, misnamed_hosts, reach_findings
from ddlrun.preflight.ssh import SshFailure, SshProblem, explain_failure
from ddlrun.preflight.table import check_record, render_report
from ddlrun.preflight.tcp import judge_tcp, pairs
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.tasks import TaskReply, as_scripts
from ddlrun.supervise.listener import find_cryptography
from tests.support.json_schemas import validate
from tests.support.processes import mark

MACHINE = """\
cpu/online:0-1
cpu/cpu0/topology/core_siblings_list:0-1
cpu/cpu1/topology/core_siblings_list:0-1
cpu/cpu0/topology/thread_siblings_list:0
cpu/cpu1/topology/thread_siblings_list:1
ddlrun:end
"""
OWN = """\
@clock 1700000000.25
@hostname h1
@kernel f3797931 net:[1] pid:[2] uts:[3] ipc:[4]
@name h1 10.0.0.1
@name h2 10.0.0.2 fd00::2
@name h9
@manager mpirun (Open MPI) 4.1.4
@daemon
@python 3.11.2
@package mpi4py 4.1.0 /site packages
@folder
@content 4038471504 75
@driver NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
@room shm 8000000 /dev/shm
@room temporary 900000 /tmp/a b
@limit memlock unlimited
@limit files 1048576
@left 77 run-1 python train.py --lr 1
@net eth0 10.0.0.1/16 up 10000 device
"""
WANTED = FactsRequest(
    "/opt/mpi/bin/mpirun", "/opt/py/bin/python", "/work", ("h1", "h2", "h3"), daemon="orted", library="libmpi.so.40"
)


def parse(own: str = OWN, host: str = "h1", machines: dict[str, Machine] | None = None, printed: str = "") -> HostFacts:
    return parse_facts({"machine": MACHINE, "own": own}, host, machines, printed=printed)


def facts(number: int = 1, **changes: object) -> HostFacts:
    good = parse()._replace(leftovers=(), program=None, hostname=f"h{number}")
    good = good._replace(
        names={f"h{n}": (f"10.0.0.{n}",) for n in (1, 2, 3)}, addresses=(Address("eth0", f"10.0.0.{number}", 16),)
    )
    return good._replace(**changes)  # type: ignore[arg-type]


def bad(here: HostFacts | None = None, wanted: FactsRequest = WANTED, **changes: object) -> list[PreflightFinding]:
    """Judge three hosts of which h2 is changed; return the findings of checks that do not pass."""
    hosts = {"h1": facts(1), "h2": facts(2, **changes), "h3": facts(3)}
    return bad_among(hosts, here or hosts["h1"], wanted)


def bad_among(hosts: dict[str, HostFacts], here: HostFacts, wanted: FactsRequest = WANTED) -> list[PreflightFinding]:
    """Judge hosts; return the findings of checks that do not pass."""
    facts_of_all = PreflightFacts(hosts, here, "h1", wanted, (1700000000.0, 1700000000.5))
    return [finding for finding in judge(facts_of_all) if finding.level is not Level.OK]


def test_every_line_is_read() -> None:
    parsed = parse(printed="Welcome!\n\n")
    assert parsed.noise == ("Welcome!",)
    assert (parsed.clock, parsed.hostname) == (1700000000.25, "h1")
    assert parsed.names == {"h1": ("10.0.0.1",), "h2": ("10.0.0.2", "fd00::2"), "h9": ()}
    assert (parsed.manager, parsed.daemon, parsed.python) == ("mpirun (Open MPI) 4.1.4", True, "3.11.2")
    assert parsed.packages == {"mpi4py": "4.1.0 /site packages"}
    assert (parsed.folder, parsed.program, parsed.driver) == (True, FileDigest(75, 4038471504), "535.129.03")
    assert (parsed.shm, parsed.temporary) == (8000000, ("/tmp/a b", 900000))  # noqa: S108 - a name in a text
    assert parsed.unwritable is None
    assert parse(OWN + "@unwritable /no tmp\n").unwritable == "/no tmp"
    assert (parsed.memlock, parsed.files) == ("unlimited", "1048576")
    assert parsed.leftovers == (LeftoverProcess(77, "run-1", "python train.py --lr 1"),)
    assert parsed.kernel == KernelInstance("f3797931", ("net:[1]", "pid:[2]", "uts:[3]", "ipc:[4]"))
    assert parsed.addresses == (Address("eth0", "10.0.0.1", 16, speed=10000),)
    assert parsed.machine
    assert len(parsed.machine.cores) == 2


def test_equal_hosts_share_a_machine() -> None:
    alike: dict[str, Machine] = {}
    first, second = (parse(OWN, name, alike).machine for name in ("h1", "h2"))
    assert first is second


@pytest.mark.parametrize("value", [None, "", [], {}, {"machine": MACHINE}, {"machine": 1, "own": OWN}])
def test_an_answer_that_is_no_facts_is_an_error(value: object) -> None:
    with pytest.raises(UnreachableError, match=r"host h1: its reply .* cannot be read"):
        parse_facts(value, "h1")


@pytest.mark.parametrize(
    "line",
    [
        "@left x",
        "@room shm",
        "@content a b",
        "@clock soon",
        "@name",
        "@package",
        "@limit",
        "@kernel a",
        "@net",
        "noise",
    ],
)
def test_malformed_lines_are_ignored(line: str) -> None:
    assert parse(line).hostname == ""


def test_equal_hosts_pass_all_checks() -> None:
    assert bad() == []


def test_a_clock_may_differ_by_the_round_trip() -> None:
    assert bad(clock=1700000001.4) == bad(clock=1699999999.1) == bad(clock=None) == []
    assert [finding.message for finding in bad(clock=1700000005.5)] == ["its clock is 5 s ahead"]
    assert [finding.message for finding in bad(clock=1699996400.0)] == ["its clock is 3600 s behind"]
    assert "timedatectl" in bad(clock=0.0)[0].remedy


def test_hosts_without_cryptography_fail_where_it_is_needed() -> None:
    wanted = WANTED._replace(encryption="/opt/py/lib")
    assert bad(encryption=False) == []
    findings = [finding for finding in bad(wanted=wanted, encryption=False) if finding.host == "h2"]
    assert [finding.message for finding in findings] == [
        "/opt/py/bin/python cannot import cryptography from /opt/py/lib, which --encrypt needs"
    ]
    without_python = [finding.code for finding in bad(wanted=wanted, python=None) if finding.host == "h2"]
    assert without_python == [FindingCode.NO_PYTHON]
    assert parse("@encryption").encryption


@pytest.mark.parametrize(
    ("version", "messages"),
    [
        ("", ["neither /opt/py/bin/python nor python3 can be run, one of which ddlrun's agent needs"]),
        ("3.6.8", ["its python3 is 3.6.8, and ddlrun's agent needs 3.8 or later"]),
        ("3.13.0rc1", []),
    ],
)
def test_hosts_without_a_python_for_agents_fail_where_they_are_used(version: str, messages: list[str]) -> None:
    wanted = WANTED._replace(agents=True)
    findings = [finding for finding in bad(wanted=wanted, agent_python=version) if finding.host == "h2"]
    assert [finding.message for finding in findings] == messages
    assert bad(agent_python=version) == []
    assert parse("@agent 3.9.2").agent_python == "3.9.2"


def run_task(request: FactsRequest, folder: Path, variables: Mapping[str, str] = MappingProxyType({})) -> HostFacts:
    """Return the facts of this machine that the task finds in a new Python, as on a host without ddlrun."""
    texts = as_scripts({"h1": json.dumps(render_task(request, {}))}, TASK)
    environ = {**os.environ, **variables}
    done = subprocess.run(
        ["sh"], input=texts["h1"], env=environ, cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    reply = TaskReply.read(FinishedProcess(0, done.stdout, ""))
    return parse_facts(reply.value, "h1", printed=reply.printed)


REQUEST = FactsRequest("/no/mpirun", sys.executable, "/", daemon="orted")


@pytest.mark.parametrize(
    ("out", "only", "codes"),
    [
        ("hello\n@python\n", {"python"}, [FindingCode.PASSED, FindingCode.NO_PYTHON]),
        ("@python\n", {"python", "agent"}, [FindingCode.PASSED, FindingCode.NO_AGENT_PYTHON]),
        ("@python 3.6.8\n", {"mpi"}, [FindingCode.PASSED, FindingCode.OLD_AGENT_PYTHON]),
        ("hello\n", {"python"}, [FindingCode.UNREACHABLE]),
    ],
)
def test_a_host_without_a_python_for_tasks_is_reached(out: str, only: set[str], codes: list[FindingCode]) -> None:
    request = PreflightRequest(own_manager(""), only=frozenset(only))
    findings = list(reach_findings("h1", TaskReply.read(FinishedProcess(127, out, "")), request))
    assert [finding.code for finding in findings] == codes


@pytest.mark.parametrize("exists", [False, True])
def test_the_task_imports_cryptography_from_the_folder(tmp_path: Path, *, exists: bool) -> None:
    folder = find_cryptography() if exists else str(tmp_path)
    assert run_task(REQUEST._replace(encryption=folder), tmp_path).encryption == exists


def test_no_value_reaches_a_shell(tmp_path: Path) -> None:
    word = "$(touch x); 'a' \"b\"\n`touch x`"
    request = FactsRequest(word, word, word, (word,), word, word, word, word, daemon=word, library=word)
    assert run_task(request, tmp_path).hostname == os.uname().nodename
    assert [*tmp_path.iterdir()] == []


def test_the_task_finds_what_is_installed(tmp_path: Path) -> None:
    manager, runtime = tmp_path / "bin" / "manager", tmp_path / "bin" / "docker"
    manager.parent.mkdir()
    for program in (manager, runtime, manager.with_name("daemon")):
        program.write_text(f"#!/bin/sh\necho {program.name} 1.2; echo more\n")
        program.chmod(0o755)
    (tmp_path / "train.py").write_text("print(1)\n")
    request = REQUEST._replace(
        manager=str(manager),
        daemon="daemon",
        folder=str(tmp_path),
        program="train.py",
        logs=str(tmp_path / "no" / "logs"),
        names=("localhost", "no-such-host.invalid"),
        container=ContainerRequest("docker", "image"),
    )
    found = run_task(request, tmp_path, {"PATH": f"{manager.parent}:{os.environ['PATH']}", "TMPDIR": "/no"})
    assert (found.manager, found.daemon, found.container) == ("manager 1.2", True, "image")
    assert (found.folder, found.program) == (True, FileDigest(9, binascii.crc32(b"print(1)\n")))
    assert (found.names["localhost"] != (), found.names["no-such-host.invalid"]) == (True, ())
    assert (found.unwritable, found.logs is not None, found.shm is not None) == ("/no", True, True)
    assert found.python == found.agent_python == sys.version.split()[0]
    assert found.packages.keys() >= {"mpi4py"}
    assert {"lo"} <= {address.interface for address in found.addresses}
    assert found.machine is not None
    assert found.clock is not None
    assert found.kernel is not None
    other = run_task(request._replace(program="no.py", folder="/no", python="/no/python", container=None), tmp_path)
    assert (other.folder, other.program, other.python, other.packages, other.container) == (False, None, None, {}, "")


def test_a_process_of_another_run_is_found() -> None:
    seconds = mark()
    with subprocess.Popen(["sleep", seconds], env={**os.environ, "DDLRUN_RUN": "other"}) as process:
        left = parse_facts(host_facts.main(render_task(REQUEST, {})), "h1").leftovers
        process.kill()
    assert LeftoverProcess(process.pid, "other", f"sleep {seconds}") in left


def test_an_mpi4py_that_is_not_built_for_open_mpi() -> None:
    assert bad(mpi_libraries=()) == bad(mpi_libraries=("libmpi.so.40", "libmpi.so.12")) == []
    (finding,) = bad(mpi_libraries=("libmpi.so.12",))
    assert (finding.code, finding.level) == (FindingCode.OTHER_MPI4PY, Level.WARNING)
    assert "is built for libmpi.so.12, not for this mpirun's Open MPI: ranks would be singletons" in finding.message


def test_the_libraries_of_mpi4py_are_found(tmp_path: Path) -> None:
    (tmp_path / "mpi4py-4.1.dist-info").mkdir()
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "MPI.cpython.so").write_bytes(b"\0libmpi.so.400\0libmpi.so.12\0libc.so.6\0")
    assert dict(find_packages(["/no", str(tmp_path)])) == {"mpi4py": ("4.1", str(tmp_path))}
    assert find_libraries(str(tmp_path)) == ["libmpi.so.12"]


def test_versions_are_compared() -> None:
    assert [finding.message for finding in bad(packages={"mpi4py": "3.1.4 /x"})] == ["mpi4py 3.1.4, h[1,3] have 4.1.0"]
    findings = bad(packages={})
    assert [(finding.host, finding.level, finding.message) for finding in findings] == [
        ("h2", Level.FAILURE, "mpi4py is missing, h[1,3] have 4.1.0")
    ]
    assert findings[0].remedy == "/opt/py/bin/python -m pip install mpi4py==4.1.0"
    assert bad(python="3.11.9") == []
    assert bad(python="3.10.1")[0].message == "Python 3.10.1 at /opt/py/bin/python, here it is 3.11.2"
    assert bad(driver="470.1")[0].message.startswith("NVIDIA driver 470.1, h")
    assert bad(driver=None)[0].message.startswith("NVIDIA driver is missing")


def test_a_script_is_compared_with_the_one_on_this_machine() -> None:
    wanted = WANTED._replace(program="train.py")
    here = facts(program=FileDigest(9, 1))
    hosts = {name: facts(number, program=FileDigest(9, 1)) for number, name in enumerate(("h1", "h2"), 1)}
    facts_of_all = PreflightFacts(hosts, here, "h1", wanted, (1700000000.0, 1700000000.5))
    assert {finding.level for finding in judge(facts_of_all)} == {Level.OK}
    lost = facts_of_all._replace(hosts={**hosts, "h2": hosts["h2"]._replace(program=None)})
    assert [finding.code for finding in judge(lost) if finding.level is not Level.OK] == [FindingCode.NO_PROGRAM]
    program = facts_of_all._replace(here=facts(program="/bin/x"), hosts={"h1": facts(program="/bin/x"), "h2": facts(2)})
    assert [finding.host for finding in judge(program) if finding.level is not Level.OK] == ["h2"]


def test_memory_can_be_locked_for_rdma() -> None:
    assert bad(memlock="64") == []
    machine = facts().machine
    assert machine
    rdma = machine._replace(nics=(NIC("ib0", rdma="mlx5_0"),))
    findings = [finding for finding in bad(memlock="64", machine=rdma) if finding.check == "limits"]
    assert findings[0].message == "only 64 KiB may be locked (ulimit -l), and mlx5_0 is an RDMA device"
    assert "LimitMEMLOCK=infinity" in findings[0].remedy
    assert bad(files="256")[0].message == "limit of open files is 256 (ulimit -n)"


def test_other_cores_are_a_warning() -> None:
    machine = facts().machine
    assert machine
    (finding,) = bad(machine=machine._replace(cores=machine.cores[:1]))
    assert (finding.level, finding.check) == (Level.WARNING, "machine")
    assert finding.message.startswith("packages of 1 cores instead of packages of 2 cores")


def test_space_for_logs_is_checked_on_this_machine() -> None:
    (finding,) = bad(facts(logs=10), WANTED._replace(logs="/logs"))
    assert (finding.host, finding.message) == ("h1", "this machine has 10 KiB free for the run folder /logs")
    (finding,) = bad(unwritable="/scratch")
    assert (finding.host, finding.code, "/scratch" in finding.message) == ("h2", FindingCode.NO_TEMPORARY_FILES, True)


def test_a_name_that_ssh_alone_knows_is_a_warning() -> None:
    """Host gpu in ~/.ssh/config: nothing else resolves it, and the ranks get addresses."""
    here = facts(1, names={"h1": ("10.0.0.1",), "gpu": ()})
    hosts = {"h1": here, "gpu": facts(2, names={"h1": ("10.0.0.1",), "h2": ("10.0.0.2",)})}
    (finding,) = bad_among(hosts, here, WANTED._replace(names=("h1", "gpu")))
    assert (finding.host, finding.code) == ("h1", FindingCode.NAME_OF_SSH)
    known = {**hosts, "gpu": facts(2, names={"h1": ("10.0.0.1",), "gpu": ("10.0.0.2",), "h2": ("10.0.0.2",)})}
    assert [finding.code for finding in bad_among(known, here, WANTED._replace(names=("h1", "gpu")))] == [
        FindingCode.NAME_UNKNOWN
    ]


def test_names_that_resolve_to_another_host() -> None:
    assert bad(names={"h1": ("10.0.0.3",), "h2": ("10.0.0.2",), "h3": ("10.0.0.3",)})[0].message == (
        "resolves h1 to 10.0.0.3, which is h3"
    )
    assert (
        bad(names={"h1": ("127.0.0.1",), "h2": ("10.0.0.2",)})[0].message == "resolves h1 to 127.0.0.1, which is itself"
    )
    assert (
        "which is none of its addresses (10.0.0.1)" in bad(names={"h1": ("192.0.2.1",), "h2": ("10.0.0.2",)})[0].message
    )
    assert bad(names={"h2": ("10.0.0.3",)})[0].message == "resolves its own name to 10.0.0.3, which is not its own"
    # Debian's 127.0.1.1 comes first, also where the host's address is listed, too
    (finding,) = bad(names={"h1": ("10.0.0.1",), "h2": ("10.0.0.2", "127.0.1.1")})
    assert (finding.code, finding.values["address"]) == (FindingCode.OWN_NAME_LOOPBACK, "127.0.1.1")
    # no other host is to connect to a host that is alone
    alone = facts(1, names={"h1": ("127.0.1.1",)})
    assert bad_among({"h1": alone}, alone) == []
    # an address to which this machine resolves the name, too, as behind NAT, is correct
    here = facts(1, names={"h3": ("192.0.2.3",)})
    assert bad(here, names={"h2": ("10.0.0.2",), "h3": ("192.0.2.3",)}) == []


def test_a_name_that_leads_to_a_host_that_is_not_listed() -> None:
    here = facts(1, names={"h1": ("10.0.0.1",), "h3": ("10.0.0.4",)})
    other = facts(4, names={"h1": ("10.0.0.1",), "h3": ("10.0.0.3",)})
    (finding,) = bad_among({"h1": here, "h3": other}, here)
    assert (finding.host, finding.code) == ("h3", FindingCode.LEADS_ELSEWHERE)
    assert finding.message == "is h4, which resolves h3 to 10.0.0.3, not to one of its own addresses (10.0.0.4)"


@pytest.mark.parametrize(
    ("there", "here"),
    [
        pytest.param((), ("10.0.0.4",), id="an alias that only this machine knows"),
        pytest.param(("127.0.1.1",), ("10.0.0.4",), id="the loopback address"),
        pytest.param(("192.0.2.3",), ("192.0.2.3",), id="an address behind NAT"),
    ],
)
def test_a_host_with_another_name_of_its_own(there: tuple[str, ...], here: tuple[str, ...]) -> None:
    first = facts(1, names={"h3": here})
    assert bad_among({"h1": first, "h3": facts(4, names={"h3": there})}, first) == []


def test_a_host_under_two_names() -> None:
    second = facts(2)
    (finding,) = bad_among({"h1": facts(1), "10.0.0.2": second, "h2": second, "h3": facts(3)}, facts(1))
    assert (finding.host, finding.code) == ("10.0.0.2", FindingCode.SAME_HOST)
    assert finding.message == "is the same host as h2; its own name is h2"
    assert "getent hosts 10.0.0.2" in finding.remedy


def test_a_new_interface_makes_no_other_host() -> None:
    later = facts(1, addresses=(*facts(1).addresses, Address("veth1", "fe80::1", 64)))
    assert find_aliases({"a": facts(1), "b": later, "c": later}) == {"b": "a", "c": "a"}


def test_hosts_that_only_look_the_same() -> None:
    kernel = facts().kernel
    assert kernel
    container = facts(1, kernel=kernel._replace(namespaces=("net:[9]", *kernel.namespaces[1:])))
    clone = facts(1, kernel=kernel._replace(boot_id="another"))
    of_snapshot = facts(1, addresses=facts(2).addresses)
    unknown = facts(1, kernel=None)
    hosts = {"a": facts(1), "b": container, "c": clone, "d": of_snapshot, "e": unknown, "f": unknown}
    assert find_aliases(hosts) == {}


CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Host key for h1 has changed and you have requested strict checking.
Host key verification failed.
"""


@pytest.mark.parametrize(
    ("answer", "problem", "remedy"),
    [
        (FinishedProcess(255, "", CHANGED), SshProblem.HOST_KEY_CHANGED, "ssh-keygen -R '[h1]:2222'"),
        (FinishedProcess(255, "", "Host key verification failed."), SshProblem.HOST_KEY_UNKNOWN, "by hand"),
        (
            FinishedProcess(255, "", "ssh: Could not resolve hostname h1: Name or service not known"),
            SshProblem.UNKNOWN_NAME,
            "getent hosts h1",
        ),
        (
            FinishedProcess(255, "", "me@h1: Permission denied (publickey)."),
            SshProblem.KEY_REJECTED,
            "ssh-copy-id -p 2222 h1",
        ),
        (
            FinishedProcess(255, "", "ssh: connect to host h1 port 2222: Connection refused"),
            SshProblem.REFUSED,
            "ssh -p 2222 h1 true",
        ),
        (
            FinishedProcess(255, "", "ssh: connect to host h1 port 2222: No route to host"),
            SshProblem.NO_ROUTE,
            "is it up",
        ),
        (
            FinishedProcess(255, "", "ssh: connect to host h1 port 2222: Connection timed out"),
            SshProblem.TIMED_OUT,
            "drop port 2222",
        ),
        (FinishedProcess(None, "", ""), SshProblem.NO_ANSWER, "drop port 2222"),
        (
            FinishedProcess(255, "", "kex_exchange_identification: Connection closed by remote host"),
            SshProblem.CLOSED,
            "MaxStartups",
        ),
        (FinishedProcess(127, "", "bash: line 1: exec: sh: not found"), SshProblem.NO_SHELL, "echo $PATH"),
        (FinishedProcess(0, "hello\n", ""), SshProblem.SHELL_ENDED, "start files"),
        (
            FinishedProcess(255, "", "Bad owner or permissions on /root/.ssh/config"),
            SshProblem.OTHER,
            "try: ssh -p 2222 h1 true",
        ),
    ],
)
def test_problems_of_ssh_are_distinguished(answer: FinishedProcess, problem: SshProblem, remedy: str) -> None:
    failure = explain_failure("h1", answer, ("ssh", "-p", "2222"), 30)
    assert failure.problem is problem
    assert remedy in failure.remedy
    assert "\n" not in failure.message + failure.remedy


def test_all_pairs_of_a_few_hosts_and_some_of_many() -> None:
    assert len(pairs([f"h{n}" for n in range(8)])) == 56
    many = pairs([f"h{n}" for n in range(100)])
    assert len(many) == 2 * (100 + 99 - 2)
    assert {("h0", "h50"), ("h50", "h0"), ("h50", "h51"), ("h51", "h50"), ("h99", "h0")} <= many


def test_failed_connections_name_their_direction() -> None:
    network = Network(("10.0.0.0/16",), {}, {}, "")

    def reply(since: float = 0, **reached: str | None) -> TaskReply:
        unresolved = [name for name, error in reached.items() if error == "Name or service not known"]
        report = {
            "listening": True, "reached": reached, "unresolved": unresolved, "since": since, "until": since + 8,
        }  # fmt: skip
        return TaskReply(report, FinishedProcess(0, "", ""))

    hosts = ["h1", "h2", "h3"]
    answers = {
        "h1": reply(h2=None, h3=None),
        "h2": reply(h1=None, h3=None),
        "h3": reply(h1=None, h2="Connection refused"),
    }
    (finding,) = [finding for finding in judge_tcp(hosts, answers, network) if finding.level is not Level.OK]
    assert finding.message == "cannot connect to h2 on 10.0.0.0/16: Connection refused (the other direction works)"
    answers["h3"] = reply(h1=None, h2="Name or service not known")
    (finding,) = [finding for finding in judge_tcp(hosts, answers, network) if finding.level is not Level.OK]
    assert (finding.message, finding.remedy) == (
        "does not resolve h2", "correct its /etc/hosts or DNS: getent hosts h2"
    )  # fmt: skip
    answers["h1"] = TaskReply(None, FinishedProcess(127, "", "sh: 1: exec: python3: not found"))
    assert [finding.level for finding in judge_tcp(hosts, answers, network)] == [Level.WARNING, Level.OK, Level.FAILURE]
    answers["h1"] = reply(h2="Connection refused", h3=None)
    answers["h2"] = reply(since=9, h1="Connection refused", h3=None)
    late = [finding for finding in judge_tcp(hosts[:2], answers, network) if finding.level is not Level.OK]
    assert [(finding.host, finding.code) for finding in late] == [
        ("h1", FindingCode.TCP_MISSED),
        ("h2", FindingCode.TCP_MISSED),
    ]


def test_a_report_folds_equal_findings_and_has_an_exit_code() -> None:
    well = [PreflightFinding(f"h{n}", "ssh", FindingCode.PASSED) for n in (1, 2, 3)]
    values = {"message": "a", "remedy": "b"}
    wrong = [PreflightFinding(f"h{n}", "files", FindingCode.UNREACHABLE, values) for n in (2, 3)]
    report = PreflightReport((*well, *wrong), {}, None, ("h1", None))
    assert report.exit_code == 5
    assert render_report(report, everything=False) == (
        "files  h[2-3]  FAILURE  a\n                        remedy: b\nh[1-3]: 2 failures\n"
    )
    assert render_lines(wrong) == ["hosts h[2-3]: a; b"]
    with pytest.raises(PreflightError):
        report.raise_failures()
    lost = report._replace(
        findings=(
            *report.findings,
            PreflightFinding("h4", "ssh", FindingCode.UNREACHABLE, {"message": "refused", "remedy": "c"}),
        ),
    )
    assert lost.exit_code == check_record(lost)["exit_code"] == 3
    with pytest.raises(UnreachableError, match="host h4: refused"):
        lost.raise_failures()
    rejected = (RejectedSubnet("172.17.0.0/16", "a bridge"),)
    network = Network(("10.0.0.0/16",), {"h1": ("eth0",)}, {"h1": "10.0.0.1"}, "the fastest", rejected)
    for some_report in (lost, report._replace(network=network)):
        validate(json.loads(json.dumps(check_record(some_report))), "check")
    assert (
        render_report(report._replace(findings=tuple(well)), everything=True)
        == "ssh  h[1-3]  ok\nh[1-3]: no problems\n"
    )


def test_only_known_checks() -> None:
    assert parse_checks(None) == set(NAMES)
    assert parse_checks("tcp, mpi") == {"tcp", "mpi"}
    with pytest.raises(InputError, match="unknown check 'x'; the checks are ssh, identity, shell"):
        parse_checks("tcp,x")


def test_every_code_renders() -> None:
    for code in FindingCode:
        fields = string.Formatter().parse(code.value.message + code.value.remedy)
        values = {field: 1.0 for _, field, _, _ in fields if field is not None and field != "host"}
        finding = PreflightFinding("h1", "mpi", code, values)
        assert finding.message
        assert "{" not in finding.message + finding.remedy


def test_every_problem_of_ssh_renders() -> None:
    for problem in SshProblem:
        fields = string.Formatter().parse(problem.value.message + problem.value.remedy)
        failure = SshFailure(problem, {field: 1.0 for _, field, _, _ in fields if field is not None})
        assert failure.message
        assert failure.remedy


def test_findings_that_differ_only_in_their_host_share_a_line() -> None:
    findings = [
        PreflightFinding(host, "names", FindingCode.OWN_NAME_UNKNOWN, {"name": name})
        for host, name in (("h1", "h1"), ("h2", "h2"), ("h3", "x"))
    ]
    assert [[finding.host for finding in group] for group in group_findings(findings)] == [["h1", "h2"], ["h3"]]


def test_equal_lines_share_a_row_whatever_was_measured() -> None:
    # Clocks that differ by less than the second that is shown, and scripts of one size with different contents.
    clocks = {"h1": facts(1), "h2": facts(2, clock=1700000005.6), "h3": facts(3, clock=1700000005.7)}
    digests = {"h1": FileDigest(9, 1), "h2": FileDigest(8, 2), "h3": FileDigest(8, 3)}
    hosts = {host: own._replace(program=digests[host]) for host, own in clocks.items()}
    request = WANTED._replace(program="train.py")
    interval = (1700000000.0, 1700000000.5)
    findings = judge(PreflightFacts(hosts, hosts["h1"], "h1", request, interval), frozenset({"clock", "files"}))
    problems = [finding for finding in findings if finding.level is Level.FAILURE]
    assert render_lines(problems) == [
        "hosts h[2-3]: train.py is another file: 8 bytes, here it has 9; copy it there: scp train.py h2:/work/",
        "hosts h[2-3]: its clock is 5 s ahead; start chrony or systemd-timesyncd there: timedatectl set-ntp true",
    ]


def test_names_that_lead_back_share_a_row() -> None:
    # The loopback address belongs to each host, the first of which is its owner.
    loopback = (Address("lo", "127.0.0.1", 8),)
    names = {"h1": ("10.0.0.1",), "h2": ("10.0.0.2",), "h3": ("127.0.0.1",)}
    hosts = {host: facts(number)._replace(names=names) for number, host in enumerate(("h1", "h2", "h3"), 1)}
    hosts = {host: own._replace(addresses=(*own.addresses, *loopback)) for host, own in hosts.items()}
    known = facts(1, addresses=hosts["h1"].addresses)
    findings = judge(PreflightFacts(hosts, known, "h1", WANTED, (0.0, 0.0)), frozenset({"names"}))
    problems = [finding for finding in findings if finding.code is FindingCode.NAME_OF_ITSELF]
    assert [[finding.host for finding in group] for group in group_findings(problems)] == [["h1", "h2"]]


def test_memory_limits_of_equal_hosts_make_equal_machines() -> None:
    # MemTotal differs by some KiB between equal hosts. The variable keeps parse_facts from treating the texts as equal.
    text = MACHINE + "/proc/meminfo:MemTotal: {} kB\n@memory 17179869184\n@env CUDA_VISIBLE_DEVICES 0\n"
    hosts = {
        host: parse_facts({"machine": text.format(kib), "own": OWN}, host)
        for host, kib in (("h1", 528000000), ("h2", 528000004))
    }
    first, second = (own.machine for own in hosts.values())
    assert first is not None
    assert first == second
    assert str(first.notes[0]) == "a cgroup allows 16.0 of 504 GiB of memory"


def test_an_interface_with_two_addresses_is_a_warning_for_open_mpi_4() -> None:
    second = Address("eth0", "10.8.0.2", 24)
    own = facts(2).addresses
    hosts = {
        "h1": facts(1, addresses=(*facts(1).addresses, Address("eth0", "fd00::1", 64))),
        "h2": facts(2, addresses=(*own, second)),
        "h3": facts(3, addresses=(*facts(3).addresses, second._replace(interface="eth1"))),
    }
    network = choose_network({host: host_facts.addresses for host, host_facts in hosts.items()})
    (finding,) = ambiguous_interfaces(hosts, network)
    assert (finding.host, finding.level) == ("h2", Level.WARNING)
    assert finding.message.startswith("eth0 has several addresses (10.0.0.2, 10.8.0.2), with which Open MPI 4.1 blocks")


def test_a_host_that_open_mpi_6_does_not_find_by_its_listed_name() -> None:
    found = {"h1": facts(1), "h2": facts(2, hostname="pod-2")}
    assert list(misnamed_hosts([*found], found, parse_program("(Open MPI) 5.0.11", "/opt/bin/mpirun", ""))) == []
    (finding,) = misnamed_hosts([*found], found, parse_program("(Open MPI) 6.0.0", "/opt/bin/mpirun", ""))
    assert (finding.host, finding.level, finding.check) == ("h2", Level.FAILURE, "mpi")
    assert finding.message == "has the host name pod-2: Open MPI 6.0.0 finds hosts only by that"
