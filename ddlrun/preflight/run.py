"""Ask all hosts and judge what they say: the edge."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import PreflightError, UnreachableError
from ddlrun.hosts import HostList, fold
from ddlrun.machine import Machine
from ddlrun.network.subnet_selection import Network, choose_network, on
from ddlrun.preflight.facts import FactsRequest, HostFacts, facts_script, parse_facts
from ddlrun.preflight.judge import FAILURE, NAMES, OK, WARNING, PreflightFacts, PreflightFinding, judge
from ddlrun.preflight.ssh import NO_CLIENT, trouble
from ddlrun.preflight.tcp import batches, judge_tcp, peer_scripts
from ddlrun.remote.probe import ProbeTarget, is_local, run_scripts

MOST_NAMES = 8
TCP_SECONDS = 8.0


class PreflightRequest(NamedTuple):
    """What a preflight is asked for, beyond the hosts."""

    mpirun: str
    major: int
    program: str | None = None
    logs: str | None = None
    network: str | None = None
    interfaces: tuple[str, ...] = ()
    only: frozenset[str] = frozenset(NAMES)
    ssh: tuple[str, ...] = ("ssh",)
    seconds: float = 30.0
    path: str | None = None


class PreflightReport(NamedTuple):
    """What came of it: findings of all checks, each host's facts, and the network that the hosts share."""

    findings: tuple[PreflightFinding, ...]
    facts: Mapping[str, HostFacts]
    network: Network | None
    here: tuple[str, str | None]
    """This machine's name among the hosts, or its own, and its address on the network; None: it has none."""

    @property
    def failures(self) -> list[PreflightFinding]:
        """Return what is wrong, but for hosts that cannot be reached."""
        return [one for one in self.findings if one.level == FAILURE and one.check != "ssh"]

    @property
    def unreachable(self) -> list[PreflightFinding]:
        """Return the hosts that cannot be reached."""
        return [one for one in self.findings if one.level == FAILURE and one.check == "ssh"]

    @property
    def bad_hosts(self) -> dict[str, str]:
        """Return the hosts of which something is wrong, and what."""
        return {one.host: one.what for one in reversed((*self.unreachable, *self.failures))}

    @property
    def exit_code(self) -> int:
        """0, 3 where a host cannot be reached, 5 where anything else is wrong."""
        if self.unreachable:
            return UnreachableError.exit_code
        return PreflightError.exit_code if self.failures else 0

    def machines(self) -> dict[str, Machine]:
        """Return each host's machine. Raises UnreachableError where one could not be read."""
        bad = [host for host, facts in self.facts.items() if facts.machine is None]
        if bad:
            raise UnreachableError(f"host {fold(bad)}: its cores could not be read; give --machine")
        return {host: facts.machine for host, facts in self.facts.items() if facts.machine}

    def raise_failures(self) -> None:
        """Raise UnreachableError or PreflightError with all that is wrong; hosts that say alike share a line."""
        if self.unreachable:
            raise UnreachableError(*lines(self.unreachable))
        if self.failures:
            raise PreflightError(*lines(self.failures))


def preflight(hosts: HostList, question: PreflightRequest, reach: Callable[[float], ProbeTarget]) -> PreflightReport:
    """Ask every host for its facts, judge them, and let the hosts connect to each other; two round trips in all.

    `reach` takes seconds. Never raises for a host: its findings say what is wrong.
    """
    end = time.monotonic() + question.seconds
    report = look(hosts, question, reach(question.seconds))
    reached = [host for host in hosts.names if host in report.facts]
    if "tcp" not in question.only or len(reached) < 2 or report.network is None:
        return report
    name, address = report.here
    network = report.network
    if name not in hosts.names and address is not None:  # mpirun runs here, and talks to all
        network = network._replace(addresses={**network.addresses, name: address})
        reached.insert(0, name)
    said = [one for batch in batches(reached) for one in _connect(batch, network, reach, end)]
    return report._replace(findings=(*report.findings, *said))


def _connect(
    hosts: Sequence[str], network: Network, reach: Callable[[float], ProbeTarget], end: float
) -> Iterable[PreflightFinding]:
    left = end - time.monotonic()
    if left < 1:
        return [
            PreflightFinding(host, "tcp", WARNING, "not tried", "give it more time: --start-timeout") for host in hosts
        ]
    scripts = peer_scripts(hosts, network, sys.executable, min(TCP_SECONDS, left / 2))
    answers = {host: answer.out for host, answer in run_scripts(scripts, reach(left)).items()}
    return judge_tcp(hosts, answers, network)


def look(hosts: HostList, question: PreflightRequest, reach: ProbeTarget) -> PreflightReport:
    """Ask every host for its facts and judge them, in one round trip."""
    daemon = {4: "orted", 5: "prted"}[question.major]
    wanted = FactsRequest(
        question.mpirun, sys.executable, os.getcwd(), (), question.program, question.logs, question.path
    )
    here_name = next((name for name in hosts.names if is_local(name, reach.own_name)), reach.own_name)
    names = names_to_resolve(hosts.names, reach.own_name)
    scripts = {host: facts_script(wanted._replace(names=names[host], logs=None), daemon) for host in hosts.names}
    begin = time.time()
    asked = reach.here(facts_script(wanted._replace(names=hosts.names[: 4 * MOST_NAMES]), daemon))
    answers = run_scripts(scripts, reach)
    end = time.time()
    machines: dict[str, Machine] = {}
    here = parse_facts(asked().out, "this machine", machines)
    facts: dict[str, HostFacts] = {}
    findings = []
    for host in hosts.names:
        try:
            facts[host] = parse_facts(answers[host].out, host, machines)
            findings.append(PreflightFinding(host, "ssh", OK, "ok"))
        except UnreachableError:
            why = trouble(host, answers[host], question.ssh, question.seconds)
            if shutil.which(question.ssh[0]) is None:
                why = NO_CLIENT
            findings.append(PreflightFinding(host, "ssh", FAILURE, why.what, why.remedy))
    every = tuple(dict.fromkeys(name for host in facts for name in names[host]))
    seen = PreflightFacts(facts, here, here_name, wanted._replace(names=every), daemon, (begin, end))
    findings += judge(seen, question.only)
    network, said = _network(facts, question)
    own = next((one.ip for one in here.addresses if network and on(one, network.subnets)), None)
    if network and here_name not in hosts.names:
        network = network._replace(daemons=own is not None)
    return PreflightReport((*findings, *said), facts, network, (here_name, own))


def _network(
    facts: Mapping[str, HostFacts], question: PreflightRequest
) -> tuple[Network | None, list[PreflightFinding]]:
    addresses = {host: one.addresses for host, one in facts.items()}
    if len(addresses) < 2:
        return None, []
    try:
        network = choose_network(addresses, question.network, question.interfaces)
    except PreflightError as error:
        return None, [PreflightFinding(next(iter(facts)), "network", FAILURE, str(error))]
    level = OK if network.subnets else WARNING
    return network, [
        PreflightFinding(host, "network", level, network.said) for host in facts if "network" in question.only
    ]


def names_to_resolve(hosts: Sequence[str], here: str) -> dict[str, tuple[str, ...]]:
    """Return the names that each host must resolve: all of a few; of many, the first, its neighbours and `here`."""
    if len(hosts) <= MOST_NAMES + 1:
        return dict.fromkeys(hosts, tuple(hosts))
    known = [here] if here in hosts else []
    steps = range(-1, MOST_NAMES - 2)
    return {
        host: tuple(dict.fromkeys([hosts[0], *(hosts[(place + step) % len(hosts)] for step in steps), *known]))
        for place, host in enumerate(hosts)
    }


def alike(findings: Iterable[PreflightFinding]) -> list[list[PreflightFinding]]:
    """Return findings that say the same of different hosts together."""
    found: dict[tuple[str, ...], list[PreflightFinding]] = {}
    for one in findings:
        words = (text.replace(one.host, "*") for text in (one.what, one.remedy))
        found.setdefault((one.check, one.level, *words), []).append(one)
    return list(found.values())


def lines(findings: Iterable[PreflightFinding]) -> list[str]:
    """Return a line a finding; hosts of which the same is said share one."""
    found = []
    for same in alike(findings):
        hosts = list(dict.fromkeys(one.host for one in same))
        found.append(f"host{'s' * (len(hosts) > 1)} {fold(hosts)}: {same[0].line}")
    return found
