"""Tell a rank's program who it is, in the variables that its framework reads (see frameworks.py for the tables)."""

from __future__ import annotations

import _socket
import os

from ddlrun.rank.binding import host_and_local, seat

EADDRINUSE = 98


def introduce(rank: int, local_rank: int, size: int) -> list[str]:
    """Set what DDLRUN_OWN asks for; return what is wrong with the ports that the plan chose: somebody has them."""
    wanted = [word.split("=") for word in os.environ.pop("DDLRUN_OWN", "").split()]
    workers, ports = (os.environ.pop(f"DDLRUN_{name}", "") for name in ("WORKERS", "PORTS"))
    if not wanted or min(rank, local_rank, size) < 0:
        return []
    topology, order = os.environ["DDLRUN_TOPOLOGY"], os.environ["DDLRUN_RANK_ORDER"]
    local_size = int(topology.partition("x")[0])
    known = {
        "rank": rank, "size": size, "local_rank": local_rank, "local_size": local_size, "hosts": size // local_size,
        "host": host_and_local(rank, size, topology, order)[0], "gpu": _own_gpu(rank, local_rank, size),
        "workers": _tf_config(workers, rank, size, topology, order) if workers else None,
        # All that JAX wants of it here is that it is there.
        "uri": os.environ.get("OMPI_MCA_orte_hnp_uri", "0.0;tcp://0.0.0.0:0"),  # noqa: SIM112 - its own name
    }  # fmt: skip
    for name, what in wanted:
        if known.get(what) is not None:
            os.environ[name] = str(known[what])
    mine = [word.split("=") for word in ports.split()] if rank == 0 else []
    if workers:
        mine.append(["TF_CONFIG", str(int(workers.split()[0]) + local_rank)])
    return [f"port {port} ({name}) was free, and now another process has it" for name, port in mine if _taken(port)]


def _own_gpu(rank: int, local_rank: int, size: int) -> int | None:
    """Return the place of the rank's own GPU among those that it sees; None: it has none, or nothing is set."""
    planned = seat(os.environ, rank, local_rank, size)
    return local_rank % len(planned.gpus) if planned is not None and planned.gpus else None


def _tf_config(workers: str, rank: int, size: int, topology: str, order: str) -> str:
    """Write TF_CONFIG: a worker a rank, from `PORT ADDRESS,ADDRESS...`, which has an address a host."""
    port, _, listed = workers.partition(" ")
    addresses = listed.split(",")
    places = (host_and_local(other, size, topology, order) for other in range(size))
    all_of_them = ",".join(f'"{addresses[host]}:{int(port) + local_rank}"' for host, local_rank in places)
    return f'{{"cluster":{{"worker":[{all_of_them}]}},"task":{{"type":"worker","index":{rank}}}}}'


def _taken(port: str) -> bool:
    probe = _socket.socket()
    probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)  # as servers do: what is closed is in nobody's way
    try:
        probe.bind(("", int(port)))
    except OSError as error:
        return error.errno == EADDRINUSE
    finally:
        probe.close()
    return False
