"""The exchange of addresses through a store of torch.distributed."""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from torch import distributed as torch_distributed

from ddlrun.ddl.transports.tcp.connections import RankAddress
from ddlrun.ddl.transports.tcp.endpoint import Endpoint
from ddlrun.ddl.transports.tcp.own_host import find_own_address, listen, name_host
from ddlrun.ddl.transports.tcp.protocol import make_secret
from ddlrun.errors import LostRankError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddlrun.ddl.transports.tcp.address_exchange import Membership


distributed: Any = torch_distributed  # its stubs lack the stores


def find_store(environ: Mapping[str, str]) -> Any:  # noqa: ANN401 - a Store, or None
    """Return torchrun's store, that of the default group if the script began one, or None."""
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        address, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        tcp_store = distributed.TCPStore(address, port, is_master=False)
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return distributed.PrefixStore(f"ddlrun.ddl/{attempt}", tcp_store)
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.PrefixStore("ddlrun.ddl", distributed.distributed_c10d._get_default_store())  # noqa: SLF001


def join_by_store(job: Membership, store: Any) -> Endpoint:  # noqa: ANN401 - a Store
    """Return an endpoint whose peers' addresses are read from the store when they are needed."""
    address = find_own_address(job.address)
    listener = listen(address)
    store.set(address_key(job.rank), json.dumps([*listener.getsockname()[:2], name_host()]))
    if job.rank == 0:
        store.set("secret", secrets.token_hex())
    limit = timedelta(seconds=job.seconds)

    def read(key: str, rank: int) -> str:
        try:
            store.wait([key], limit)
        except RuntimeError as error:
            raise LostRankError(f"{job}: rank {job.number(rank)} did not arrive within {job.seconds:.0f} s") from error
        return str(store.get(key).decode())

    @cache
    def address_of(rank: int) -> RankAddress:
        return RankAddress(*json.loads(read(address_key(rank), rank)))

    return Endpoint(job, listener, make_secret(job.secret or read("secret", 0)), address_of)


def address_key(rank: int) -> str:
    """Return the key of a rank's address in the store."""
    return f"address/{rank}"
