"""torch.distributed for the duties of the start-up hook: they are called after its import and in each new group."""

# ruff: noqa: ANN401, INP001, PLC0415 - objects of torch; it imports as little as possible, and nothing from the package

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Duties with a function that is called after torch.distributed.init_process_group.
AFTER_INIT = ("stacks", "world")


def find(name: str, duties: "list[str]", load: "Callable[[str], Any]") -> "Any":
    """Return the specification of torch's module, with a loader that calls the duties; `load` imports theirs."""
    import importlib.util

    spec = importlib.util.find_spec(name)
    loader: Any = None if spec is None else spec.loader
    execute = getattr(loader, "exec_module", None)

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        execute(module)  # type: ignore[misc]
        if "backend" in duties:
            load("backend").register(module)
        called = [duty for duty in AFTER_INIT if duty in duties]
        module.init_process_group = _call_after(module.init_process_group, lambda: [load(duty) for duty in called])

    if execute is not None:
        loader.exec_module = exec_module
    return spec


def _call_after(init: "Callable[..., None]", load_all: "Callable[[], list[Any]]") -> "Callable[..., None]":
    from functools import wraps

    own_pid = os.getpid()

    @wraps(init)
    def init_process_group(*arguments: object, **words: object) -> None:
        init(*arguments, **words)
        for module in load_all() if os.getpid() == own_pid else ():  # not in a process that the rank has forked
            module.on_group()

    return init_process_group
