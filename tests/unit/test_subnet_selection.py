"""The network of a job: addresses, the choice of a subnet with its reasons, and the variables."""

import subprocess

import pytest

from ddlrun.errors import InputError, PreflightError
from ddlrun.managers.openmpi.dialects import OpenMpi4, OpenMpi5
from ddlrun.managers.own import own_manager
from ddlrun.network.addresses import Address, parse_addresses
from ddlrun.network.subnet_selection import Network, choose_network
from ddlrun.network.variables import choose_variables, network_variables
from ddlrun.preflight.host_addresses import list_addresses
from tests.support import needs

BY_4, BY_5 = (kind("mpirun", "", "").network_variables for kind in (OpenMpi4, OpenMpi5))
LO = Address("lo", "127.0.0.1", 8, kind="virtual")
DOCKER = Address("docker0", "172.17.0.1", 16, kind="bridge")


def rejected(network: Network) -> dict[str, str]:
    return {subnet.subnet: subnet.reason for subnet in network.rejected}


def host(number: int, *more: Address, name: str = "eth0", speed: int = 1000) -> tuple[Address, ...]:
    return (LO, Address(name, f"10.0.0.{number}", 16, speed=speed), *more)


def test_the_addresses_of_this_machine_are_those_of_ip() -> None:
    needs.program("ip", "iproute2")
    lines = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout.splitlines()
    of_ip = [line.split()[1:4:2] for line in lines if not {"temporary", "deprecated", "tentative"} & {*line.split()}]
    found = parse_addresses(list_addresses())
    assert [[own.interface, f"{own.ip}/{own.prefix}"] for own in found] == of_ip
    assert Address("lo", "127.0.0.1", 8) in [address._replace(kind="device", speed=-1) for address in found]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "noise",
        "eth0",
        "eth0 nonsense up 1 device",
        "eth0 10.0.0.256/16 up 1 device",
        "eth0 10.0.0.1/33 up 1 device",
    ],
)
def test_noise_is_no_address(line: str) -> None:
    complete = "eth0 10.0.0.1/16 up 1000 device"
    assert parse_addresses([line, complete]) == (Address("eth0", "10.0.0.1", 16, speed=1000),)


def test_a_speed_that_is_no_number_is_unknown() -> None:
    assert parse_addresses(["eth0 10.0.0.1/16 up fast device"]) == (Address("eth0", "10.0.0.1", 16, speed=-1),)


def test_docker_has_the_same_address_everywhere() -> None:
    network = choose_network({"h1": host(1, DOCKER), "h2": host(2, DOCKER)})
    assert network.subnets == ("10.0.0.0/16",)
    assert network.addresses == {"h1": "10.0.0.1", "h2": "10.0.0.2"}
    assert network.reason == "the only usable subnet that all hosts share, 1 Gbit/s"
    assert rejected(network) == {
        "127.0.0.0/8": "loopback",
        "172.17.0.0/16": "docker0 is a bridge for containers or virtual machines",
    }
    assert network.needs_variables


def test_a_bridge_by_another_name_is_found_by_its_address() -> None:
    odd = DOCKER._replace(interface="lan0")
    network = choose_network({"h1": host(1, odd), "h2": host(2, odd)})
    assert rejected(network)["172.17.0.0/16"] == "lan0 is a bridge, and 172.17.0.1 is the address of h[1-2] alike"


@pytest.mark.parametrize(("name", "used"), [("br-0a1b2c3d4e5f", ()), ("br-ex", ("10.8.0.0/24",))])
def test_bridges_of_docker_are_known_by_name(name: str, used: tuple[str, ...]) -> None:
    bridges = {f"h{n}": (Address(name, f"10.8.0.{n}", 24, kind="bridge"),) for n in (1, 2)}
    assert choose_network(bridges).subnets == used


def test_link_local_addresses_serve_on_request() -> None:
    """Hosts that a cable connects, such as two DGX Sparks, have no others there."""
    hosts = {f"h{n}": host(n, Address("cable0", f"169.254.7.{n}", 16, speed=200_000)) for n in (1, 2)}
    assert choose_network(hosts).subnets == ("10.0.0.0/16",)
    assert choose_network(hosts, interfaces=("eth0", "cable0")).subnets == ("10.0.0.0/16",)
    assert choose_network(hosts, interfaces=("cable0",)).subnets == ("169.254.0.0/16",)
    assert choose_network(hosts, "169.254.0.0/16").addresses == {"h1": "169.254.7.1", "h2": "169.254.7.2"}
    with pytest.raises(PreflightError, match="no address on"):
        choose_network(hosts, interfaces=("lo",))


def test_link_local_addresses_of_bmcs_are_kept_from_mpi() -> None:
    """MPI takes usb0 of a BMC, with the same address on all hosts, for a network; its own default leaves out lo."""
    hosts = {f"h{n}": host(n, Address("usb0", "169.254.3.1", 24)) for n in (1, 2)}
    network = choose_network(hosts)
    assert rejected(network) == {"127.0.0.0/8": "loopback", "169.254.3.0/24": "link-local"}
    assert network.needs_variables


def test_a_single_subnet_needs_no_variables() -> None:
    network = choose_network({"h1": host(1), "h2": host(2)})
    assert network.subnets
    assert not network.needs_variables


def test_gloo_gets_the_interface_where_own_names_lead_to_loopback_addresses() -> None:
    network = choose_network({"h1": host(1), "h2": host(2)})._replace(own_names_mislead=True)
    assert (
        choose_variables(network, own_manager("").network_variables, {}, [], rdma=False)[0]["GLOO_SOCKET_IFNAME"]
        == "eth0"
    )


def test_the_fastest_subnet_is_as_fast_as_its_slowest_host() -> None:
    def fast(number: int, speed: int) -> Address:
        return Address("ib0", f"10.8.0.{number}", 24, speed=speed)

    network = choose_network({"h1": host(1, fast(1, 100_000)), "h2": host(2, fast(2, 25_000))})
    assert network.subnets == ("10.8.0.0/24",)
    assert network.reason == "the fastest that all hosts share, 25 Gbit/s"
    assert rejected(network)["10.0.0.0/16"] == "slower: 1 Gbit/s"
    network = choose_network({"h1": host(1, fast(1, 100_000)), "h2": host(2, fast(2, 100))})
    assert network.subnets == ("10.0.0.0/16",)


def test_a_subnet_that_a_host_is_not_on_or_that_is_down_is_rejected() -> None:
    fast = [Address("eth1", f"10.8.0.{n}", 24, speed=100_000) for n in (1, 2)]
    network = choose_network({"h1": host(1, *fast[:1]), "h2": host(2, *fast[1:]), "h3": host(3)})
    assert rejected(network)["10.8.0.0/24"] == "not on h3"
    network = choose_network({"h1": host(1, fast[0]), "h2": host(2, fast[1]._replace(up=False))})
    assert rejected(network)["10.8.0.0/24"] == "eth1 is down on h2"


def test_hosts_with_ipv6_alone() -> None:
    def ipv6(number: int) -> tuple[Address, ...]:
        return (Address("eth0", f"fe80::{number}", 64), Address("eth0", f"fd77::{number}", 64))

    network = choose_network({"h1": ipv6(1), "h2": ipv6(2)})
    assert network.subnets == ("fd77::/64",)
    assert network.addresses["h2"] == "fd77::2"
    assert not network.needs_variables  # MPI leaves out link-local addresses itself
    variables, notes = network_variables(network, BY_4)
    assert variables["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    assert notes == []


def test_ipv4_comes_before_ipv6_of_the_same_speed() -> None:
    addresses = {f"h{n}": (Address("eth0", f"fd77::{n}", 64), Address("eth0", f"10.0.0.{n}", 16)) for n in (1, 2)}
    assert choose_network(addresses).subnets == ("10.0.0.0/16",)


def routed(number: int, *more: Address, name: str = "eth0") -> tuple[Address, ...]:
    """Return the addresses of a cloud's host: its own has the prefix 32."""
    return (LO, Address(name, f"10.1.0.{number}", 32), *more)


def test_hosts_that_reach_each_other_by_routes() -> None:
    network = choose_network({"h1": routed(1, DOCKER), "h2": routed(2, DOCKER)})
    assert network.addresses == {"h1": "10.1.0.1", "h2": "10.1.0.2"}
    assert network.reason == "an address of each host, as they share no subnet"
    assert set(rejected(network)) == {"127.0.0.0/8", "172.17.0.0/16"}
    assert network_variables(network, BY_4)[0]["OMPI_MCA_oob_tcp_if_include"] == "eth0"
    assert not choose_network({"h1": routed(1), "h2": routed(2)}).needs_variables


def test_routed_interfaces_of_different_names_have_one_subnet_for_mpi() -> None:
    network = choose_network({"h1": routed(1, DOCKER), "h2": routed(2, DOCKER, name="ens5")})
    assert network_variables(network, BY_5)[0]["PRTE_MCA_prte_if_include"] == "10.1.0.0/30"
    between = Address("tap0", "10.1.0.3", 32)  # a subnet with both would have this address too
    network = choose_network({"h1": routed(1, between), "h2": routed(2, name="ens5")}, known=["10.1.0.1"])
    variables, _ = network_variables(network, BY_5)
    assert variables["OMPI_MCA_btl_tcp_if_exclude"] == "127.0.0.0/8,10.1.0.3/32"
    assert "PRTE_MCA_prte_if_exclude" not in variables  # at a list, its mpirun often crashes
    assert "OMPI_MCA_oob_tcp_if_exclude" in network_variables(network, BY_4)[0]


def test_the_address_of_a_hosts_name_comes_first() -> None:
    vpn, fast = Address("eth1", "10.9.0.1", 32, kind="virtual"), Address("eth1", "10.9.0.1", 32, speed=100_000)
    hosts = {"h1": routed(1, vpn), "h2": routed(2)}
    assert choose_network(hosts).addresses["h1"] == "10.1.0.1"
    assert choose_network({**hosts, "h1": routed(1, fast)}, known=["10.9.0.1"]).addresses["h1"] == "10.9.0.1"


def test_a_host_without_a_fit_address_is_left_to_mpi() -> None:
    network = choose_network({"h1": routed(1, DOCKER), "h2": (LO, DOCKER)})
    assert network.subnets == ()
    assert network.reason == "left to MPI: the hosts share no subnet; name one: --network"
    assert network_variables(network, BY_5) == ({}, [])
    hosts = {"h1": routed(1), "h2": routed(2)}
    assert choose_network(hosts, "10.1.0.0/16").subnets == ("10.1.0.0/16",)


def test_options_overrule_the_choice() -> None:
    hosts = {"h1": host(1, Address("eth1", "10.8.0.1", 24)), "h2": host(2, Address("ens3", "10.8.0.2", 24))}
    by_cidr = choose_network(hosts, "10.8.0.0/16")
    assert by_cidr.subnets == ("10.8.0.0/16",)
    assert by_cidr.interfaces == {"h1": ("eth1",), "h2": ("ens3",)}
    by_name = choose_network(hosts, interfaces=("eth1", "ens3"))
    assert by_name.subnets == ("10.8.0.0/24",)
    assert by_name.reason == "--network eth1,ens3"
    assert rejected(by_name)["10.0.0.0/16"] == "not requested"


def test_a_host_without_an_address_there_is_named() -> None:
    hosts = {"h1": host(1, Address("eth1", "10.8.0.1", 24)), "h2": host(2), "h3": host(3)}
    with pytest.raises(PreflightError, match=r"--network 10.8.0.0/24: no address on h\[2-3\]; h2 has eth0 10.0.0.2/16"):
        choose_network(hosts, "10.8.0.0/24")
    with pytest.raises(PreflightError, match="--network eth1: no address on"):
        choose_network(hosts, interfaces=("eth1",))
    with pytest.raises(InputError, match="is not a subnet; write it"):
        choose_network(hosts, "10.8/x")


def test_variables_of_both_majors() -> None:
    network = choose_network({"h1": host(1, DOCKER), "h2": host(2, DOCKER)})
    assert network_variables(network, BY_4)[0] == {
        "OMPI_MCA_btl_tcp_if_include": "10.0.0.0/16",
        "OMPI_MCA_oob_tcp_if_include": "10.0.0.0/16",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "UCX_NET_DEVICES": "eth0",
    }
    variables, _ = network_variables(network, BY_5, rdma=True)
    assert variables["PRTE_MCA_prte_if_include"] == "10.0.0.0/16"
    assert "UCX_NET_DEVICES" not in variables


def test_names_that_differ_by_host_are_listed_by_host() -> None:
    network = choose_network({"h1": host(1, DOCKER), "h2": host(2, DOCKER, name="ens3")})
    variables, notes = network_variables(network, BY_4)
    assert notes[0].startswith("GLOO_SOCKET_IFNAME: set on each host")
    assert variables["NCCL_SOCKET_IFNAME"] == "=ens3,eth0"
    assert "GLOO_SOCKET_IFNAME" not in variables
    assert variables["DDLRUN_IFNAMES"] == "h1=eth0 h2=ens3"


def test_ipv6_with_different_interface_names_is_left_to_mpi_with_a_note() -> None:
    addresses = {"h1": (Address("eth0", "fd77::1", 64),), "h2": (Address("ens3", "fd77::2", 64),)}
    variables, notes = network_variables(choose_network(addresses), BY_5)
    assert set(variables) == {"NCCL_SOCKET_IFNAME", "DDLRUN_IFNAMES"}
    assert "left to MPI" in notes[0]


def test_one_host_needs_nothing() -> None:
    assert network_variables(choose_network({"h1": host(1, DOCKER)}), BY_4) == ({}, [])


def test_settings_of_the_user_or_the_site_stay() -> None:
    network = choose_network({"h1": host(1, DOCKER), "h2": host(2, DOCKER)})
    mine = {"NCCL_SOCKET_IFNAME": "ib0", "OMPI_MCA_btl_tcp_if_exclude": "docker0,lo"}
    variables, notes = choose_variables(network, BY_4, mine, (), rdma=True)
    assert set(variables) == {"OMPI_MCA_oob_tcp_if_include", "GLOO_SOCKET_IFNAME"}
    assert notes == ["NCCL_SOCKET_IFNAME: left as you set it", "OMPI_MCA_btl_tcp_if_exclude: left as you set it"]
    variables, notes = choose_variables(network, BY_5, {}, ("--mca", "btl_tcp_if_include", "eth0"), rdma=False)
    assert set(variables) == {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES"}
    assert notes == ["tcp_if_include or tcp_if_exclude in --mpi-args or an MCA file: left as you set it"]
    assert len(choose_variables(network, BY_5, {}, ("# btl_tcp_if_include = eth0\nbtl = ^x",), rdma=False)[0]) == 5


def test_nothing_is_set_where_mpi_cannot_choose_otherwise() -> None:
    plain = {"h1": host(1), "h2": host(2)}
    assert (
        choose_variables(choose_network(plain), BY_5, {}, (), rdma=False)
        == choose_variables(None, BY_5, {}, (), rdma=False)
        == ({}, [])
    )
    assert (
        choose_variables(choose_network(plain, "10.0.0.0/8"), BY_5, {}, (), rdma=False)[0]["PRTE_MCA_prte_if_include"]
        == "10.0.0.0/8"
    )


def test_daemons_are_left_alone_where_mpirun_is_elsewhere() -> None:
    network = choose_network({"h1": host(1, DOCKER), "h2": host(2, DOCKER)})._replace(daemons=False)
    assert "OMPI_MCA_oob_tcp_if_include" not in network_variables(network, BY_4)[0]
