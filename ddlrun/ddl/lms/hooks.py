"""What scripts call: the hooks that torch runs whenever an operation saves a tensor for its backward."""

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

from ddlrun.ddl.lms.block import SavedTensor
from ddlrun.ddl.lms.device import Cuda
from ddlrun.ddl.lms.policy import Policy, read_policy
from ddlrun.ddl.lms.stats import Stats, added
from ddlrun.ddl.lms.swap import Swap
from ddlrun.ddl.options import parse_options

if TYPE_CHECKING:
    from types import TracebackType

    from torch.utils.hooks import RemovableHandle

    from ddlrun.ddl.lms.device import SwapDevice

_PLAIN = (Tensor, nn.Parameter)


class ResidentTensor(NamedTuple):
    """What torch keeps instead of a tensor that stays: the same memory, and its version when it was saved."""

    counter: Tensor
    version: int

    def fetch(self) -> Tensor:
        """Return the tensor."""
        return self.counter


class LMS:
    """Large-model support for what runs inside `with`, or in the forward of the modules that it is `around`.

    `size_kb`: memory of at least so many KB may leave the device; 0: none. `frac`: the share of the device, 0 to 1,
    that must be taken first. `window`: the share of it that may be on its way, out or back. What is not given is the
    launcher's (`ddlrun launch --lms SIZE_KB --lms-frac F`), else 1024, 0.7, 0.05. `device` stands in for CUDA; without
    either nothing happens. Raises InputError on what is no number, or no share.
    """

    def __init__(
        self,
        size_kb: float | None = None,
        frac: float | None = None,
        *,
        window: float | None = None,
        device: SwapDevice | None = None,
    ) -> None:
        self._asked = size_kb, frac, window, device
        self.policy: Policy = read_policy(size_kb, frac, window, os.environ)
        self._device = device
        self._swaps: dict[int, Swap] = {}
        self._handles: list[RemovableHandle] = []
        self._depth = threading.local()
        if parse_options(os.environ.get("DDL_OPTIONS", "")).dbg_level:
            atexit.register(_report, weakref.ref(self))

    @property
    def active(self) -> bool:
        """Whether anything can leave: there is a device, and a size."""
        return self.policy.size > 0 and (self._device is not None or torch.cuda.is_available())

    def stats(self) -> Stats:
        """Return what has been done so far; as text it is one line."""
        return added(*(swap.stats for swap in self._swaps.values()))

    def __enter__(self) -> LMS:  # noqa: PYI034 - typing.Self came with 3.11
        """Watch what this thread saves from here on; torch runs the innermost hooks alone."""
        if self.active:
            saved_tensors_hooks(self._pack, _unpack).__enter__()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Leave alone what is saved from here on; what was saved stays watched until its backward."""
        if self.active:
            saved_tensors_hooks(self._pack, _unpack).__exit__()

    def around(self, module: nn.Module) -> None:
        """Watch what each forward of a module saves, until `disable`."""
        self._handles += [
            module.register_forward_pre_hook(self._before),
            module.register_forward_hook(self._after, always_call=True),
        ]

    def disable(self) -> None:
        """Leave the modules alone from now on."""
        while self._handles:
            self._handles.pop().remove()

    def _before(self, _module: nn.Module, _args: Any) -> None:  # noqa: ANN401 - torch's own
        self._depth.now = getattr(self._depth, "now", 0) + 1
        self.__enter__()

    def _after(self, _module: nn.Module, _args: Any, _result: Any) -> None:  # noqa: ANN401 - torch's own
        if getattr(self._depth, "now", 0):  # else another hook failed before ours was called
            self._depth.now -= 1
            self.__exit__(None, None, None)

    def _pack(self, tensor: Tensor) -> SavedTensor | ResidentTensor:
        swap = self._swap(tensor) if self._may_leave(tensor) else None
        return swap.pack(tensor) if swap is not None else ResidentTensor(tensor.detach(), tensor._version)  # noqa: SLF001

    def _may_leave(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is large, and nothing but memory: no parameter, which would stay anyway."""
        return (
            type(tensor) in _PLAIN
            and tensor.layout is torch.strided
            and tensor.untyped_storage().nbytes() >= self.policy.size
            and not _is_parameter(tensor)
            and not (tensor._base is not None and _is_parameter(tensor._base))  # noqa: SLF001 - its name for all users
            and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)
        )

    def _swap(self, tensor: Tensor) -> Swap | None:
        """Return what swaps for the device of a tensor, if anything does."""
        if self._device is None and not tensor.is_cuda:
            return None
        index = tensor.get_device()
        if index not in self._swaps:
            self._swaps[index] = Swap(self._device or Cuda(index), self.policy)
        return self._swaps[index]

    def __deepcopy__(self, _memo: dict[int, Any]) -> LMS:
        """Return this: a copied module is watched by the same."""
        return self

    def __reduce__(self) -> tuple[type[LMS], tuple[float | None, float | None]]:
        """Save what was asked for, so that a module can be saved whole."""
        return LMS, self._asked[:2]


def enable(
    module: nn.Module,
    size_kb: float | None = None,
    frac: float | None = None,
    *,
    window: float | None = None,
    device: SwapDevice | None = None,
) -> LMS:
    """Watch what each forward of a module saves for its backward; the rest is as for `LMS`, which is returned."""
    large = LMS(size_kb, frac, window=window, device=device)
    large.around(module)
    return large


def _unpack(saved: SavedTensor | ResidentTensor) -> Tensor:
    """Return a tensor that was saved. Raises RuntimeError where it was changed since, as torch does without hooks."""
    now = saved.counter._version  # noqa: SLF001 - its name for all users
    if now != saved.version:
        shape = list(saved.shape if isinstance(saved, SavedTensor) else saved.counter.shape)
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{saved.counter.type()} {shape}], is at version {now}; expected version {saved.version} instead."
        )
    return saved.fetch()


def _is_parameter(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad


def _report(large: weakref.ref[LMS]) -> None:
    found = large()
    if found is not None and found.stats().saved:
        sys.stderr.write(f"ddlrun.ddl.lms: {found.stats()}\n")
