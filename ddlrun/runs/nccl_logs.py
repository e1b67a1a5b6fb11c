"""NCCL's logs in a run folder, or in any files: the networks of hosts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddlrun.network.nccl_log import NcclHost, parse_nccl_log
from ddlrun.plan.run_dir import RunDir, nccl_log, rank_log

# NCCL prints this when it starts: the rest of a log need not be read.
MOST_BYTES = 16 << 20


def read_networks(paths: Sequence[str]) -> dict[str, NcclHost]:
    """Return NCCL's networks by the names of hosts in logs."""
    return parse_nccl_log(line for path in paths for line in _read_lines(path))


def _read_lines(path: str) -> Iterator[str]:
    """Yield the first lines of a file; none if it cannot be read."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        yield from file.read(MOST_BYTES).splitlines()


def read_run_networks(folder: str) -> tuple[dict[str, NcclHost], dict[str, tuple[str, ...]]]:
    """Return NCCL's networks from the first rank of each host of a run, and the RDMA devices of the hosts.

    The names of hosts are those of the run. If a rank has no log of NCCL alone, its output is read.
    """
    try:
        with open(RunDir(folder).plan, encoding="utf-8") as file:
            plan: Mapping[str, Any] = json.load(file)
        first = {rank["host"]: rank["rank"] for rank in plan["ranks"] if rank["local_rank"] == 0}
        rdma = {
            host: tuple(nic["rdma"] for nic in machine["nics"] or () if nic["rdma"])
            for machine in plan["machines"]
            for host in machine["hosts"]
        }
    except (OSError, ValueError, LookupError, TypeError):  # the run has no plan yet
        return {}, {}
    logs = {
        host: read_networks([nccl_log(folder, host)]) or read_networks([rank_log(folder, rank, len(plan["ranks"]))])
        for host, rank in first.items()
    }
    return {host: next(iter(seen.values())) for host, seen in logs.items() if seen}, rdma
