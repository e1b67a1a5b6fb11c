"""The backend "ddl" of torch.distributed by its name: init_process_group("ddl") without an import of ddlrun.ddl.

The duty "backend" of the start-up hook registers it when torch.distributed is imported. Where ddlrun is installed,
`import torch` calls `register` itself, by the entry point "torch.backends", also under other launchers. The ddlrun of
the user's Python is imported once a process group is made of it.
"""

# ruff: noqa: ANN401, INP001, PLC0415, SLF001 - objects of torch; it imports as little as possible

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "ddl"


def register(module: "Any" = None) -> None:
    """Register the backend with torch.distributed's module, for tensors on the CPU. A second call does nothing."""
    module = module or sys.modules.get("torch.distributed")  # `import torch` has imported it
    backends = getattr(module, "Backend", None)  # none in a torch that was built without torch.distributed
    if backends is not None and not hasattr(backends, NAME.upper()):
        backends.register_backend(NAME, _make_group, extended_api=True, devices=["cpu"])
        _keep_from_torchcomms(sys.modules["torch.distributed.distributed_c10d"])


def _keep_from_torchcomms(c10d: "Any") -> None:
    """Switch TorchComms off with the first group of the backend: torch 2.13 hands all groups to it, 2.14 asks it."""
    if not getattr(c10d, "_TORCHCOMM_AVAILABLE", False) or hasattr(c10d, "_torchcomms_handles_backend"):
        return
    from functools import wraps

    plain = c10d._new_process_group_helper

    @wraps(plain)
    def make(size: int, rank: int, ranks: "list[int]", backend: "Any", *arguments: "Any", **words: "Any") -> "Any":
        if NAME in [part.rpartition(":")[2] for part in str(backend).split(",")]:
            c10d.dist_config.use_torchcomms = False
        return plain(size, rank, ranks, backend, *arguments, **words)

    c10d._new_process_group_helper = make


def _make_group(options: "Any", backend_options: "Any") -> "Any":
    from importlib import import_module

    try:
        backend = import_module("ddlrun.ddl.torch.backend")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'backend "ddl": no module {error.name!r}: install ddlrun for {sys.executable}', name=error.name
        ) from error
    return backend.make_group(options, backend_options)
