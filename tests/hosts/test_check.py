"""Each check fails on one host of four: real sshd, real mounts, real routes. Others stay as they are."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cluster import links
from tests.cluster.cluster import Cluster
from tests.cluster.namespaces import program
from tests.conftest import MPIRUNS, launch_line
from tests.support.json_schemas import validate

pytestmark = pytest.mark.openmpi(5)

DDLRUN = [sys.executable, "-m", "ddlrun"]
SHM = "/dev/shm"  # noqa: S108 - a mount point
WELL = "h[1-4]: no problems; network 10.77.0.0/16\n"


def check(cluster: Cluster, folder: Path, *options: str) -> CompletedProcess[str]:
    return cluster.run("h1", [*DDLRUN, "check", "h[1-4]", *options], cwd=folder)


@contextmanager
def mounted(cluster: Cluster, host: str, target: Path | str, *how: str) -> Iterator[None]:
    """Mount over a path on one host alone."""
    cluster.administer(host, ["mount", *how, str(target)])
    try:
        yield
    finally:
        cluster.administer(host, ["umount", "-l", str(target)])


@contextmanager
def instead(path: Path, text: str) -> Iterator[None]:
    """Give a file another text for a while; it stays the same file, as it may be mounted."""
    before = path.read_text() if path.exists() else None
    path.write_text(text)
    try:
        yield
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before)


def one_row(done: CompletedProcess[str], code: int, row: Sequence[str], remedy: str) -> None:
    """Hold that a check failed on one host and nothing else did."""
    assert done.returncode == code, done.stdout + done.stderr
    first, second, last = done.stdout.splitlines()
    assert first.split(maxsplit=3)[:3] == list(row[:3]), done.stdout
    assert row[3] in first
    assert second.strip().startswith("remedy: ")
    assert remedy in second
    assert last.startswith("h[1-4]: 1 ")


def test_a_cluster_that_is_well(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    done = check(cluster, tmp_path, "--mpirun", mpirun, "--script", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, WELL, "")
    done = check(cluster, tmp_path, "--mpirun", mpirun, "--json")
    findings = json.loads(done.stdout)["findings"]
    assert {one["level"] for one in findings} == {"ok"}
    assert {(one["host"], one["check"]) for one in findings} >= {(f"h{n}", "tcp") for n in range(1, 5)}


def test_sshd_is_stopped(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.stopped("h3"):
        done = check(cluster, tmp_path)
    one_row(done, 3, ["ssh", "h3", "FAILURE", "port 22: Connection refused"], "try: ssh h3 true (start sshd there")


@pytest.mark.extra
def test_the_link_is_cut(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.cut("h3"):
        done = check(cluster, tmp_path, "--start-timeout", "10", "--checks", "ssh,names")
    one_row(done, 3, ["ssh", "h3", "FAILURE", ""], "does a firewall drop port 22?")


def test_the_host_key_is_unknown(cluster: Cluster, tmp_path: Path) -> None:
    path = cluster.known_hosts("h1")
    known = "".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("h3"))
    with instead(path, known):
        done = check(cluster, tmp_path)
        assert path.read_text() == known  # it is never accepted
    one_row(done, 3, ["ssh", "h3", "FAILURE", "known_hosts has no key of h3"], "ssh h3 once by hand, and compare")


@pytest.mark.extra
def test_the_host_key_has_changed(cluster: Cluster, tmp_path: Path) -> None:
    path = cluster.known_hosts("h1")
    lines = {line.split(",")[0]: line.split() for line in path.read_text().splitlines()}
    lines["h3"][1:] = lines["h2"][1:]
    with instead(path, "".join(f"{' '.join(words)}\n" for words in lines.values())):
        done = check(cluster, tmp_path)
    one_row(done, 3, ["ssh", "h3", "FAILURE", "host key is not the one in known_hosts"], "ssh-keygen -R h3")


@pytest.mark.extra
def test_the_key_is_not_accepted(cluster: Cluster, tmp_path: Path) -> None:
    with instead(cluster.known_hosts("h3").with_name("id.pub"), ""):
        done = check(cluster, tmp_path)
    one_row(done, 3, ["ssh", "h3", "FAILURE", "Permission denied"], "ssh-copy-id h3")


@pytest.mark.extra
def test_a_name_that_nobody_knows_and_no_ssh_client(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("h1", [*DDLRUN, "check", "h[1-2],nowhere"], cwd=tmp_path)
    assert done.returncode == 3
    assert "Could not resolve hostname nowhere" in done.stdout
    assert "remedy: correct the name, or add it to /etc/hosts or DNS" in done.stdout
    with mounted(cluster, "h1", program("ssh"), "--bind", "/dev/null"):
        done = check(cluster, tmp_path)
    assert done.returncode == 3
    assert "remedy: install openssh-client on this machine" in done.stdout


@pytest.mark.extra
def test_the_shell_is_noisy(cluster: Cluster, tmp_path: Path) -> None:
    with instead(cluster.known_hosts("h3").with_name("sshrc"), "echo 'Welcome to h3'\n"):
        done = check(cluster, tmp_path)
    one_row(done, 0, ["shell", "h3", "WARNING", "prints 'Welcome to h3', also into"], "case $- in *i*)")


@pytest.mark.extra
def test_a_terminal_that_ssh_config_asks_for(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    config = cluster.known_hosts("h1").with_name("ssh_config")
    (tmp_path / "train.py").write_text("print()\n")
    with instead(config, f"{config.read_text()}  RequestTTY force\n"):
        done = check(cluster, tmp_path, "--mpirun", mpirun, "--script", "train.py")
    assert (done.returncode, done.stdout) == (0, WELL), done.stderr


def test_a_name_is_wrong_on_one_host(cluster: Cluster, tmp_path: Path) -> None:
    path = cluster.known_hosts("h3").parents[1] / "hosts"
    with instead(path, path.read_text().replace("10.77.0.2 h2", "10.77.0.1 h2")):
        done = check(cluster, tmp_path)
    one_row(done, 5, ["names", "h3", "FAILURE", "resolves h2 to 10.77.0.1, which is h1"], "getent hosts h2")
    with instead(path, path.read_text().replace("10.77.0.2 h2", "")):
        done = check(cluster, tmp_path)
    one_row(done, 5, ["names", "h3", "FAILURE", "does not resolve h2"], "/etc/hosts or DNS")
    with instead(path, path.read_text().replace("10.77.1.1 h3", "127.0.1.1 h3")):
        done = check(cluster, tmp_path)
    one_row(done, 0, ["names", "h3", "WARNING", "its own name h3 to 127.0.1.1"], "instead of 127.0.1.1")


SAME_HOST = "is the same host as h2; its own name is h2"


@pytest.mark.openmpi(4, 5)
def test_a_name_and_its_address(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    done = cluster.run("h1", [*DDLRUN, "check", "h1,10.77.0.2,h2", "--mpirun", mpirun], cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (5, f"identity  10.77.0.2  FAILURE  {SAME_HOST}")
    assert len(done.stdout.splitlines()) == 3
    argv = launch_line(mpirun, tmp_path, "-H", "h2:1,10.77.0.2:1", "--output", "no-tag")
    done = cluster.run("h1", [*argv, "hostname"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith(f"ddlrun: error: host 10.77.0.2: {SAME_HOST}; name each host once")
    assert len(done.stderr.splitlines()) == 1
    done = cluster.run("h1", [*argv, "--checks", "none", "--dry-run", "hostname"], cwd=tmp_path)
    assert f"ddlrun: warning: host 10.77.0.2: {SAME_HOST}; the ranks of both share its cores" in done.stderr


@contextmanager
def leading(name: str, host: str, cluster: Cluster) -> Iterator[None]:
    """Let a host's name lead to another host on h1, by ssh, too."""
    keys = cluster.known_hosts("h1")
    lines = {line.split(",")[0]: line.split() for line in keys.read_text().splitlines()}
    lines[name] = [name, *lines[host][1:]]
    known = "".join(f"{' '.join(words)}\n" for words in lines.values())
    names = keys.parents[1] / "hosts"
    text = names.read_text()
    address = {row.split()[1]: row.split()[0] for row in text.splitlines() if row}
    with instead(keys, known), instead(names, text.replace(f"{address[name]} {name}", f"{address[host]} {name}")):
        yield


@pytest.mark.extra
def test_a_name_that_leads_to_a_host_that_is_not_listed(cluster: Cluster, tmp_path: Path) -> None:
    with leading("h3", "h4", cluster):
        done = cluster.run("h1", [*DDLRUN, "check", "h1,h3"], cwd=tmp_path)
    text = "is h4, which resolves h3 to 10.77.1.1, not to one of its own addresses (10.77.1.2)"
    assert (done.returncode, done.stdout.splitlines()[0]) == (5, f"names  h3  FAILURE  {text}"), done.stderr


@pytest.mark.extra
def test_a_name_that_leads_to_another_host(cluster: Cluster, tmp_path: Path) -> None:
    with leading("h3", "h2", cluster):
        done = check(cluster, tmp_path)
        one_row(done, 5, ["identity", "h3", "FAILURE", SAME_HOST], "getent hosts h3")
        argv = [
            *DDLRUN,
            "launch",
            "-H",
            "h[1-3]:1",
            "--run-dir",
            str(tmp_path / "run"),
            "--spare-hosts",
            "h4",
            "hostname",
        ]
        done = cluster.run("h1", argv, cwd=tmp_path)
    assert (done.returncode, "h4" in done.stdout) == (0, True), done.stderr
    assert f"h4 takes the place of h3: {SAME_HOST}" in done.stderr


@pytest.mark.extra
def test_agents_need_a_python_and_no_mpi(cluster: Cluster, tmp_path: Path) -> None:
    on_path = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    with ExitStack() as stack:
        for path in {Path(name).resolve() for name in (sys.executable, on_path, MPIRUNS[5]) if name is not None}:
            stack.enter_context(mounted(cluster, "h3", path, "--bind", "/dev/null"))
        done = check(cluster, tmp_path, "--process-manager", "ddlrun", "--checks", "mpi,agent")
    one_row(done, 5, ["agent", "h3", "FAILURE", "nor python3 can be run"], "install Python 3.8 or later there")


@pytest.mark.extra
def test_open_mpi_is_missing_on_one_host(cluster: Cluster, major: int, mpirun: str, tmp_path: Path) -> None:
    daemon = Path(mpirun).with_name({4: "orted", 5: "prted"}[major])
    with mounted(cluster, "h3", daemon, "--bind", "/dev/null"):
        done = check(cluster, tmp_path, "--mpirun", mpirun)
    one_row(
        done,
        5,
        ["mpi", "h3", "FAILURE", f"{daemon}, which mpirun starts by this path"],
        "install the same Open MPI at the same path",
    )
    other = MPIRUNS[9 - major]
    with mounted(cluster, "h3", Path(mpirun).resolve(), "--bind", other):
        done = check(cluster, tmp_path, "--mpirun", mpirun)
    one_row(done, 5, ["mpi", "h3", "FAILURE", "here it is 'mpirun (Open MPI)"], "install the same version")


@pytest.mark.extra
def test_python_is_missing_on_one_host(cluster: Cluster, tmp_path: Path) -> None:
    with mounted(cluster, "h3", Path(sys.executable).resolve(), "--bind", "/dev/null"):
        done = check(cluster, tmp_path)
    one_row(
        done, 5, ["python", "h3", "FAILURE", f"{sys.executable} does not exist"], "a file system that all hosts share"
    )


@pytest.mark.extra
def test_the_script_differs_on_one_host(cluster: Cluster, tmp_path: Path) -> None:
    (script := tmp_path / "train.py").write_text("print(1)\n")
    (other := tmp_path / "other").write_text("print(2)\n")
    with mounted(cluster, "h3", script, "--bind", str(other)):
        done = check(cluster, tmp_path, "--script", "train.py")
        one_row(done, 5, ["files", "h3", "FAILURE", "train.py differs from the one here"], f"h3:{tmp_path}/")
        argv = [*DDLRUN, "launch", "-H", "h[1-4]:1", "--run-dir", str(tmp_path / "run"), "train.py"]
        done = cluster.run("h1", argv, cwd=tmp_path)
        assert done.returncode == 5
        assert done.stderr.startswith("ddlrun: error: host h3: train.py differs from the one here")
        assert not (tmp_path / "run").exists()
        argv[-1:-1] = ["--quiet", "--output", "no-tag", "--checks", "mpi"]
        done = cluster.run("h1", argv, cwd=tmp_path)
        assert (done.returncode, sorted(done.stdout.split())) == (0, ["1", "1", "1", "2"])
    other.write_text("print(22)\n")
    with mounted(cluster, "h3", script, "--bind", str(other)):
        done = check(cluster, tmp_path, "--script", "train.py")
    one_row(done, 5, ["files", "h3", "FAILURE", "another file: 10 bytes, here it has 9"], "copy it there")


@pytest.mark.extra
def test_the_working_folder_is_missing_on_one_host(cluster: Cluster, tmp_path: Path) -> None:
    (folder := tmp_path / "a 'b' $c").mkdir()
    with mounted(cluster, "h3", tmp_path, "-t", "tmpfs", "tmpfs"):
        done = check(cluster, folder)
    one_row(done, 5, ["files", "h3", "FAILURE", f"working folder {folder} does not exist"], "copy it there")
    assert check(cluster, folder).stdout == WELL


@pytest.mark.extra
def test_shared_memory_and_temporary_files_need_room(cluster: Cluster, tmp_path: Path) -> None:
    with mounted(cluster, "h3", SHM, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        done = check(cluster, tmp_path)
    one_row(done, 5, ["limits", "h3", "FAILURE", f"{SHM} has 1 MiB free, 64 MiB are needed"], "--shm-size=8g")
    temporary = next(host for host in cluster.hosts if host.name == "h3").environment["TMPDIR"]
    with mounted(cluster, "h3", temporary, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        done = check(cluster, tmp_path)
    one_row(done, 5, ["disk", "h3", "FAILURE", f"{temporary} has 1 MiB free"], "TMPDIR")


@pytest.mark.extra
def test_a_process_of_an_earlier_run_is_left(cluster: Cluster, tmp_path: Path) -> None:
    start = "DDLRUN_RUN=old-7 setsid sleep 1000 >/dev/null 2>&1 & echo $!"
    pid = int(cluster.run("h3", ["sh", "-c", start], check=True).stdout)
    try:
        done = check(cluster, tmp_path)
    finally:
        os.kill(pid, 9)
    one_row(done, 0, ["leftovers", "h3", "WARNING", f"run old-7 left process {pid} (sleep 1000)"], "ddlrun clean h3")


@pytest.mark.extra
def test_one_direction_is_blocked(cluster: Cluster, tmp_path: Path) -> None:
    rule = "to 10.77.0.1 ipproto tcp dport 1024-32000 unreachable"
    links.ip(cluster.namespaces, "h3", [f"rule add {rule}"])
    try:
        done = check(cluster, tmp_path)
    finally:
        links.ip(cluster.namespaces, "h3", [f"rule del {rule}"])
    what = "cannot connect to h1 on 10.77.0.0/16: Network is unreachable (the other direction works)"
    one_row(done, 5, ["tcp", "h3", "FAILURE", what], "open TCP ports 1024-65535")


@pytest.mark.extra
def test_the_hosts_must_reach_mpirun_where_it_takes_no_part(cluster: Cluster, tmp_path: Path) -> None:
    rule = "to 10.77.0.1 ipproto tcp dport 1024-32000 unreachable"
    links.ip(cluster.namespaces, "h3", [f"rule add {rule}"])
    try:
        done = cluster.run("h1", [*DDLRUN, "check", "h[2-4]"], cwd=tmp_path)
    finally:
        links.ip(cluster.namespaces, "h3", [f"rule del {rule}"])
    assert done.returncode == 5
    assert done.stdout.startswith("tcp  h3  FAILURE  cannot connect to h1 on 10.77.0.0/16: Network is unreachable (the")
    assert done.stdout.splitlines()[-1] == "h[2-4]: 1 failure; network 10.77.0.0/16"


@pytest.mark.extra
def test_both_directions_are_blocked(cluster: Cluster, tmp_path: Path) -> None:
    rule = "to 10.77.0.2 ipproto tcp unreachable"
    links.ip(cluster.namespaces, "h3", [f"rule add {rule}"])
    try:
        done = check(cluster, tmp_path)
    finally:
        links.ip(cluster.namespaces, "h3", [f"rule del {rule}"])
    assert done.returncode == 5
    assert "cannot connect to h3 on 10.77.0.0/16: timed out" in done.stdout
    assert "cannot connect to h2 on 10.77.0.0/16: Network is unreachable" in done.stdout
    assert "other direction" not in done.stdout


@pytest.mark.extra
def test_a_host_that_starts_late(cluster: Cluster, tmp_path: Path) -> None:
    """The checks of connections start 9 s later on one host than on the others."""
    with instead(cluster.known_hosts("h3").with_name("sshrc"), "sleep 9\n"):
        done = check(cluster, tmp_path, "--checks", "ssh,tcp", "--start-timeout", "300")
    assert (done.returncode, done.stdout) == (0, WELL), done.stderr


@pytest.mark.busy
@pytest.mark.extra
@pytest.mark.openmpi(5)
def test_launches_at_the_same_time(cluster: Cluster, mpirun: str, tmp_path: Path) -> None:
    jobs = []
    for number in range(6):
        argv = launch_line(
            mpirun, tmp_path / str(number), "--quiet", "--output", "no-tag", "-H", "h[1-4]:1", "hostname"
        )
        jobs.append(
            subprocess.Popen(
                cluster.argv("h1", argv, cwd=tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    outputs = [job.communicate()[0] for job in jobs]
    assert [sorted(output.split()) for output in outputs] == [["h1", "h2", "h3", "h4"]] * 6, outputs
    assert {job.returncode for job in jobs} == {0}


@pytest.mark.extra
def test_many_hosts_try_their_neighbours(tmp_path: Path) -> None:
    with Cluster(hosts_per_rack=12, racks=1) as cluster:
        rules = [f"to 10.77.0.{to} ipproto tcp dport 1024-32000 unreachable" for to in (6, 9)]
        links.ip(cluster.namespaces, "h5", [f"rule add {rule}" for rule in rules])
        done = cluster.run("h1", [*DDLRUN, "check", "h[1-12]"], cwd=tmp_path)
        assert done.returncode == 5
        assert done.stdout.startswith("tcp  h5  FAILURE  cannot connect to h6 on 10.77.0.0/16: Network is unreachable")
        assert done.stdout.splitlines()[-1] == "h[1-12]: 1 failure; network 10.77.0.0/16"


@pytest.mark.extra
def test_a_host_that_is_not_on_the_wanted_network(cluster: Cluster, tmp_path: Path) -> None:
    done = check(cluster, tmp_path, "--network", "10.77.0.0/24")
    assert done.returncode == 5
    assert "--network 10.77.0.0/24: no address on h[3-4]" in done.stdout
    done = check(cluster, tmp_path, "--network", "10.77/x")
    assert (done.returncode, done.stdout) == (2, "")
    done = check(cluster, tmp_path, "--network", "eth0,ens3", "--json")
    report = json.loads(done.stdout)
    validate(report, "check")
    assert report["network"]["subnets"] == ["10.77.0.0/16"]
    done = check(cluster, tmp_path, "--checks", "tpc")
    message = "ddlrun: error: --checks: unknown check 'tpc' (did you mean tcp?)"
    assert (done.returncode, done.stderr.partition(";")[0]) == (2, message)


RANK = [sys.executable, str(Path(__file__).with_name("allreduce_ranks.py"))]


def launch(cluster: Cluster, mpirun: str, folder: Path, *options: str) -> CompletedProcess[str]:
    argv = launch_line(mpirun, folder, "-H", "h1:1,h2:1", "--quiet", "--output", "no-tag")
    return cluster.run("h1", [*argv, *options, *RANK], cwd=folder)


DOCKER = ["link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up"]


@pytest.mark.extra
@pytest.mark.parametrize("name", ["eth0", "ens5"])
def test_hosts_of_a_cloud_reach_each_other_by_routes(mpirun: str, tmp_path: Path, name: str) -> None:
    with Cluster(hosts_per_rack=2, racks=1) as cluster:
        for host, own in (("h1", "eth0"), ("h2", name)):
            address = f"10.77.0.{host[1:]}/32"
            rename = ["link set eth0 down", f"link set eth0 name {own}", f"link set {own} up"] if own != "eth0" else []
            route = f"route replace 10.77.0.0/16 dev {own} src {address[:-3]}"
            lines = [*rename, f"addr flush dev {own} scope global", f"addr add {address} dev {own}", route, *DOCKER]
            links.ip(cluster.namespaces, host, lines)
        done = launch(cluster, mpirun, tmp_path)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["sum"] for line in done.stdout.splitlines()] == [3, 3]


@pytest.mark.extra
@pytest.mark.parametrize("options", [[], ["--tcp"]])
def test_docker_with_the_same_address_everywhere_is_left_out(mpirun: str, tmp_path: Path, options: list[str]) -> None:
    with Cluster(hosts_per_rack=2, racks=1) as cluster:
        for host in ("h1", "h2"):
            links.ip(cluster.namespaces, host, DOCKER)
        done = launch(cluster, mpirun, tmp_path, *options)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["sum"] for line in done.stdout.splitlines()] == [3, 3]
        plan = json.loads((tmp_path / "run" / "plan.json").read_text())
        assert plan["variables"]["OMPI_MCA_btl_tcp_if_include"] == "10.77.0.0/16"
        assert "not 172.17.0.0/16: docker0 is a bridge" in plan["reasons"]["network"]


@pytest.mark.extra
def test_link_local_addresses_serve_on_request(mpirun: str, tmp_path: Path) -> None:
    with Cluster(hosts_per_rack=2, racks=1) as cluster:
        for host in ("h1", "h2"):
            address = f"addr add 169.254.7.{host[1:]}/16 dev cable0"
            lines = ["link add cable0 link eth0 type macvlan", address, "link set cable0 up"]
            links.ip(cluster.namespaces, host, lines)
        done = launch(cluster, mpirun, tmp_path, "--network", "cable0")
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["sum"] for line in done.stdout.splitlines()] == [3, 3]


@pytest.mark.extra
def test_a_network_that_drops_large_packets_is_found(tmp_path: Path) -> None:
    """The hosts have jumbo frames on cable0, and what joins them has not."""
    with Cluster(hosts_per_rack=2, racks=1) as cluster:
        for host in ("h1", "h2"):
            route = f"route change 10.77.0.0/16 dev eth0 src 10.77.0.{host[1:]} mtu lock 1500 advmss 1460"  # ssh works
            cable = ["link add cable0 link eth0 type macvlan", f"addr add 10.9.0.{host[1:]}/24 dev cable0"]
            lines = ["link set eth0 mtu 9000", route, *cable, "link set cable0 up"]
            links.ip(cluster.namespaces, host, lines)
        done = cluster.run("h1", [*DDLRUN, "check", "h1,h2", "--network", "10.9.0.0/24"], cwd=tmp_path)
        assert (done.returncode, done.stdout.count("check that the MTU")) == (5, 2), done.stdout + done.stderr


@pytest.mark.extra
def test_the_plan_says_what_the_hosts_talk_over(cluster: Cluster, tmp_path: Path) -> None:
    ask = [*DDLRUN, "launch", "-H", "h[2-4]:1", "--dry-run", "true"]
    done = cluster.run("h1", ask, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = next(line for line in done.stdout.splitlines() if line.startswith("network: "))
    assert "10.77.0.0/16: the only usable subnet that all hosts share" in shown
    assert shown.endswith("not 127.0.0.0/8: loopback; left to MPI")
    ask[-1:-1] = ["--network", "10.77.0.0/16", "--mpirun", MPIRUNS[5]]
    done = cluster.run("h1", ask, cwd=tmp_path)
    assert "PRTE_MCA_prte_if_include=10.77.0.0/16" in done.stdout
    ask[-1:-1] = ["--network", "10.78.0.0/16"]
    done = cluster.run("h1", ask, cwd=tmp_path)
    assert done.returncode == 5
    assert "--network 10.78.0.0/16: no address on h[2-4]; h2 has eth0 10.77.0.2/16" in done.stderr


@pytest.mark.extra
def test_hosts_with_ipv6_alone(mpirun: str, major: int, tmp_path: Path) -> None:
    with Cluster(hosts_per_rack=2, racks=1, ipv6=True) as cluster:
        done = cluster.run("h1", [*DDLRUN, "check", "h[1-2]", "--mpirun", mpirun], cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "h[1-2]: no problems; network fd77::/64\n")
        done = launch(cluster, mpirun, tmp_path, "--network", "fd77::/16")
        if major == 6:
            assert done.returncode == 139
            assert "mpirun crashed, as Open MPI 6 needs an IPv4 address unless it was built with" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            assert [json.loads(line)["sum"] for line in done.stdout.splitlines()] == [3, 3]
        line = [*DDLRUN, "launch", "--process-manager", "ddlrun", "-H", "[fd77::1:1]:1,[fd77::1:2]:1"]
        done = cluster.run("h1", [*line, "sh", "-c", "echo $MASTER_ADDR $DDLRUN_RANK"], cwd=tmp_path)
        assert {line.partition(" ")[2] for line in done.stdout.splitlines()} == {"fd77::1:1 0", "fd77::1:1 1"}
