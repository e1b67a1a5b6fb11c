"""The sockets of this host, as the kernel lists them."""

import socket

import pytest

from ddlrun.keeper.tcp_connections import list_ports


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_ports_of_servers_and_connections_are_in_use(family: socket.AddressFamily, address: str) -> None:
    with socket.create_server((address, 0), family=family) as server:
        listens = server.getsockname()[1]
        assert listens in list_ports()
        with socket.create_connection((address, listens)) as client:
            assert {listens, client.getsockname()[1]} <= list_ports()
