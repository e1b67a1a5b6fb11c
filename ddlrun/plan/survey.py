"""The survey: everything that planning has to know about hosts and software."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ddlrun.machine import Machine
from ddlrun.managers.installation import Installation
from ddlrun.network.subnet_selection import Network


class Survey(NamedTuple):
    """What was looked up before planning, so that planning looks up nothing."""

    machines: Mapping[str, Machine]
    installation: Installation
    environ: Mapping[str, str]
    """ddlrun's own environment."""
    network: Network | None = None
    """The network that the hosts share; None: they were not asked."""
    own_address: str | None = None
    """This machine's address on that network."""
    busy_ports: frozenset[int] | None = None
    """TCP ports in use on the hosts where ranks meet; None: the hosts were not asked."""
    announced_cpus: Mapping[str, frozenset[int]] = MappingProxyType({})
    """Host -> the CPUs that the ranks of other users have there."""
