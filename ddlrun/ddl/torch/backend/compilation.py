"""Methods that torch.compile skips: torch's C++ code calls them while the surrounding code is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Method = TypeVar("Method", bound="Callable[..., Any]")

FRAMES: Any = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]  # noqa: SLF001 - see `uncompiled`


def uncompiled(method: Method) -> Method:
    """Exclude a method, and what it calls, from torch.compile.

    `torch.compiler.disable` would import the compiler, which takes seconds. Before PyTorch 2.7 this does nothing.
    """
    if hasattr(FRAMES, "set_code_exec_strategy"):
        skip = FRAMES._FrameAction.SKIP  # noqa: SLF001
        FRAMES.set_code_exec_strategy(method.__code__, FRAMES._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return method
