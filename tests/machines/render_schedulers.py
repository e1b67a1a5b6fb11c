"""Files of schedulers, by the facts that they hold."""

from collections.abc import Mapping, Sequence


def render_topology_conf(racks: Mapping[str, str], spines: Sequence[str]) -> str:
    """Return Slurm's topology.conf: a switch per rack with its nodes, and spines above all of them.

    >>> print(render_topology_conf({"s0": "n[0-1]", "s1": "n[2-3]"}, ["s2"]), end="")
    # topology.conf
    SwitchName=s0 Nodes=n[0-1]   LinkSpeed=900
    SwitchName=s1 Nodes=n[2-3]   LinkSpeed=900
    SwitchName=s2 Switches=s0,s1  LinkSpeed=1800
    """
    leaves = [f"SwitchName={name} Nodes={nodes}   LinkSpeed=900" for name, nodes in racks.items()]
    tops = [f"SwitchName={name} Switches={','.join(racks)}  LinkSpeed=1800" for name in spines]
    return "\n".join(["# topology.conf", *leaves, *tops, ""])


def render_lsf_rank_file(launch_host: str, hosts: Sequence[str]) -> str:
    """Return the file of LSB_DJOB_RANKFILE: the launch host, then a host per line."""
    return "\n".join([launch_host, *hosts]) + "\n"


def render_lsf_affinity(tasks: Sequence[tuple[str, str, int]]) -> str:
    """Return the file of LSB_AFFINITY_HOSTFILE: each task's host, CPUs, and NUMA node with its memory policy."""
    return "".join(f"{host} {cpus} {node} 2\n" for host, cpus, node in tasks)
