"""The settings of a keeper, and the rank that it starts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ddlrun.keeper.container import Container
    from ddlrun.keeper.program_input import InputRequest
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


class KeeperSettings:
    """The facts about a rank and its job that the keeper needs."""

    def __init__(
        self,
        *,
        label: str,
        rank: int = -1,
        size: int = -1,
        local_rank: int,
        parent: int,
        grace: float,
        heartbeat: float,
        manager: str = MPIRUN,
        orders: int | None = None,
        container: Container | None = None,
        link: int | None = None,
        ports: tuple[int, ...] = (),
    ) -> None:
        self.label = label
        """The rank and its host, for messages."""
        self.rank, self.size = rank, size
        """The rank, and the number of ranks of the job; -1 if unknown."""
        self.local_rank = local_rank
        """The rank's number on its host."""
        self.parent = parent
        """The process that started the keeper: the process manager, its daemon, or an agent."""
        self.manager = manager
        """The name of that process, for messages."""
        self.grace = grace
        """Seconds from SIGTERM to SIGKILL where no message gives them."""
        self.heartbeat = heartbeat
        """Seconds of silence after which ddlrun counts as lost; 0: no limit."""
        self.orders = orders
        """A pipe from which the exit code comes if the program calls MPI_Abort; None: there is none."""
        self.container = container
        """The container of the program; None: it has none."""
        self.link = link
        """A descriptor that the program inherits; None: there is none."""
        self.ports = ports
        """The planned ports on which the program may listen."""


class PreparedRank:
    """A rank whose variables and binding are set up."""

    def __init__(
        self,
        *,
        argv: list[str],
        report: str,
        problems: list[str],
        strict: bool,
        request: InputRequest | None,
        places: Places | None,
    ) -> None:
        self.argv = argv
        """The command line of the program."""
        self.report = report
        """The report of its binding; empty: nothing was planned."""
        self.problems = problems
        """The differences from the plan."""
        self.strict = strict
        """Whether these forbid the start of the program."""
        self.request = request
        """The standard input that comes from ddlrun; None: it is the keeper's."""
        self.places = places
        """The places of the files that were shipped to this host; None: none were."""
