"""Cells of tests.bench.allreduce: hosts, rates, sizes, algorithms, and the limit of an allreduce there."""

from typing import NamedTuple

from tests.support.managers import INTEL_MPI, MPICH, MPIRUN, Manager

PAYLOAD = 1448 / 1514
# The bursts that the shapers of tests.cluster.cluster let pass.
NIC_BUCKET, UPLINK_BUCKET = 512 * 1024, 128 * 1024
# Above this size, in MiB, only the algorithms in `large` run: a run of the others takes 12 seconds or more.
LARGE = 16

ALL = ("p", "tcp", "mpi", "tuned-best", "han", "horovod", "gloo", "two-level")
ALL_5 = ("p", "mpi", "tuned", "tuned-best", "horovod", "two-level")
OTHER = ("p", "mpi", "mpi-host", "two-level")
FLAT = ("p", "mpi", "mpi-host", "han", "horovod", "gloo", "two-level")
SOME = ("p", "mpi", "mpi-host", "horovod")


class Cell(NamedTuple):
    """A cluster of X learners per host x Y hosts per rack x Z racks, rates in Mbit/s, and the runs of one job there."""

    name: str
    learners: int = 2
    hosts: int = 2
    racks: int = 2
    nic: int = 200
    uplink: int = 100
    manager: Manager = MPIRUN[4]
    order: str = "host"
    flow: int = 0  # Mbit/s of each connection
    mib: tuple[float, ...] = (16,)
    names: tuple[str, ...] = ALL
    large: tuple[str, ...] = ("p", "tcp", "mpi")
    rounds: int = 7
    budget: float = 7  # seconds per algorithm and size after which 3 runs are enough
    in_a_row: int = 1  # MiB that smaller arrays add up to in a row, at most 256 times

    @property
    def shape(self) -> str:
        return f"{self.learners}x{self.hosts}x{self.racks}"

    @property
    def one_host(self) -> bool:
        """Whether the host is this machine, with shared memory."""
        return self.hosts * self.racks == 1

    @property
    def title(self) -> str:
        rates = "shared memory" if self.one_host else f"NIC {self.nic}, uplink {self.uplink} Mbit/s"
        rates += f", {self.flow} per connection" if self.flow else ""
        return f"{self.name}: {self.shape}, {rates}, {self.manager.title}, {self.order} order"

    def names_at(self, mib: float) -> tuple[str, ...]:
        """Return the algorithms that run at a size."""
        return self.names if mib <= LARGE else tuple(name for name in self.names if name in self.large)

    def limit(self, mib: float, passes: int = 2) -> float:
        """Return T*, the least seconds of the busiest link; 0 where there is no meaningful limit.

        `passes` is 2 for an allreduce, 1 for a reduce-scatter or an allgather, which carry half of its bytes.
        """
        if self.one_host:
            return 0
        size, hosts = mib * 2**20 / PAYLOAD, self.hosts * self.racks
        through_nic = passes * (hosts - 1) / hosts * size - NIC_BUCKET
        through_uplink = passes * (self.racks - 1) / self.racks * size - UPLINK_BUCKET
        return max(through_nic * 8e-6 / self.nic, through_uplink * 8e-6 / self.uplink, 0)

    @property
    def pause(self) -> float:
        """The seconds in which the buckets of the shapers fill up, as the limit assumes."""
        return 0 if self.one_host else 1.2 * 8e-6 * max(NIC_BUCKET / self.nic, UPLINK_BUCKET / self.uplink)

    def least(self, mib: float, passes: int = 2) -> float:
        """Return the payload bytes that an uplink must carry, both directions together."""
        return 2 * passes * (self.racks - 1) / self.racks * mib * 2**20


_ONE = Cell("", hosts=1, racks=1, mib=(1 / 256, 1 / 64, 1 / 16, 1, 16, 64), rounds=25, in_a_row=64)
_ONE = _ONE._replace(names=("p", "r", "tcp", "mpi", "gloo"), large=("p", "r", "tcp", "mpi", "gloo"))
_16 = Cell("", learners=4, nic=100, uplink=50)
TABLE = (
    _ONE._replace(name="one-host-4"),
    _ONE._replace(name="one-host-5", manager=MPIRUN[5]),
    Cell("main-4", mib=(1 / 16, 1 / 4, 1, 4, 16, 64), names=(*ALL, "torch-ddl"), budget=15),
    Cell("main-4-row", mib=(1 / 4, 1), names=("p", "tcp", "torch-ddl", "mpi", "gloo"), budget=15, in_a_row=16),
    Cell("cores-4", learners=1, racks=1, mib=(1, 16), names=("tcp", "torch-ddl", "gloo"), rounds=15, budget=60),
    Cell("main-4-ddl", order="ddl", mib=(1 / 16, 1, 16), names=FLAT),
    Cell("main-5", mib=(1 / 16, 1, 16), names=ALL_5, manager=MPIRUN[5]),
    Cell("main-5-ddl", order="ddl", mib=(16,), names=(*SOME, "tuned"), manager=MPIRUN[5]),
    Cell("main-mpich", mib=(1 / 16, 1, 16), names=OTHER, manager=MPICH),
    Cell("main-intel", mib=(1 / 16, 1, 16), names=OTHER, manager=INTEL_MPI),
    Cell("even-4", uplink=400, mib=(1, 16)),
    Cell("even-4-ddl", uplink=400, order="ddl", mib=(16,), names=SOME),
    Cell("three-4", hosts=1, racks=3, mib=(1, 16)),
    Cell("three-4-ddl", hosts=1, racks=3, order="ddl", mib=(16,), names=SOME),
    _16._replace(name="sixteen-4", mib=(1, 16)),
    _16._replace(name="sixteen-4-ddl", order="ddl", mib=(4,), names=SOME),
)

_SMALL = Cell("smoke", learners=1, hosts=1, nic=1000, uplink=1000, mib=(1 / 64,), rounds=1)
SMOKE = (
    _SMALL._replace(name="smoke-one-host", learners=2, racks=1, names=_ONE.names, manager=MPIRUN[5]),
    _SMALL._replace(name="smoke-4"),
    _SMALL._replace(name="smoke-mpich", names=("p", "mpi"), manager=MPICH),
    _SMALL._replace(name="smoke-5-ddl", names=ALL_5, manager=MPIRUN[5], order="ddl"),
)

# Does mode p find the best? Beside it run the candidates of its first choice.
_FIXED = tuple(f"p=chunk={chunk},flat=0" for chunk in ("32K", "64K", "96K", "128K", "256K", "512K", "1M", "4M"))
_P = Cell("", mib=(1 / 4, 1, 4, 16), names=("p", "mpi-host", "m", *_FIXED))
EXPLORED = (
    _P._replace(name="explored-main"),
    _P._replace(name="explored-main-5", manager=MPIRUN[5]),
    _P._replace(name="explored-even", uplink=400),
    _P._replace(name="explored-three", hosts=1, racks=3),
    _P._replace(name="explored-one", hosts=1, racks=1, rounds=25, in_a_row=16),
    _P._replace(name="explored-one-5", hosts=1, racks=1, rounds=25, in_a_row=16, manager=MPIRUN[5]),
)
