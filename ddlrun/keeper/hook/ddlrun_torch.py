"""torch.distributed for the duties of the start-up hook: they are called after its import, and around its start."""

# ruff: noqa: ANN401, INP001, PLC0415 - objects of torch; it imports as little as possible, and nothing from the package

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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
        if "stacks" in duties:
            load("stacks").record_messages(module)
        module.init_process_group = _call_around(module.init_process_group, duties, load)

    if execute is not None:
        loader.exec_module = exec_module
    return spec


def _call_around(
    init: "Callable[..., None]", duties: "list[str]", load: "Callable[[str], Any]"
) -> "Callable[..., None]":
    from functools import wraps

    own_pid = os.getpid()

    @wraps(init)
    def init_process_group(*arguments: object, **words: object) -> None:
        is_rank = os.getpid() == own_pid  # and not a process that the rank has forked
        if is_rank and "stacks" in duties:
            load("stacks").before_group()
        init(*arguments, **words)
        if is_rank and "world" in duties:
            load("world").on_group()

    return init_process_group
