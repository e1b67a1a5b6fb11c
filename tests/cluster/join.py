"""Join this network namespace to that of another process: python join.py ADDRESS[/BITS] [PID].

With PID a pair of eth0 is created, one here and one there. In both cases lo and eth0 of this namespace are brought up;
without PID, when the other end is up already, the end of this program says that eth0 can be used.
It needs pyroute2 alone, where the test cluster uses iproute2.
"""

import ipaddress
import sys
import time

from pyroute2 import IPRoute


def main() -> None:
    """Create the pair if a process is given, and set up this end."""
    interface = ipaddress.ip_interface(sys.argv[1])
    with IPRoute() as route:
        if sys.argv[2:]:
            peer = {"ifname": "eth0", "net_ns_pid": int(sys.argv[2])}
            route.link("add", ifname="eth0", kind="veth", peer=peer)
        (loopback,), (eth0,) = (route.link_lookup(ifname=name) for name in ("lo", "eth0"))
        route.addr("add", index=eth0, address=str(interface.ip), prefixlen=interface.network.prefixlen)
        for index in (loopback, eth0):
            route.link("set", index=index, state="up")
        while not sys.argv[2:] and route.get_links(eth0)[0].get_attr("IFLA_OPERSTATE") != "UP":
            time.sleep(0.01)


if __name__ == "__main__":
    main()
