"""The backend "ddl" of torch.distributed: `torch.distributed.init_process_group("ddl")`.

The start-up hook of `ddlrun launch` registers it by its name, and so does torch's entry point for extensions: see
`ddlrun/keeper/hook/ddlrun_backend.py`. Where there is neither, import `ddlrun.ddl.torch` first.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import distributed as torch_distributed

from ddlrun.ddl.group.settings import publish, read_published
from ddlrun.ddl.torch.backend.group_base import NAME
from ddlrun.ddl.torch.backend.process_group import DdlProcessGroup
from ddlrun.ddl.transports.tcp.address_exchange import Membership
from ddlrun.ddl.transports.tcp.own_host import find_rendezvous_address
from ddlrun.ddl.transports.tcp.store_exchange import address_key, join_by_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from ddlrun.ddl.group.settings import GroupSettings
    from ddlrun.ddl.transports.tcp.endpoint import Endpoint

distributed: Any = torch_distributed  # its stubs lack the methods that are called here


def register() -> None:
    """Register the backend for tensors on the CPU. A second call does nothing."""
    if not hasattr(distributed.Backend, NAME.upper()):
        distributed.Backend.register_backend(NAME, make_group, extended_api=True, devices=["cpu"])


def _accept_timeouts(c10d: Any) -> None:  # noqa: ANN401 - torch's module
    """Extend torch's _set_pg_timeout, which supports gloo and NCCL only, to this backend, unless that has been done."""
    set_of_others = c10d._set_pg_timeout  # noqa: SLF001 - it has no public name
    if set_of_others.__module__ == __name__:
        return

    def set_timeout(timeout: timedelta, group: Any = None) -> None:  # noqa: ANN401 - a ProcessGroup
        group = c10d._get_default_group() if group is None else group  # noqa: SLF001
        if isinstance(group, DdlProcessGroup):
            group.set_timeout(timeout)
        else:
            set_of_others(timeout, group)

    c10d._set_pg_timeout = set_timeout  # noqa: SLF001


def make_group(options: Any, backend_options: Any) -> DdlProcessGroup:  # noqa: ANN401 - DistributedBackendOptions
    """Return a process group of the backend: torch calls this for each group."""
    _accept_timeouts(distributed.distributed_c10d)
    return DdlProcessGroup(*join(options), backend_options=backend_options)


def join(options: Any) -> tuple[Endpoint, float, Callable[[int], bool], Callable[[], GroupSettings]]:  # noqa: ANN401 - DistributedBackendOptions
    """Join the other members of a group; return the arguments of its class."""
    ranks = tuple(options.global_ranks_in_group)  # none for the default group
    timeout: timedelta = options.timeout
    job = Membership(
        rank=options.group_rank,
        size=options.group_size,
        address=os.environ.get("MASTER_ADDR") or find_rendezvous_address({}, one_host=False),
        port=0,
        secret=os.environ.get("DDLRUN_DDL_SECRET", ""),
        seconds=timeout.total_seconds(),
        group=f"group {options.group_id}" if ranks else "default group",
        ranks=ranks,
    )
    store = options.store
    read_settings = partial(read_published, store, is_part=bool(ranks) and len(ranks) < distributed.get_world_size())
    if job.rank == 0:
        publish(store)  # before its address, with which the others read them
    endpoint = join_by_store(job, store)
    return endpoint, job.seconds, lambda rank: bool(store.check([address_key(rank)])), read_settings
