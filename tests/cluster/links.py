"""Links of the test cluster, by iproute2: connect hosts to switches, and limit rates."""

from collections.abc import Iterable, Sequence

from tests.cluster.host import ClusterHost
from tests.cluster.namespaces import SWITCH, Namespaces, output, program

# IPv6 sends neighbour discovery over the links; without it the byte counters show the job alone.
NO_IPV6 = "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ ! -e $f ] || echo 1 >$f; done"


def ip(namespaces: Namespaces, name: str, lines: Iterable[str]) -> None:
    """Run ip commands in a namespace, all in one process."""
    output([*namespaces.as_root(name), program("ip"), "-batch", "-"], "\n".join(lines))


def limit(namespaces: Namespaces, name: str, links: Iterable[str], rate: str | None, burst: str) -> None:
    """Limit the sending rate of links to `rate`, a tc rate such as "100mbit"; None is no limit."""
    if rate:
        lines = (f"qdisc add dev {link} root tbf rate {rate} burst {burst} latency 50ms" for link in links)
        output([*namespaces.as_root(name), program("tc"), "-batch", "-"], "\n".join(lines))


# A filter that returns a class by the ports of a packet of TCP over IPv4: load both, xor, and take 4 bits.
BY_PORTS = "9,40 0 0 34,7 0 0 0,40 0 0 36,172 0 0 0,116 0 0 1,84 0 0 15,4 0 0 1,68 0 0 65536,22 0 0 0"
CLASSES = 16


def limit_flows(namespaces: Namespaces, name: str, link: str, rate: str | None, flow: str) -> None:
    """Limit the sending rate of a link, and that of each connection: those whose ports have the same bits share it."""
    lines = [f"qdisc add dev {link} root handle 1: htb default 1"]
    lines += [f"class add dev {link} parent 1: classid 1:100 htb rate {rate or flow}"]
    lines += [
        f"class add dev {link} parent 1:100 classid 1:{number:x} htb rate 1mbit ceil {flow}"
        for number in range(1, CLASSES + 1)
    ]
    lines += [f"filter add dev {link} parent 1: protocol ip bpf bytecode '{BY_PORTS}'"]
    output([*namespaces.as_root(name), program("tc"), "-batch", "-"], "\n".join(lines))


def wire(namespaces: Namespaces, hosts: Sequence[ClusterHost]) -> None:
    """Create a bridge per rack in SWITCH, joined to `spine` by up<rack>=dn<rack>, and connect the hosts to them."""
    output([*namespaces.as_root(SWITCH), "sh", "-c", NO_IPV6])
    lines = ["link add spine type bridge", "link set spine up"]
    for rack in sorted({host.rack for host in hosts}):
        lines += [
            f"link add br{rack} type bridge",
            f"link add up{rack} type veth peer name dn{rack}",
            f"link set up{rack} master br{rack} up",
            f"link set dn{rack} master spine up",
            f"link set br{rack} up",
        ]
    for host in hosts:
        eth0 = f"eth0 address {host.mac} netns {namespaces.pid(host.name)}"
        lines += [f"link add {host.name} type veth peer name {eth0}", f"link set {host.name} master br{host.rack} up"]
    ip(namespaces, SWITCH, lines)
    for host in hosts:
        ip(namespaces, host.name, ["link set lo up", f"addr add {host.ip_arguments}", "link set eth0 up"])
