"""The networks that NCCL has chosen, from the logs of a run or of a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddlrun.application.examination import list_files
from ddlrun.errors import InputError
from ddlrun.hosts import fold
from ddlrun.network.nccl_log import NcclHost, TransportFinding, TransportProblem, find_transport_problems
from ddlrun.runs.nccl_logs import read_networks, read_run_networks


@dataclass(frozen=True, slots=True)
class NcclNetworks:
    """The networks of a job's hosts, and what is wrong with them."""

    hosts: Mapping[str, NcclHost]
    findings: Sequence[TransportFinding]

    @property
    def is_expected(self) -> bool:
        """Whether no host uses another network than the expected one."""
        return all(finding.problem is not TransportProblem.UNEXPECTED for finding in self.findings)


def examine_networks(folder: str, expected: str | None, *, of_run: bool) -> NcclNetworks:
    """Return the networks in the logs of a run, or of any files.

    Raises InputError if one is expected, and no log has any.

    Args:
        folder: The run folder, or any other one.
        expected: The network that all hosts should use, such as IB.
        of_run: Whether it is a run folder.
    """
    hosts, rdma = read_run_networks(folder) if of_run else (read_networks(list_files(folder)), {})
    if expected is not None and not hosts:
        raise InputError(f"--expect-transport: no log in {folder} has lines of NCCL; set NCCL_DEBUG=INFO for the ranks")
    return NcclNetworks(hosts, find_transport_problems(hosts, rdma, expected))


def record_networks(networks: NcclNetworks) -> dict[str, Any]:
    """Return the record of networks and their problems."""
    return {
        "hosts": [{"host": name, **asdict(host)} for name, host in networks.hosts.items()],
        "problems": [
            {"problem": finding.problem.value, "hosts": list(finding.hosts), "text": finding.text}
            for finding in networks.findings
        ],
    }


def render_networks(networks: NcclNetworks) -> str:
    """Return the lines that a terminal shows of networks, those of equal hosts once."""
    alike: dict[str, list[str]] = {}
    for name, host in networks.hosts.items():
        alike.setdefault(host.text, []).append(name)
    lines = [f"NCCL on {fold(names)}: {text}" for text, names in alike.items()]
    inits = [(init.seconds, init.ranks, name) for name, host in networks.hosts.items() for init in host.inits]
    if inits:
        seconds, ranks, name = max(inits)
        lines.append(f"slowest start of NCCL: {ranks} ranks in {seconds:g} s on {name}")
    return "".join(f"{line}\n" for line in [*lines, *(f"warning: {finding.text}" for finding in networks.findings)])
