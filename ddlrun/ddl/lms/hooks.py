"""Hooks that torch calls whenever an operation saves a tensor for backward, and the classes that set them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ddlrun.ddl.launch_context import parse_options
from ddlrun.ddl.lms.block import SavedTensor
from ddlrun.ddl.lms.device import Cuda
from ddlrun.ddl.lms.policy import Policy, read_policy
from ddlrun.ddl.lms.stats import Stats, sum_stats
from ddlrun.ddl.lms.swap import Swap

if TYPE_CHECKING:
    from types import TracebackType

    from torch.utils.hooks import RemovableHandle

    from ddlrun.ddl.lms.device import SwapDevice

# Subclasses of Tensor may be more than memory.
_PLAIN = (Tensor, nn.Parameter)


class ResidentTensor(NamedTuple):
    """The object that torch saves instead of a tensor that stays: the same memory, and its version when saved."""

    counter: Tensor
    version: int

    def fetch(self) -> Tensor:
        """Return the tensor."""
        return self.counter


class LMS:
    """Large-model support for code inside `with`, or for the forward of modules (`around`).

    It learns in the first five passes, which reset torch's peak statistics: use one object for all passes. In the first
    two, all memory leaves.

    Args:
        size_kb: The least size of memory that may leave the device, in units of 1024 bytes; 0: none leaves. Default:
            that of `ddlrun launch --lms SIZE_KB`, else 1024.
        frac: The share of the device, from 0 to 1, that must be in use before memory leaves, from the third pass on.
            Default: that of `ddlrun launch --lms-frac F`, else 0.7.
        window: The share of the device that may be copied at a time, in each direction. Default: 0.05.
        device: A device to use instead of CUDA. Without CUDA and without a device, LMS does nothing.

    Raises:
        InputError: A value is not a number, or a share is not from 0 to 1.
    """

    def __init__(
        self,
        size_kb: float | None = None,
        frac: float | None = None,
        *,
        window: float | None = None,
        device: SwapDevice | None = None,
    ) -> None:
        self._arguments = size_kb, frac
        self.policy: Policy = read_policy(size_kb, frac, window, os.environ)
        self._device = device
        self._swaps: dict[int, Swap] = {}
        self._handles: list[RemovableHandle] = []
        self._depth = threading.local()
        if parse_options(os.environ.get("DDL_OPTIONS", "")).dbg_level:
            atexit.register(_report, weakref.ref(self))

    @property
    def active(self) -> bool:
        """True if memory can leave: there is a device, and the size is above 0."""
        return self.policy.size > 0 and (self._device is not None or torch.cuda.is_available())

    def stats(self) -> Stats:
        """Return the statistics so far; `str()` of them is one line."""
        return sum_stats(*(swap.stats for swap in self._swaps.values()))

    def __enter__(self) -> LMS:  # noqa: PYI034 - typing.Self came with 3.11
        """Watch the tensors that this thread saves from here on. torch calls the innermost hooks only."""
        if self.active:
            saved_tensors_hooks(self._pack, _unpack).__enter__()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Stop watching. Tensors that were saved may still leave, until their backward."""
        if self.active:
            saved_tensors_hooks(self._pack, _unpack).__exit__()

    def around(self, module: nn.Module) -> None:
        """Watch the tensors that each forward of a module saves, until `disable`."""
        self._handles += [
            module.register_forward_pre_hook(self._before_forward),
            module.register_forward_hook(self._after_forward, always_call=True),
        ]

    def disable(self) -> None:
        """Stop watching all modules."""
        while self._handles:
            self._handles.pop().remove()

    def _before_forward(self, _module: nn.Module, _args: Any) -> None:  # noqa: ANN401 - torch's signature
        self._depth.value = getattr(self._depth, "value", 0) + 1
        self.__enter__()

    def _after_forward(self, _module: nn.Module, _args: Any, _result: Any) -> None:  # noqa: ANN401 - torch's signature
        if getattr(self._depth, "value", 0):  # 0 if another pre-hook failed before this object's
            self._depth.value -= 1
            self.__exit__(None, None, None)

    def _pack(self, tensor: Tensor) -> SavedTensor | ResidentTensor:
        swap = self._find_swap(tensor) if self._may_leave(tensor) else None
        return swap.pack(tensor) if swap is not None else ResidentTensor(tensor.detach(), tensor._version)  # noqa: SLF001

    def _may_leave(self, tensor: Tensor) -> bool:
        """Return True for a tensor that is large, plain memory, and not of a parameter, which would stay anyway."""
        return (
            type(tensor) in _PLAIN
            and tensor.layout is torch.strided
            and tensor.untyped_storage().nbytes() >= self.policy.size
            and not _is_parameter(tensor)
            and not (tensor._base is not None and _is_parameter(tensor._base))  # noqa: SLF001 - torch has no other name
            and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)
        )

    def _find_swap(self, tensor: Tensor) -> Swap | None:
        """Return the swap of the tensor's device; None for a tensor on the CPU, unless a device stands in for CUDA."""
        if self._device is None and not tensor.is_cuda:
            return None
        index = tensor.get_device()
        if index not in self._swaps:
            self._swaps[index] = Swap(self._device or Cuda(index), self.policy)
        return self._swaps[index]

    def __deepcopy__(self, _memo: dict[int, Any]) -> LMS:
        """Return this object: a copied module is watched by the same one."""
        return self

    def __reduce__(self) -> tuple[type[LMS], tuple[float | None, float | None]]:
        """Save the arguments, so that a module can be saved as a whole."""
        return LMS, self._arguments


def enable(
    module: nn.Module,
    size_kb: float | None = None,
    frac: float | None = None,
    *,
    window: float | None = None,
    device: SwapDevice | None = None,
) -> LMS:
    """Watch the tensors that each forward of a module saves for backward.

    Args:
        module: The module.
        size_kb: As in `LMS`.
        frac: As in `LMS`.
        window: As in `LMS`.
        device: As in `LMS`.

    Returns:
        The LMS that watches the module.

    Raises:
        InputError: As in `LMS`.
    """
    large = LMS(size_kb, frac, window=window, device=device)
    large.around(module)
    return large


def _unpack(saved: SavedTensor | ResidentTensor) -> Tensor:
    """Return a tensor that was saved.

    Raises RuntimeError, with the text that torch has without hooks, if the tensor was changed in place since.
    """
    version = saved.counter._version  # noqa: SLF001 - torch has no other name for it
    if version != saved.version:
        shape = list(saved.shape if isinstance(saved, SavedTensor) else saved.counter.shape)
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{saved.counter.type()} {shape}], is at version {version}; expected version {saved.version} instead."
        )
    return saved.fetch()


def _is_parameter(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad


def _report(reference: weakref.ref[LMS]) -> None:
    large = reference()
    if large is not None and large.stats().saved:
        sys.stderr.write(f"ddlrun.ddl.lms: {large.stats()}\n")
