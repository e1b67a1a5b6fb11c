"""Check of the addresses to which hosts resolve each other's names and their own."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.preflight.facts import HostFacts
from ddlrun.preflight.findings import FindingCode, PreflightFinding

CHECK = "names"


class _AddressBook(NamedTuple):
    """The facts of all hosts and of this machine, the owner of each of their addresses, and the resolved names."""

    facts: Mapping[str, HostFacts]
    here: HostFacts
    owners: Mapping[str, str]
    resolved: frozenset[str]


def check_names(
    hosts: Mapping[str, HostFacts], here_name: str, here: HostFacts, names: Sequence[str]
) -> Iterator[PreflightFinding]:
    """Find hosts that do not resolve a name, of another host or their own, to the right address.

    `here` are the facts of this machine; an address to which it resolves a name, too, is right. Findings are in
    the order of `names`.
    """
    facts = {**hosts, here_name: here}
    resolved = frozenset(name for own in facts.values() for name, addresses in own.names.items() if addresses)
    book = _AddressBook(facts, here, _owners(facts), resolved)
    position = {name: index for index, name in enumerate(names)}
    for host, host_facts in hosts.items():
        for name in sorted(host_facts.names.keys() & position.keys(), key=position.__getitem__):
            # A host that cannot be reached has a finding already.
            if name in facts and name not in ("localhost", host):
                yield from _check_name(host, name, host_facts.names[name], book)
        yield from _check_listed_name(host, host_facts, book)
        yield from _check_own_name(host, host_facts, alone=len(facts) == 1)


def _owners(facts: Mapping[str, HostFacts]) -> dict[str, str]:
    """Return the owner of each address, which is the first host that has it."""
    owners: dict[str, str] = {}
    for host, host_facts in facts.items():
        for address in host_facts.addresses:
            owners.setdefault(address.ip, host)
    return owners


def _check_name(host: str, name: str, resolved: Sequence[str], book: _AddressBook) -> Iterator[PreflightFinding]:
    if not resolved:
        of_ssh = name in book.here.names and name not in book.resolved
        code = FindingCode.NAME_OF_SSH if of_ssh else FindingCode.NAME_UNKNOWN
        yield PreflightFinding(host, CHECK, code, {"name": name})
        return
    own = _own_addresses(book.facts[name])
    if not own or not (own | _resolved_here(name, book)).isdisjoint(resolved):
        return
    values = {"name": name, "address": resolved[0]}
    owner = book.owners.get(resolved[0])
    if _is_loopback(resolved[0]):
        yield PreflightFinding(host, CHECK, FindingCode.NAME_OF_ITSELF, values)
    elif owner is not None:
        yield PreflightFinding(host, CHECK, FindingCode.NAME_OF_OTHER_HOST, {**values, "owner": owner})
    else:
        own_addresses = ", ".join(sorted(own))
        yield PreflightFinding(host, CHECK, FindingCode.NAME_OF_NO_HOST, {**values, "own": own_addresses})


def _check_listed_name(host: str, facts: HostFacts, book: _AddressBook) -> Iterator[PreflightFinding]:
    """Find a name that leads to a host with another name, which resolves the name to another host's address."""
    resolved, own = facts.names.get(host, ()), _own_addresses(facts)
    if host == facts.hostname or not own or not resolved or any(map(_is_loopback, resolved)):
        return
    if (own | _resolved_here(host, book)).isdisjoint(resolved):
        values = {"hostname": facts.hostname, "address": resolved[0], "own": ", ".join(sorted(own))}
        yield PreflightFinding(host, CHECK, FindingCode.LEADS_ELSEWHERE, values)


def _own_addresses(facts: HostFacts) -> set[str]:
    """Return the addresses of a host at which others may reach it."""
    return {address.ip for address in facts.addresses if not _is_loopback(address.ip)}


def _resolved_here(name: str, book: _AddressBook) -> set[str]:
    return {ip for ip in book.here.names.get(name, ()) if not _is_loopback(ip)}


def _check_own_name(host: str, facts: HostFacts, *, alone: bool) -> Iterator[PreflightFinding]:
    """Find a name of a host's own that leads elsewhere; to loopback, if other hosts are to connect to it."""
    resolved = facts.names.get(facts.hostname)
    if resolved is None or not facts.addresses:
        return
    loopback = next(filter(_is_loopback, resolved), None)  # which comes first, where there are others
    if not resolved:
        yield PreflightFinding(host, CHECK, FindingCode.OWN_NAME_UNKNOWN, {"name": facts.hostname})
    elif loopback is not None and not alone:
        values = {"name": facts.hostname, "address": loopback}
        yield PreflightFinding(host, CHECK, FindingCode.OWN_NAME_LOOPBACK, values)
    elif loopback is None and {address.ip for address in facts.addresses}.isdisjoint(resolved):
        values = {"name": facts.hostname, "address": resolved[0]}
        yield PreflightFinding(host, CHECK, FindingCode.OWN_NAME_FOREIGN, values)


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback
