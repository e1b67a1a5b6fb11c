"""Duty "backend" of the start-up hook: init_process_group("ddl") without an import of ddlrun.ddl.

The backend is registered by name. The ddlrun of the user's Python is imported once a process group is made of it.
"""

# ruff: noqa: ANN401, INP001, PLC0415 - objects of torch; it imports as little as possible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "ddl"


def register(module: "Any") -> None:
    """Register the backend with torch.distributed's module, for tensors on the CPU."""
    module.Backend.register_backend(NAME, _make_group, extended_api=True, devices=["cpu"])


def _make_group(options: "Any", backend_options: "Any") -> "Any":
    from importlib import import_module

    return import_module("ddlrun.ddl.torch_backend").make_group(options, backend_options)
