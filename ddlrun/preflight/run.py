"""Checks of a job's hosts before it starts: the probes of all hosts, and the report."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.errors import HostError, PreflightError, UnreachableError
from ddlrun.hosts import HostList, fold
from ddlrun.machine import Machine
from ddlrun.managers import ProcessManager
from ddlrun.network.addresses import is_on
from ddlrun.network.subnet_selection import Network, choose_network
from ddlrun.plan.container import ContainerRequest
from ddlrun.preflight.facts import TASK, FactsRequest, HostFacts, parse_facts, render_task
from ddlrun.preflight.findings import FindingCode, Level, PreflightFinding, render_lines
from ddlrun.preflight.judge import NAMES, PreflightFacts, judge
from ddlrun.preflight.ssh import explain_failure, missing_client
from ddlrun.preflight.tcp import MODULE, batches, judge_tcp, peer_tasks
from ddlrun.remote.probe import ProbeTarget, is_local, run_tasks
from ddlrun.remote.system_limits import allow_files
from ddlrun.remote.tasks import TaskReply

MOST_NAMES = 8
# The time limit of connections: at least this long, and in proportion to the time that the facts have taken. A busy
# machine starts the hosts' scripts one after the other.
TCP_SECONDS, TCP_PER_FACTS = 8.0, 4.0
# The connections to and from another host.
FILES_PER_PARTNER = 2


class PreflightRequest(NamedTuple):
    """The settings of the checks, beyond the hosts.

    `only` are the checks to run, `ssh` is the command line without the host, `seconds` the time limit of all, `path`
    the PATH on which ranks look for the program. See SupervisionOptions for `encryption`.
    """

    manager: ProcessManager
    program: str | None = None
    logs: str | None = None
    network: str | None = None
    interfaces: tuple[str, ...] = ()
    only: frozenset[str] = frozenset(NAMES)
    ssh: tuple[str, ...] = ("ssh",)
    seconds: float = 30.0
    path: str | None = None
    encryption: str | None = None
    container: ContainerRequest | None = None


class PreflightReport(NamedTuple):
    """The findings of all checks, each host's facts, and the network that the hosts share.

    `here` is this machine's name among the hosts, or its own, and its address on the network, None if it has
    none.
    """

    findings: tuple[PreflightFinding, ...]
    facts: Mapping[str, HostFacts]
    network: Network | None
    here: tuple[str, str | None]

    @property
    def failures(self) -> list[PreflightFinding]:
        """The failures of hosts that can be reached."""
        return [finding for finding in self.findings if finding.level is Level.FAILURE and finding.check != "ssh"]

    @property
    def unreachable(self) -> list[PreflightFinding]:
        """The failures of hosts that cannot be reached."""
        return [finding for finding in self.findings if finding.level is Level.FAILURE and finding.check == "ssh"]

    @property
    def bad_hosts(self) -> dict[str, str]:
        """The first failure of each host that has one."""
        return {finding.host: finding.message for finding in reversed((*self.unreachable, *self.failures))}

    @property
    def exit_code(self) -> int:
        """0, 3 if a host cannot be reached, 5 if another check failed."""
        if self.unreachable:
            return UnreachableError.exit_code
        return PreflightError.exit_code if self.failures else 0

    def machines(self) -> dict[str, Machine]:
        """Return each host's machine. Raises UnreachableError if one could not be read."""
        unknown = [host for host, facts in self.facts.items() if facts.machine is None]
        if unknown:
            raise UnreachableError(f"host {fold(unknown)}: its cores could not be read; give `--machine`")
        return {host: facts.machine for host, facts in self.facts.items() if facts.machine}

    def raise_failures(self) -> None:
        """Raise UnreachableError or PreflightError with all failures; equal ones of several hosts share a line."""
        if self.unreachable:
            raise UnreachableError(*render_lines(self.unreachable))
        if self.failures:
            raise PreflightError(*render_lines(self.failures))


def preflight(hosts: HostList, request: PreflightRequest, target_in: Callable[[float], ProbeTarget]) -> PreflightReport:
    """Run the checks in two round trips: one for the facts of every host, one for connections between hosts.

    `target_in` takes the seconds that are left. A host's problem is a finding and never raises.
    """
    begin = time.monotonic()
    end = begin + request.seconds
    report = check_facts(hosts, request, target_in(request.seconds))
    aliases = {finding.host for finding in report.failures if finding.code is FindingCode.SAME_HOST}
    reached = [host for host in hosts.names if host in report.facts and host not in aliases]
    if "tcp" not in request.only or len(reached) < 2 or report.network is None:
        return report
    seconds = max(TCP_SECONDS, TCP_PER_FACTS * (time.monotonic() - begin))
    name, address = report.here
    network = report.network
    if name not in hosts.names and address is not None:  # the process manager runs here, and talks to all
        network = network._replace(addresses={**network.addresses, name: address})
        reached.insert(0, name)
    findings = [
        finding for part in batches(reached) for finding in _connect(part, network, target_in, end=end, seconds=seconds)
    ]
    return report._replace(findings=(*report.findings, *findings))


def _connect(
    hosts: Sequence[str], network: Network, target_in: Callable[[float], ProbeTarget], *, end: float, seconds: float
) -> Iterable[PreflightFinding]:
    """Check the connections between hosts for some seconds, at most half of the time until `end`."""
    left = end - time.monotonic()
    if left < 1:
        return [PreflightFinding(host, "tcp", FindingCode.TCP_SKIPPED) for host in hosts]
    allow_files(FILES_PER_PARTNER * len(hosts))
    replies = run_tasks(MODULE, peer_tasks(hosts, network, min(seconds, left / 2)), target_in(left))
    return judge_tcp(hosts, replies, network)


def check_facts(hosts: HostList, request: PreflightRequest, target: ProbeTarget) -> PreflightReport:
    """Probe every host's facts in one round trip, and judge them."""
    facts, failed = _probe_facts(hosts, request, target)
    findings = [finding for host in hosts.names for finding in reach_findings(host, failed.get(host), request)]
    findings += judge(facts, request.only)
    if "mpi" in request.only:
        findings += misnamed_hosts(hosts.names, facts.hosts, request.manager)
    aliases = {finding.host for finding in findings if finding.code is FindingCode.SAME_HOST}
    network, network_findings = _choose_network(facts.without(aliases).hosts, request)
    own_addresses = (address for address in facts.here.addresses if network and is_on(address, network.subnets))
    own = next((address.ip for address in own_addresses), None)
    if network and any(finding.code is FindingCode.OWN_NAME_LOOPBACK for finding in findings):
        network = network._replace(own_names_mislead=True)
    if network and facts.here_name not in hosts.names:
        network = network._replace(daemons=own is not None)
    return PreflightReport((*findings, *network_findings), facts.hosts, network, (facts.here_name, own))


def _facts_request(request: PreflightRequest) -> FactsRequest:
    return FactsRequest(
        manager=request.manager.path if "mpi" in request.only else "",
        python=sys.executable,
        folder=os.getcwd(),
        program=request.program,
        path=request.path,
        encryption=request.encryption,
        agents="agent" in request.only,
        container=request.container,
        daemon=request.manager.daemon,
        library=request.manager.mpi_library,
    )


def _probe_facts(
    hosts: HostList, request: PreflightRequest, target: ProbeTarget
) -> tuple[PreflightFacts, Mapping[str, TaskReply]]:
    """Return the facts of all hosts, and the replies of those that have none."""
    base, own_name = _facts_request(request), os.uname().nodename
    here_name = next(filter(is_local, hosts.names), own_name)
    names = names_to_resolve(hosts.names, own_name)
    own_names = tuple(dict.fromkeys((*names.get(here_name, ()), *hosts.names[: 4 * MOST_NAMES])))
    own_request = base._replace(names=own_names, logs=request.logs)
    others = [host for host in hosts.names if not is_local(host)]
    tasks = {host: render_task(base._replace(names=names[host]), target.variables(host)) for host in others}
    begin = time.time()
    read_here = target.task_here(TASK, render_task(own_request, target.variables(here_name)))
    replies = target.tasks_there(TASK, tasks) if tasks else {}
    end = time.time()
    machines: dict[str, Machine] = {}
    here_reply = read_here()
    here = parse_facts(here_reply.value or here_reply.process.err, "this machine", machines)
    facts: dict[str, HostFacts] = {}
    failed: dict[str, TaskReply] = {}
    for host in hosts.names:
        try:
            facts[host] = (
                parse_facts(replies[host].value, host, machines, printed=replies[host].printed)
                if host in replies
                else here._replace(names={name: here.names[name] for name in {*names[host], here.hostname}})
            )
        except HostError:
            failed[host] = replies[host]
    all_names = tuple(dict.fromkeys(name for host in facts for name in names[host]))
    everything = PreflightFacts(
        hosts=facts,
        here=here,
        here_name=here_name,
        request=own_request._replace(names=all_names),
        interval=(begin, end),
    )
    return everything, failed


def reach_findings(host: str, failed: TaskReply | None, request: PreflightRequest) -> Iterator[PreflightFinding]:
    """Yield whether a host can be reached, and whether it has a Python for the checks."""
    if failed is not None and failed.other_python is None:
        failure = explain_failure(host, failed.process, request.ssh, request.seconds)
        if shutil.which(request.ssh[0]) is None:
            failure = missing_client(request.ssh[0])
        values = {"message": failure.message, "remedy": failure.remedy}
        yield PreflightFinding(host, "ssh", FindingCode.UNREACHABLE, values)
        return
    yield PreflightFinding(host, "ssh", FindingCode.PASSED)
    if failed is not None:
        needs_agents = "agent" in request.only or "python" not in request.only
        code = FindingCode.NO_AGENT_PYTHON if needs_agents else FindingCode.NO_PYTHON
        code = FindingCode.OLD_AGENT_PYTHON if failed.other_python else code
        values = {"python": sys.executable, "version": failed.other_python or ""}
        yield PreflightFinding(host, "agent" if needs_agents else "python", code, values)


def misnamed_hosts(
    names: Sequence[str], facts: Mapping[str, HostFacts], manager: ProcessManager
) -> Iterator[PreflightFinding]:
    """Yield a finding for each host of a job that the process manager does not find by its listed name."""
    for host, host_facts in facts.items():
        if not manager.finds_host(host, host_facts.hostname, names):
            values = {"hostname": host_facts.hostname, "manager": f"{manager.title} {manager.version}"}
            yield PreflightFinding(host, "mpi", FindingCode.OTHER_NAME, values)


def _choose_network(
    facts: Mapping[str, HostFacts], request: PreflightRequest
) -> tuple[Network | None, list[PreflightFinding]]:
    addresses = {host: host_facts.addresses for host, host_facts in facts.items()}
    if len(addresses) < 2:
        return None, []
    try:
        known = {ip for own in facts.values() for name in own.names.keys() & facts.keys() for ip in own.names[name]}
        network = choose_network(addresses, request.network, request.interfaces, known)
    except PreflightError as error:
        values = {"problem": "\n".join(error.problems)}
        return None, [PreflightFinding(next(iter(facts)), "network", FindingCode.WRONG_NETWORK, values)]
    if "network" not in request.only:
        return network, []
    code = FindingCode.NETWORK if network.subnets else FindingCode.NO_COMMON_NETWORK
    ambiguous = list(ambiguous_interfaces(facts, network)) if request.manager.needs_one_address else []
    hosts = facts.keys() - {finding.host for finding in ambiguous}
    fine = [PreflightFinding(host, "network", code, {"summary": network.summary}) for host in facts if host in hosts]
    return network, [*fine, *ambiguous]


def ambiguous_interfaces(facts: Mapping[str, HostFacts], network: Network) -> Iterator[PreflightFinding]:
    """Yield a finding for each host whose interface on the network has several IPv4 addresses, unless MPI has RDMA."""
    for host, host_facts in facts.items():
        used = network.interfaces.get(host, ())
        own = [address for address in host_facts.addresses if address.interface in used and ":" not in address.ip]
        names = [address.interface for address in own]
        ambiguous = next((name for name in names if names.count(name) > 1), None)
        rdma = host_facts.machine is not None and host_facts.machine.rdma_devices
        if ambiguous is not None and not rdma:
            addresses = ", ".join(address.ip for address in own if address.interface == ambiguous)
            values = {"interface": ambiguous, "addresses": addresses}
            yield PreflightFinding(host, "network", FindingCode.TWO_ADDRESSES, values)


def names_to_resolve(hosts: Sequence[str], here: str) -> dict[str, tuple[str, ...]]:
    """Return the names that each host must resolve: all names of a few hosts, some of many.

    With many hosts these are the names of the first host, of its neighbours, and of this machine.
    """
    if len(hosts) <= MOST_NAMES + 1:
        return dict.fromkeys(hosts, tuple(hosts))
    own = [here] if here in hosts else []
    steps = range(-1, MOST_NAMES - 2)
    return {
        host: tuple(dict.fromkeys([hosts[0], *(hosts[(index + step) % len(hosts)] for step in steps), *own]))
        for index, host in enumerate(hosts)
    }
