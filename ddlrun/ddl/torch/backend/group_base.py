"""The common part of process groups: names, the thread, and the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed as torch_distributed

from ddlrun.ddl.group.engine import Engine
from ddlrun.ddl.torch.backend.collectives import GroupCollectives
from ddlrun.ddl.torch.backend.messages import BlobExchange, MessageStarter
from ddlrun.ddl.torch.backend.operation_records import describe_works, name_function
from ddlrun.ddl.torch.backend.progress_thread import ProgressThread
from ddlrun.ddl.torch.backend.works import Call, FutureWork
from ddlrun.ddl.transports.tcp.communicator import TcpCommunicator, TcpTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.ddl.group.operation import Chunk
    from ddlrun.ddl.group.settings import GroupSettings
    from ddlrun.ddl.torch.backend.works import Starter
    from ddlrun.ddl.transports.tcp.endpoint import Endpoint

distributed: Any = torch_distributed  # its stubs differ from the methods that it calls

NAME = "ddl"


class GroupBase(distributed.ProcessGroup):  # type: ignore[misc]
    """A process group over an endpoint of its own. All members create it together.

    Works are started in the order of their calls, by the thread, which also completes them.

    From torch 2.14 on, a Python class can also be a backend of torch's own group. Its works, however, never become
    complete there (`is_completed`), and a message from any rank has no source. Both work in a subclass of ProcessGroup.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        seconds: float,
        arrived: Callable[[int], bool],
        read_settings: Callable[[], GroupSettings],
    ) -> None:
        """Start the thread; see ProgressThread, and GroupCollectives for `read_settings`."""
        super().__init__(endpoint.rank, endpoint.size)
        self._job, self._name = endpoint.job, ""
        members = TcpCommunicator(endpoint, range(endpoint.size), 1)
        self._messages = MessageStarter(members.Dup())
        transport: TcpTransport[Chunk] = TcpTransport(members.Dup())
        engine = Engine(transport, endpoint.rank)
        self._collectives = GroupCollectives(endpoint, engine, read_settings, members.Dup())
        self._blobs = BlobExchange(members.Dup())
        self._barriers = members.Dup()
        self._barrier_calls = 0
        self._thread = ProgressThread(endpoint, engine, transport, seconds, arrived)

    def getBackendName(self) -> str:  # noqa: N802 - torch's names, as all below
        """Return the name of the backend."""
        return NAME

    name = getBackendName

    @property
    def group_name(self) -> str:
        """The name of the group in torch's table of groups, which forgets destroyed ones."""
        return str(distributed.distributed_c10d._world.pg_names.get(self, self._name))  # noqa: SLF001

    pg_name = group_name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collectives that this rank has called."""
        return self._thread.collectives

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: all groups begin with 0."""

    def describe_operations(self) -> dict[str, Any]:
        """Return the number of collectives, the last ones, and what is not complete, for `ddlrun doctor`."""
        thread = self._thread
        recent = [(at, number, name_function(name)) for at, number, name in tuple(thread.recent)]
        return {
            "number": thread.collectives, "recent": recent, "operations": describe_works(thread.list_pending()),
        }  # fmt: skip

    def shutdown(self) -> None:
        """Complete what is in progress and close the connections."""
        self._thread.end()

    def abort(self) -> None:
        """Let all works fail, and close the connections."""
        self._thread.abort()

    def _submit(
        self,
        call: Call,
        start: Starter,
        done: Callable[[], None] | None = None,
        source: Callable[[], int] | None = None,
    ) -> FutureWork:
        """Hand a work to the thread; return what torch waits for. `done` is as in Work, `source` as in FutureWork."""
        return FutureWork(self._thread.submit(call, start, done), call.result, source)
