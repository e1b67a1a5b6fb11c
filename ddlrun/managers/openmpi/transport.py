"""The transport of Open MPI: without components that start slowly, over TCP alone, or as it was chosen before."""

import re
from collections.abc import Mapping, Sequence

from ddlrun.managers import TransportChoice, TransportRequest

# Components whose probing costs between 0.2 s (Open MPI 4.1: psm, psm2, ofi) and 1.1 s (5.0: btl ofi sleeps for a
# second when it finds no device) per start. UCX, CUDA IPC, TCP and shared memory stay as they are.
SLOW = {"pml": ("cm",), "btl": ("ofi", "uct", "openib")}


def choose_transport(request: TransportRequest, btl: str) -> TransportChoice:
    """Return the transport: TCP alone, as it was chosen before, or without components that start slowly.

    A job on one host needs none of them, and neither does one on several hosts without RDMA devices. `btl` has the
    components for TCP between hosts and shared memory inside of them.
    """
    if request.tcp:
        variables = {
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": btl, "UCX_TLS": "tcp,self,sm", "NCCL_IB_DISABLE": "1",
        }  # fmt: skip
        return TransportChoice(tuple(variables.items()), "--tcp: TCP, and shared memory inside of hosts")
    chosen = find_transport_choice(request.arguments, request.environ, request.files)
    if chosen is not None:
        return TransportChoice((), f"left alone: {chosen}")
    if len(request.hosts) > 1:
        lists = {machine.rdma_devices for machine in request.machines}
        devices = sorted({device for names in lists for device in names or ()})
        if devices:
            return TransportChoice((), f"left to MPI: the hosts have RDMA devices ({', '.join(devices)})")
        if None in lists:
            return TransportChoice((), "left to MPI: the hosts were not searched for RDMA devices")
    excluded = parse_site_excludes(request.files)
    values = {name: "^" + ",".join(sorted({*slow, *excluded.get(name, ())})) for name, slow in SLOW.items()}
    choice = ", ".join(f"{name} {value}" for name, value in values.items())
    why = "one host" if len(request.hosts) == 1 else "no host has an RDMA device"
    choices = tuple((f"OMPI_MCA_{name}", value) for name, value in values.items())
    return TransportChoice(choices, f"{choice}: {why}, and MPI starts faster without them")


_CHOICE = r"(?m)^[ \t]*(pml|mtl|btl)[ \t]*=[ \t]*(\S*)"


def find_transport_choice(arguments: Sequence[str], environ: Mapping[str, str], files: Mapping[str, str]) -> str | None:
    """Find the argument, variable or MCA file (path -> text) that chooses pml, mtl or btl; None: there is none.

    A file that only excludes components (`btl = ^openib`) chooses none: see `parse_site_excludes`.
    """
    for word, following in zip(arguments, (*arguments[1:], ""), strict=False):
        option = word.lstrip("-")
        if option in ("mca", "gmca", "omca") and following in ("pml", "mtl", "btl", "mca_base_param_files"):
            return f"--mpi-args has {following}"
        if word.startswith("-") and option in ("tune", "am"):
            return f"--mpi-args has {word}"
    for name in ("pml", "mtl", "btl", "mca_base_param_files"):
        if f"OMPI_MCA_{name}" in environ:
            return f"OMPI_MCA_{name} is set"
    for path, text in files.items():
        if any(not value.startswith("^") for _, value in re.findall(_CHOICE, text)):
            return f"{path} chooses it"
    return None


def parse_site_excludes(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the components that MCA files exclude, by framework (pml, mtl, btl)."""
    excluded: dict[str, list[str]] = {}
    for text in files.values():
        for name, value in re.findall(_CHOICE, text):
            excluded.setdefault(name, []).extend(filter(None, value[1:].split(",")))
    return excluded
