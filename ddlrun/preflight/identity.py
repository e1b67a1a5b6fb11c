"""Check of hosts that are listed under two names.

Two names lead to the same host if the replies have the same boot id, the same namespaces and the same host name, and if
the addresses of one reply are among those of the other. Each of these alone is not enough: containers on one kernel
share its boot id, virtual machines that continue from one snapshot also share namespaces and the host name, and an
interface may appear between two replies. The machine id is not compared, as clones of a machine keep it.
"""

from collections.abc import Iterator, Mapping, Sequence

from ddlrun.preflight.facts import HostFacts, KernelInstance
from ddlrun.preflight.findings import FindingCode, PreflightFinding

CHECK = "identity"


def find_aliases(hosts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return the name to keep for each superfluous name of a host: the host's own name if it is listed, or the first.

    Hosts whose kernel is unknown have no aliases.
    """
    aliases: dict[str, str] = {}
    for names in _group_by_kernel(hosts):
        for group in _group_by_addresses(names, hosts):
            kept = _preferred(group, hosts[group[0]].hostname)
            aliases |= {name: kept for name in group if name != kept}
    return {name: aliases[name] for name in hosts if name in aliases}


def _group_by_kernel(hosts: Mapping[str, HostFacts]) -> list[list[str]]:
    """Return the names with the same known kernel and host name."""
    groups: dict[tuple[KernelInstance, str], list[str]] = {}
    for name, facts in hosts.items():
        if facts.kernel is not None:
            groups.setdefault((facts.kernel, facts.hostname), []).append(name)
    return list(groups.values())


def _group_by_addresses(names: Sequence[str], hosts: Mapping[str, HostFacts]) -> list[list[str]]:
    """Return the names whose addresses may be those of one host."""
    groups: list[list[str]] = []
    for name in names:
        group = next((group for group in groups if _may_be_same(hosts[group[0]], hosts[name])), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def _may_be_same(first: HostFacts, second: HostFacts) -> bool:
    """Return True unless each of two hosts has an address that the other one lacks."""
    addresses = [{address.ip for address in facts.addresses} for facts in (first, second)]
    return addresses[0] <= addresses[1] or addresses[1] <= addresses[0]


def _preferred(names: Sequence[str], hostname: str) -> str:
    return next((name for name in names if name in (hostname, hostname.partition(".")[0])), names[0])


def check_identity(hosts: Mapping[str, HostFacts], code: FindingCode) -> Iterator[PreflightFinding]:
    """Find names of a host that is listed under another name, too; each finding has the given code."""
    for name, other in find_aliases(hosts).items():
        values = {"other": other, "hostname": hosts[name].hostname}
        yield PreflightFinding(name, CHECK, code, values)
