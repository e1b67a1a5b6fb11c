"""Scenarios of random faults: a job, the faults that it meets, and the results that are allowed."""

import enum
import random
import re
from dataclasses import dataclass, replace

from tests.conftest import OWN_MAJOR, OWN_MANAGERS

HOSTS = ("h1", "h2", "h3", "h4")
HEARTBEAT = 8.0
# Limits that no fault is to reach, for a busy machine.
LONG = 240.0
NO_LINE = ""


class Moment(enum.Enum):
    """The event after which a fault is injected."""

    CHECK = "in the check"
    START = "at the start of mpirun"
    LINE = "after the first lines"
    HELD = "after the lines of all ranks"
    END = "while the ranks end"
    ENDING = "while ddlrun ends the job"


class Kind(enum.Enum):
    """A fault, with its victim."""

    KILL_RANK = "kill -9 of the rank"
    KILL_KEEPER = "kill -9 of the keeper"
    KILL_DAEMON = "kill -9 of mpirun's daemon"
    KILL_MPIRUN = "kill -9 of mpirun"
    KILL_DDLRUN = "kill -9 of ddlrun"
    KILL_GUARD = "kill -9 of ddlrun's guard"
    KILL_SSHD = "kill -9 of sshd's sessions"
    STOP_RANK = "SIGSTOP of the rank"
    STOP_KEEPER = "SIGSTOP of the keeper"
    STOP_DAEMON = "SIGSTOP of mpirun's daemon"
    STOP_MPIRUN = "SIGSTOP of mpirun"
    STOP_DDLRUN = "SIGSTOP of ddlrun until all else has ended"
    PAUSE_DDLRUN = "SIGSTOP of ddlrun for a moment"
    CUT = "a cut network"
    BLINK = "a network that is cut for a moment"
    SIGINT = "SIGINT to ddlrun"
    SIGTERM = "SIGTERM to ddlrun"
    SIGHUP = "SIGHUP to ddlrun"
    FLOOD = "a stranger that floods ddlrun's ports"


# The moments before any rank runs, and those at which some ranks may not have started.
EARLY_MOMENTS = (Moment.CHECK, Moment.START)
STARTING_MOMENTS = (*EARLY_MOMENTS, Moment.LINE, Moment.END)
# Faults for which only silence is evidence, so that a short heartbeat is needed.
SILENT = frozenset((Kind.STOP_KEEPER, Kind.STOP_DDLRUN, Kind.CUT))
# Faults that a job survives.
HARMLESS = frozenset((Kind.KILL_GUARD, Kind.STOP_DAEMON, Kind.STOP_MPIRUN, Kind.PAUSE_DDLRUN, Kind.BLINK, Kind.FLOOD))
# Faults that end a job while ddlrun and all keepers live and reach each other: what was written is shown.
ORDERLY = frozenset((Kind.KILL_RANK, Kind.STOP_RANK, Kind.SIGINT, Kind.SIGTERM, Kind.SIGHUP, *HARMLESS))
REQUESTS = frozenset((Kind.SIGINT, Kind.SIGTERM, Kind.SIGHUP))
# Faults that end a job, after which ddlrun sends TERM to the ranks.
FATAL = (Kind.KILL_RANK, Kind.KILL_KEEPER, Kind.KILL_DAEMON, *sorted(REQUESTS, key=str))
# Faults of which h1 is never the victim: it runs ddlrun and mpirun.
ELSEWHERE = frozenset((Kind.KILL_DAEMON, Kind.STOP_DAEMON, Kind.CUT, Kind.BLINK, Kind.KILL_SSHD))
# Victims that exist before the ranks do.
EARLY = (Kind.KILL_MPIRUN, Kind.KILL_DDLRUN, Kind.CUT, Kind.KILL_SSHD, Kind.FLOOD, *sorted(REQUESTS, key=str))
# Once all ranks have started, ddlrun listens no more.
LATE = tuple(kind for kind in Kind if kind is not Kind.FLOOD)
IN_THE_CHECK = (Kind.KILL_DDLRUN, Kind.CUT, *sorted(REQUESTS, key=str))
HOWS = ("7", "exception", "SIGSEGV", "SIGKILL", "SIGABRT")
NUMBERS = {"SIGKILL": 9, "SIGSEGV": 11, "SIGABRT": 6}


@dataclass(frozen=True)
class Fault:
    """A fault: the victim's host, the moment, and the seconds from the moment to the injection."""

    kind: Kind
    host: str
    moment: Moment
    delay: float

    def __str__(self) -> str:
        """Describe the fault in words."""
        return f"{self.kind.value} ({self.host}) {self.moment.value}, after {self.delay:.2f} s"


@dataclass(frozen=True)
class Result:
    """An allowed result: ddlrun's exit codes, and a pattern of its first line (NO_LINE: it prints none)."""

    codes: frozenset[int]
    pattern: str

    def allows(self, code: int, line: str) -> bool:
        """Return True if an exit code and a first line are allowed."""
        matches = re.search(self.pattern, line) if self.pattern else not line
        return code in self.codes and bool(matches)


@dataclass(frozen=True)
class Scenario:
    """A job and its faults, drawn by a seed."""

    seed: int
    major: int
    """The major version of Open MPI, or a key of OWN_MANAGERS."""
    hosts: tuple[str, ...]
    skip_checks: bool
    mpi: bool
    deaf: bool
    lines: tuple[int, int]
    """The lines that each rank writes before and after it waits."""
    size: int
    """The bytes of a line, without its newline."""
    how: str
    """How the victim's program ends by itself: an exit code, `exception` or a signal."""
    victim: int
    pause: float
    """The seconds for which the reader of standard output stops; 0: it reads all the time."""
    full_disk: bool
    grace: float
    faults: tuple[Fault, ...]

    @property
    def manager(self) -> str:
        """The process manager in words."""
        if self.major == OWN_MAJOR:
            return "ddlrun without an MPI"
        return f"ddlrun with {OWN_MANAGERS[self.major]}" if self.major in OWN_MANAGERS else f"Open MPI {self.major}"

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of the faults."""
        return frozenset(fault.kind for fault in self.faults)

    @property
    def heartbeat(self) -> float:
        """The value of --heartbeat: long where no fault needs it, for a busy machine."""
        return HEARTBEAT if self.kinds & SILENT else LONG

    @property
    def timeout(self) -> float:
        """The value of --timeout, which ends a job with a stopped rank, but not before --start-timeout."""
        if Kind.STOP_RANK not in self.kinds:
            return LONG
        return 25.0 if self.start_timeout == LONG else 45.0

    @property
    def start_timeout(self) -> float:
        """The value of --start-timeout, which ends the check and a job whose ranks cannot be started."""
        return 30.0 if self.cut_at_start or self.agent_stopped_at_start else LONG

    @property
    def agent_stopped_at_start(self) -> bool:
        """Whether an agent, which no keeper may watch yet, is stopped when the rank there may not have started."""
        stopped = any(fault.kind is Kind.STOP_DAEMON and fault.moment in STARTING_MOMENTS for fault in self.faults)
        return stopped and self.major in OWN_MANAGERS

    @property
    def cut_at_start(self) -> bool:
        """Whether a network is cut when the rank of its host may not have started."""
        return any(fault.kind is Kind.CUT and fault.moment in STARTING_MOMENTS for fault in self.faults)

    @property
    def bound(self) -> float:
        """The seconds from the last fault until nothing is left, by the tables of docs/explanation/faults.md."""
        limits = (self.heartbeat * 1.25, self.timeout, self.start_timeout)
        detection = max((limit for limit in limits if limit < LONG), default=0.0)
        ending, leaving, sweeping, keepers = self.grace + 6, 15.0, 30.0, 24.0
        return detection + self.pause + ending + leaving + sweeping + keepers

    def rank_on(self, host: str) -> int:
        """Return the rank on a host."""
        return self.hosts.index(host)

    def __str__(self) -> str:
        """Describe the scenario in a line."""
        facts = [f"seed {self.seed}: {self.manager} on {','.join(self.hosts)}", f"{sum(self.lines)} lines"]
        facts += [name for name in ("mpi", "deaf", "skip_checks", "full_disk") if getattr(self, name)]
        facts += [f"rank {self.victim} ends with {self.how}"] if self.how != "0" else []
        facts += [f"a reader that stops for {self.pause:.1f} s"] if self.pause else []
        return "; ".join([*facts, *map(str, self.faults)])


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    random_ = random.Random(seed)  # noqa: S311 - to be repeated
    size = random_.choice((2, 2, 3))
    hosts = tuple(sorted(random_.sample(HOSTS, size)))
    flood = random_.random() < 0.2
    before = random_.randrange(1, 40)
    faults = _draw_faults(random_, hosts)
    held = any(fault.moment in (Moment.LINE, Moment.HELD, Moment.ENDING) for fault in faults)
    return Scenario(
        seed=seed,
        major=random_.choice((4, 5)),
        hosts=hosts,
        skip_checks=random_.random() < 0.5 and not any(fault.moment is Moment.CHECK for fault in faults),
        mpi=random_.random() < 0.2,
        deaf=random_.random() < 0.3,
        lines=(before, random_.randrange(3000, 9000) if flood else random_.randrange(1, 40)),
        size=999 if flood else 40,
        how=random_.choice(HOWS) if not held and random_.random() < 0.6 else "0",
        victim=random_.randrange(size),
        pause=random_.choice((0.0, random_.uniform(1, 10))) if flood else 0.0,
        full_disk=flood and random_.random() < 0.3,
        grace=random_.choice((1.0, 2.0, 3.0)),
        faults=faults,
    )


def draw_own(seed: int) -> Scenario:
    """Return the scenario of a seed under ddlrun's own process manager, with one of the MPIs or without."""
    return replace(draw(seed), major=random.Random(seed).choice([*OWN_MANAGERS]))  # noqa: S311 - as above


def _draw_faults(random_: random.Random, hosts: tuple[str, ...]) -> tuple[Fault, ...]:
    """Return no fault to three faults, in the order of their moments; nothing follows one that ends ddlrun."""
    moments = random_.choices(list(Moment)[:5], weights=(1, 2, 3, 5, 2), k=random_.choice((0, 1, 1, 1, 1, 2)))
    faults = [_draw_fault(random_, hosts, moment) for moment in sorted(moments, key=list(Moment).index)]
    if faults and faults[-1].kind in FATAL and faults[-1].moment is Moment.HELD and random_.random() < 0.5:
        faults.append(_draw_fault(random_, hosts, Moment.ENDING))
    return tuple(faults)


def _draw_fault(random_: random.Random, hosts: tuple[str, ...], moment: Moment) -> Fault:
    kinds = {Moment.CHECK: IN_THE_CHECK, Moment.START: EARLY}.get(moment, LATE)
    kind = random_.choice(kinds)
    others = [host for host in hosts if host != "h1"]
    host = random_.choice(others if kind in ELSEWHERE else hosts)
    return Fault(kind, host, moment, random_.choice((0.0, random_.uniform(0, 0.5))))
