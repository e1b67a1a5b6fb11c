"""The backend "ddl" of torch.distributed: `torch.distributed.init_process_group("ddl")`.

Import `ddlrun.ddl.torch` first, which registers it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import distributed as torch_distributed

from ddlrun.ddl.rendezvous import find_rendezvous_address
from ddlrun.ddl.tcp.address_exchange import Membership
from ddlrun.ddl.tcp.store_exchange import join_by_store
from ddlrun.ddl.torch_backend.process_group import NAME, DdlProcessGroup

if TYPE_CHECKING:
    from datetime import timedelta

distributed: Any = torch_distributed  # its stubs lack the methods that are called here


def register() -> None:
    """Register the backend for tensors on the CPU. A second call does nothing."""
    if not hasattr(distributed.Backend, NAME.upper()):
        distributed.Backend.register_backend(NAME, _make_group, devices=["cpu"])


def _make_group(store: Any, rank: int, size: int, timeout: timedelta) -> DdlProcessGroup:  # noqa: ANN401
    address = os.environ.get("MASTER_ADDR") or find_rendezvous_address({}, one_host=False)
    job = Membership(
        rank=rank,
        size=size,
        address=address,
        port=0,
        secret=os.environ.get("DDLRUN_DDL_SECRET", "").encode(),
        seconds=timeout.total_seconds(),
    )
    return DdlProcessGroup(join_by_store(job, store), timeout)
