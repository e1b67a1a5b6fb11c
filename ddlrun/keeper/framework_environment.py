"""The variables from which a rank's framework reads its place in the job (see environment/frameworks.py)."""

from __future__ import annotations

import _socket
import os

from ddlrun.keeper.binding import parse_binding
from ddlrun.keeper.host_position import RankPositions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

EADDRINUSE = 98


def set_framework_variables(rank: int, local_rank: int, size: int) -> dict[int, str]:
    """Set the variables that DDLRUN_OWN lists; return the ports on which this rank may listen, with their variables."""
    values = framework_values(os.environ, rank, local_rank, size)
    os.environ.pop("DDLRUN_OWN", None)
    workers, ports = (os.environ.pop(f"DDLRUN_{name}", "") for name in ("WORKERS", "PORTS"))
    if not values:
        return {}
    os.environ.update(values)
    own_ports = {int(port): name for name, port in (word.split("=") for word in ports.split())} if rank == 0 else {}
    if workers:
        own_ports[int(workers.split()[0]) + local_rank] = "TF_CONFIG"
    return own_ports


def framework_values(environ: Mapping[str, str], rank: int, local_rank: int, size: int) -> dict[str, str]:
    """Return the variables that DDLRUN_OWN lists, with a rank's values."""
    requests = [word.split("=") for word in environ.get("DDLRUN_OWN", "").split()]
    workers = environ.get("DDLRUN_WORKERS", "")
    if not requests or min(rank, local_rank, size) < 0:
        return {}
    positions = RankPositions(environ)
    host, sizes = positions.find(rank)[0], positions.host_sizes
    values = {
        "rank": rank, "size": size, "local_rank": local_rank, "local_size": sizes[host], "hosts": len(sizes),
        "host": host, "gpu": _own_gpu(environ, rank, local_rank, size),
        "workers": _render_tf_config(workers, rank, positions) if workers else None,
        # JAX only checks that it is set.
        "uri": environ.get("OMPI_MCA_orte_hnp_uri", "0.0;tcp://0.0.0.0:0"),
    }  # fmt: skip
    if ["OMPI_MCA_orte_hnp_uri", "uri"] in requests:  # JAX then takes these from Open MPI, which may not be there
        requests += [["OMPI_COMM_WORLD_" + name.upper(), name] for name in ("rank", "size", "local_rank")]
    return {name: str(values[field]) for name, field in requests if values.get(field) is not None}


def _own_gpu(environ: Mapping[str, str], rank: int, local_rank: int, size: int) -> int | None:
    """Return the index of the rank's own GPU among its visible ones, or None if it has none or none was planned."""
    planned = parse_binding(environ, rank, local_rank, size)
    return local_rank % len(planned.gpus) if planned is not None and planned.gpus else None


def _render_tf_config(workers: str, rank: int, positions: RankPositions) -> str:
    """Render TF_CONFIG with one worker per rank, from `PORT ADDRESS,ADDRESS...` with one address per host."""
    port, _, listed = workers.partition(" ")
    addresses = listed.split(",")
    endpoints = ",".join(f'"{addresses[host]}:{int(port) + local_rank}"' for host, local_rank in positions.all())
    return f'{{"cluster":{{"worker":[{endpoints}]}},"task":{{"type":"worker","index":{rank}}}}}'


def in_use(port: int) -> bool:
    """Return True if another process listens on a port; closed connections do not count, as for servers."""
    probe = _socket.socket()
    probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("", port))
    except OSError as error:
        return error.errno == EADDRINUSE
    finally:
        probe.close()
    return False
