"""Snapshots: the processes of a rank as its keeper sees them (keeper/stacks/snapshot.py), and all ranks of a job."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ddlrun.hangs.communicators import NcclCommunicator
from ddlrun.ranges import find_runs, is_successor, render_range, render_spaced

# PyTorch's description of the group of all ranks, and those that say nothing.
DEFAULT_GROUP, UNNAMED = "default_pg", ("", "undefined")
FEW_MEMBERS, MOST_WORDS = 4, 16
# The start-up hook records so many.
MOST_MESSAGES, ANY = 64, -1
PREPOSITIONS = {"send": "to", "recv": "from"}


class Frame(NamedTuple):
    """A function on a stack."""

    function: str
    file: str
    """The path of the file, or the library of native code."""
    line: int
    """0: unknown, as in native code."""
    source: str
    """The line of the file; empty if it cannot be read."""

    @property
    def place(self) -> str:
        """The file and the line in words, without the folder."""
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else name


class ThreadStack(NamedTuple):
    """The stack of a thread, the innermost function first."""

    id: int
    """The number that the system has for the thread; 0: unknown."""
    name: str
    active: bool
    """Whether it runs, as far as is known."""
    frames: tuple[Frame, ...]


class LockHolder(NamedTuple):
    """The process that holds a lock on a file."""

    file: str
    pid: int
    name: str
    rank: int | None
    """Its rank in this job; None: it is not in it."""


class Counters(NamedTuple):
    """What a process has used since its start; 0: nothing, or not known."""

    threads: Mapping[int, tuple[float, float]] = MappingProxyType({})
    """Thread -> the seconds in which it had a CPU, and those in which it waited for one."""
    ended: float = 0.0
    """The seconds of CPU time of children that have ended."""
    read: int = 0
    """Bytes that system calls have read, also from pipes and cached files, in it and in children that have ended."""
    written: int = 0
    stored: int = 0
    """Bytes from and to storage."""
    received: int = 0
    """Bytes over its TCP connections."""
    sent: int = 0
    first: int = 0
    """Bytes that its first thread has read and written."""
    faults: int = 0
    """Pages of memory that its first thread has used for the first time."""
    mpi: bool = False
    """Whether it has loaded a library of MPI."""


class ProcessSnapshot(NamedTuple):
    """A process of a rank; the first one is the program."""

    pid: int
    name: str
    state: str
    """The letter of /proc/PID/stat, such as R, S, D or T."""
    waits_in: str
    """The function of the kernel; empty: none, or unknown."""
    call: str
    """The system call of its first thread; empty: none, or not known."""
    target: str
    """The file that the call is about; empty: none, or not known."""
    command: tuple[str, ...]
    """The first words of its command line."""
    threads: tuple[ThreadStack, ...]
    """Empty unless the process runs Python."""
    problem: str
    """The reason why a Python process has no stacks."""
    switches: int
    """The number of times that its first thread has begun to wait."""
    replies: int
    """The number of its replies to probes: its main thread has run Python code after each (see keeper/stacks/)."""
    time: float
    """The time of the snapshot, in seconds of its host's clock."""
    gpu: bool
    """Whether it has opened a GPU."""
    holder: LockHolder | None = None
    """The process with the lock on a file that it waits for; None: it waits for none, or that is not known."""
    variables: tuple[str, ...] = ()
    """Its last replies: a word CODE:VALUES per function, the outermost first; the second number is of its variables."""
    counters: Counters = Counters()


class DeadConnection(NamedTuple):
    """A connection on which the other side acknowledges nothing."""

    local: str
    remote: str


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    >>> name_ranks([2]), name_ranks([3, 0, 1]), name_ranks([0, 2, 3, 4, 7])
    ('rank 2', 'ranks 0, 1 and 3', 'ranks 0, 2-4 and 7')
    """
    words = [word for low, high in find_runs(sorted(ranks), is_successor) for word in _name_run(low, high)]
    if len(words) > MOST_WORDS:
        return f"{len(ranks)} ranks ({render_spaced(sorted(ranks))})"
    listed = f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}"


def _name_run(low: int, high: int) -> list[str]:
    """Return a run of successive ranks: the ends of a long one, or each of two."""
    return [str(rank) for rank in range(low, high + 1)] if high < low + 2 else [render_range(low, high)]


class ProcessGroup(NamedTuple):
    """A group of ranks in which operations of torch.distributed run."""

    name: str = "0"
    """PyTorch's name, which is equal in all members; those of other groups may have the same one."""
    description: str = DEFAULT_GROUP
    """The name that the program or PyTorch gave to groups of this kind, such as mesh_tp."""
    members: tuple[int, ...] = ()
    """Empty: not known."""
    is_certain: bool = True
    """Whether there are no other members; otherwise, these have used it."""

    @property
    def is_default(self) -> bool:
        """Whether it is the group of all ranks."""
        return self.description == DEFAULT_GROUP

    @property
    def kind(self) -> str:
        """The name in words, which groups of the same kind share."""
        return f"group {self.name}" if self.description in UNNAMED else self.description

    @property
    def text(self) -> str:
        """The group in words, such as `mesh_tp (ranks 2 and 3)`."""
        if not self.members:
            return self.kind
        used = "" if self.is_certain else "used by "
        few = len(self.members) <= FEW_MEMBERS
        members = name_ranks(self.members) if few else f"ranks {render_spaced(self.members)}"
        return f"{self.kind} ({used}{members})"


class StartedGroup(NamedTuple):
    """The use of a group by a rank."""

    number: int
    """The number of its last collective operation."""
    description: str


class RecentOperation(NamedTuple):
    """A collective operation or message that a rank has begun."""

    group: str
    """The name of its group."""
    number: int
    """1 for the first operation of its group, or message to or from its peer."""
    name: str
    peer: int | None = None
    """The other rank of a message; ANY: any."""

    @property
    def series(self) -> tuple[str, str, int | None]:
        """The parts in which operations agree that are numbered together."""
        return self.group, "" if self.peer is None else self.name, self.peer


class RecordedOperation(NamedTuple):
    """An operation of torch.distributed that has not ended."""

    number: int
    """1 for the first operation of its group, or with its peer; 0: it has none."""
    name: str
    data: str
    """The types and sizes of its tensors, such as Float[4]; empty if it has none."""
    backend: str = ""
    """The backend, such as nccl; empty if it is not known."""
    group: ProcessGroup = ProcessGroup()
    peer: int | None = None
    """The rank to which it sends or from which it receives; None: it is a collective operation."""
    tag: int = 0
    """Of a send or receive."""

    @property
    def call(self) -> tuple[str, int, str, int | None]:
        """The parts that are equal in ranks that wait for each other in a collective operation."""
        return self.group.name, self.number, self.name, self.peer

    @property
    def series(self) -> tuple[str, str, int | None]:
        """The parts in which operations agree that are numbered together."""
        return RecentOperation(self.group.name, self.number, self.name, self.peer).series

    @property
    def short_text(self) -> str:
        """The operation in words without its number, such as `all_reduce of mesh_tp`, or `recv from rank 2`."""
        peer = "" if self.peer is None else f" {PREPOSITIONS.get(self.name, 'with')} rank {self.peer}"
        return self.name + ("" if self.group.is_default else f" of {self.group.kind}") + peer

    @property
    def text(self) -> str:
        """The operation in words, such as `collective 5 of mesh_tp (ranks 2 and 3): all_reduce`."""
        group = "" if self.group.is_default else f" of {self.group.text}"
        if self.peer is not None:
            number, tag = f" {self.number}" if self.number else "", f", tag {self.tag}" if self.tag else ""
            return f"{self.name}{number}{group} {PREPOSITIONS.get(self.name, 'with')} rank {self.peer}{tag}"
        return f"collective {self.number}{group}: {self.name}"


class RankSnapshot(NamedTuple):
    """The processes of a rank at one moment."""

    processes: tuple[ProcessSnapshot, ...]
    connections: tuple[DeadConnection, ...]
    operations: tuple[RecordedOperation, ...] = ()
    """The first operation of each group, and with each peer, that has not ended; the oldest first."""
    started: Mapping[str, StartedGroup] = MappingProxyType({})
    """PositionGroup's name -> the operations that the rank has begun in it; empty: not known."""
    knows_groups: bool = False
    """Whether it has all groups of the rank, in the order of their creation."""
    recent: tuple[RecentOperation, ...] = ()
    """The last operations that the rank has begun, the oldest first."""
    ended: int = 0
    """The number of operations of torch.distributed that have ended; 0: none, or not known."""
    communicators: tuple[NcclCommunicator, ...] = ()
    """Those of NCCL, as far as it knows them; from the first rank of each host."""
    storage: int = 0
    """The bytes that all processes of its host have read from storage and written to it; 0: not known."""
    stays: bool = False
    """Whether it is in the same operation as in an earlier snapshot, without Python code of its main thread since."""

    @property
    def messages(self) -> tuple[RecentOperation, ...]:
        """The last messages that the rank has begun, the oldest first."""
        return tuple(use for use in self.recent if use.peer is not None)


class ExaminedRank(NamedTuple):
    """A rank of a job at one moment."""

    rank: int
    host: str
    snapshot: RankSnapshot | None = None
    """None: it has ended, or its keeper did not reply."""
    exit_code: int | None = None
    """None: it has not ended."""
    reachable: bool = True
    """Whether its host acknowledges what ddlrun sends."""


class JobSnapshot(NamedTuple):
    """All ranks of a job at one moment."""

    ranks: tuple[ExaminedRank, ...]
    dumped: bool = False
    """Whether it comes from files that a job has left: a rank without a snapshot left none."""

    @property
    def snapshots(self) -> dict[int, RankSnapshot]:
        """The snapshots of the ranks whose keepers have replied."""
        return {rank.rank: rank.snapshot for rank in self.ranks if rank.snapshot is not None}
