"""The settings of a keeper."""

from __future__ import annotations

from ddlrun.keeper import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.keeper.container import Container
    from ddlrun.keeper.program_streams import InputRequest
    from ddlrun.keeper.shipped import Places

# The variables in which Open MPI says which rank a process is; DDLRUN_RANK_VARIABLES has the names of another process
# manager.
OPEN_MPI = "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_SIZE"
MPIRUN = "mpirun, or its daemon on that host,"
OTHER_MANAGER = "the process manager, or its daemon on that host,"

# The variable with the places of the files that were shipped to this host: JSON, see ShipRequest.variable.
SHIPPED = "DDLRUN_SHIPPED"
# The variable with the container of the program: JSON, see ContainerRequest.variable.
CONTAINER = "DDLRUN_CONTAINER"
# The variable with the folder of relays: see supervise/relays.py.
RELAYS = "DDLRUN_RELAYS"
# The variable with the duties of the start-up hook of Python ranks, all of them by default: see hook/sitecustomize.py.
HOOK = "DDLRUN_HOOK"
DUTIES = ("exit", "backend", "stacks", "world")


@record
class KeeperSettings:
    """A rank whose variables and binding are set up, and its job."""

    argv: list[str]
    """The command line of the program."""
    label: str
    """The rank and its host, for messages."""
    local_rank: int
    """The rank's number on its host."""
    parent: int
    """The process that started the keeper: the process manager, its daemon, or an agent."""
    grace: float
    """Seconds from SIGTERM to SIGKILL where no message gives them."""
    heartbeat: float
    """Seconds of silence after which ddlrun counts as lost; 0: no limit."""
    rank: int = -1
    size: int = -1
    """The number of ranks of the job; -1 if unknown, like the rank."""
    manager: str = MPIRUN
    """The name of the keeper's parent, for messages."""
    orders: int | None = None
    """A pipe from which the exit code comes if the program calls MPI_Abort; None: there is none."""
    container: Container | None = None
    """The container of the program; None: it has none."""
    link: int | None = None
    """A descriptor that the program inherits; None: there is none."""
    ports: tuple[int, ...] = ()
    """The planned ports on which the program may listen."""
    report: str = ""
    """The report of the rank's binding; empty: nothing was planned."""
    problems: tuple[str, ...] = ()
    """The differences from the plan."""
    strict: bool = False
    """Whether these forbid the start of the program."""
    request: InputRequest | None = None
    """The standard input that comes from ddlrun; None: it is the keeper's."""
    places: Places | None = None
    """The places of the files that were shipped to this host; None: none were."""
