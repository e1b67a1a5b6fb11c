"""One run of a job with random faults, and the check of its four properties."""

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ddlrun.managers.own import START as OWN_START
from tests.cluster.cluster import Cluster
from tests.conftest import OWN_MANAGERS
from tests.hosts.random_faults_rank import line
from tests.hosts.random_faults_results import ABORTED, allowed_results, first_line, is_decisive
from tests.hosts.random_faults_scenario import ORDERLY, Fault, Kind, Moment, Scenario
from tests.hosts.test_faults import Job, children, cmdline, is_empty, is_keeper, parent, programs_of

RANK = Path(__file__).with_name("random_faults_rank.py")
STRANGER = Path(__file__).with_name("stranger.py")
MPIRUNS = ("mpirun", "prterun", "orterun", "orterun_wrapper")
DAEMONS = ("orted", "prted")
INTERVAL = 0.02
MOMENTARY_SECONDS = 0.7
DISK = "size=256k"
# The time beyond the bound, for a busy machine.
SPARE_SECONDS = 60.0
LISTENING = "0A"
# After two faults of which one is a signal to ddlrun, the end may be hurried.
MOST_ORDERLY = 2


class Violation(NamedTuple):
    """A property that a run did not hold, and the facts."""

    property: str
    facts: str


class Report(NamedTuple):
    """A run that is over."""

    scenario: Scenario
    injected: list[Fault]
    code: int | None
    """ddlrun's exit code; None if it did not end."""
    line: str
    """Its first line."""
    seconds: float
    """The time from the last fault until nothing was left."""
    violations: list[Violation]


class Run:
    """A job over the hosts of a cluster that meets the faults of a scenario."""

    def __init__(self, cluster: Cluster, mpirun: str, folder: Path, scenario: Scenario) -> None:
        self._cluster, self._mpirun, self._folder, self._scenario = cluster, mpirun, folder, scenario
        self._evidence = folder / "evidence"
        self._evidence.mkdir()
        self._shown = folder / "shown"
        self._ddlrun_stopped = False
        self._cut: set[str] = set()
        """The hosts whose networks were cut."""

    def execute(self) -> Report:
        """Run the job, inject the faults, wait for the end, and check the properties."""
        files = self._files()
        with ExitStack() as stack:
            stack.enter_context(self._disk())
            reader = self._start_reader()
            self._job = stack.enter_context(self._start())
            injected = [fault for fault in self._scenario.faults if self._inject(fault, stack)]
            if not any(map(is_decisive, injected)):
                (self._evidence / "go").touch()
            begin = time.monotonic()
            violations = self._wait_for_end()
            seconds = time.monotonic() - begin
            self._kill(self._agents_cut_off())
            violations += self._check_files(files)
        reader.join()
        code, shown = self._job.process.returncode, first_line(self._job.errors.read_text(errors="replace"))
        if not violations or violations[0].property != "bound":
            violations += [*self._check_result(code, shown, injected), *self._check_output(injected)]
        return Report(self._scenario, injected, code, shown, seconds, violations)

    # -- the job ----------------------------------------------------------------------------------

    def _start(self) -> Job:
        scenario = self._scenario
        before, after = scenario.lines
        program = {
            "before": before, "after": after, "size": scenario.size, "how": scenario.how, "victim": scenario.victim,
            "deaf": scenario.deaf, "mpi": scenario.mpi,
        }  # fmt: skip
        options = ["-H", ",".join(scenario.hosts), "-np", str(len(scenario.hosts)), "--quiet"]
        options += ["--grace", f"{scenario.grace:g}", "--heartbeat", f"{scenario.heartbeat:g}"]
        options += ["--timeout", f"{scenario.timeout:g}", "--start-timeout", f"{scenario.start_timeout:g}"]
        options += ["--checks", "none"] if scenario.skip_checks else []
        options += ["--run-dir", str(self._folder / "small" / "run")] if scenario.full_disk else []
        words = (sys.executable, str(RANK), str(self._evidence), json.dumps(program))
        return Job(self._cluster, self._mpirun, self._folder, *words, options=tuple(options))

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Give the run folder a small disk, where the scenario has it."""
        if not self._scenario.full_disk:
            yield
            return
        small = self._folder / "small"
        small.mkdir()
        self._cluster.administer("h1", ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(small)])
        try:
            yield
        finally:
            self._cluster.administer("h1", ["umount", "--lazy", str(small)])

    def _start_reader(self) -> threading.Thread:
        """Start the reader of the job's standard output, which is a pipe."""
        os.mkfifo(self._folder / "output")
        thread = threading.Thread(target=self._read)
        thread.start()
        return thread

    def _read(self) -> None:
        pause = self._scenario.pause
        with (self._folder / "output").open("rb", buffering=0) as pipe, self._shown.open("wb") as shown:
            while chunk := pipe.read(1 << 16):
                shown.write(chunk)
                shown.flush()
                if pause and (self._evidence / "go").exists():
                    time.sleep(pause)
                    pause = 0.0

    # -- faults -----------------------------------------------------------------------------------

    def _inject(self, fault: Fault, stack: ExitStack) -> bool:
        """Wait for a fault's moment, and inject it; return False if the job ended before, or ddlrun was stopped."""
        if self._ddlrun_stopped:
            return False
        if fault.moment is Moment.END:
            (self._evidence / "go").touch()
        if not self._await(lambda: self._has_come(fault.moment)):
            return False
        time.sleep(fault.delay)
        if fault.kind is Kind.CUT:
            stack.enter_context(self._cluster.cut(fault.host))
            self._cut.add(fault.host)
        elif fault.kind is Kind.BLINK:
            if fault.host in self._cut:
                return False
            with self._cluster.cut(fault.host):
                time.sleep(MOMENTARY_SECONDS)
        elif fault.kind is Kind.FLOOD:
            return self._flood(fault.host)
        else:
            return self._signal(fault)
        return True

    def _has_come(self, moment: Moment) -> bool:
        """Return True if the event of a moment has happened."""
        before, after = self._scenario.lines
        written = [self._written(rank) for rank in range(len(self._scenario.hosts))]
        if moment is Moment.CHECK:
            return self._find("h1", lambda pid: cmdline(pid)[:1] == ["ssh"]) != 0
        if moment is Moment.START:
            return self._mpirun_pid() != 0
        if moment is Moment.LINE:
            return max(written) > 0
        if moment is Moment.HELD:
            return min(written) >= before
        if moment is Moment.END:
            return max(written) == before + after
        return any(self._evidence.glob("term.*"))

    def _written(self, rank: int) -> int:
        """Return the number of lines that a rank has recorded as written."""
        record = self._evidence / f"rank.{rank}"
        return int(record.read_bytes() or b"0") if record.exists() else 0

    def _await(self, condition: Callable[[], object]) -> bool:
        """Wait for a condition; return False if the job ends before."""
        while not condition():
            if self._job.process.poll() is not None:
                return False
            time.sleep(INTERVAL)
        return True

    def _flood(self, host: str) -> bool:
        """Let a stranger on a host flood ddlrun's ports; return False if there are none."""
        local = host == "h1"
        found = [f"{address}:{port}" for address, port in listening(self._job.process.pid)]
        ports = [port for port in found if local or not port.startswith("127.")]
        if ports:
            self._cluster.run(host, [sys.executable, str(STRANGER), f"{MOMENTARY_SECONDS:g}", *ports], check=True)
        return bool(ports)

    def _signal(self, fault: Fault) -> bool:
        """Send the signal of a fault to its victims; return False if there is none."""
        victims = self._victims(fault)
        name = fault.kind.name
        number = signal.Signals[name] if name.startswith("SIG") else signal.SIGKILL
        if name.startswith(("STOP", "PAUSE")):
            number = signal.SIGSTOP
        self._ddlrun_stopped = fault.kind is Kind.STOP_DDLRUN
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if fault.kind is Kind.PAUSE_DDLRUN:
            time.sleep(MOMENTARY_SECONDS)
            self._continue(victims)
        return bool(victims)

    def _continue(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _victims(self, fault: Fault) -> list[int]:
        """Return the processes that a fault hits."""
        ddlrun = self._job.process.pid
        target = fault.kind.name.partition("_")[2]
        if target in ("RANK", "KEEPER"):
            keeper = self._find(fault.host, lambda pid: programs_of(pid) != [])
            victims = [keeper] if target == "KEEPER" else programs_of(keeper)[:1]
        elif target == "DAEMON":
            is_victim = is_agent if self._scenario.major in OWN_MANAGERS else is_mpi_daemon
            victims = [self._find(fault.host, is_victim)]
        elif target == "MPIRUN":
            victims = [self._mpirun_pid()]
        elif target == "GUARD":
            victims = [pid for pid in children(ddlrun) if cmdline(pid) == cmdline(ddlrun)]
        elif target == "SSHD":
            victims = [pid for pid in self._cluster.processes(fault.host) if is_session(command(pid))]
        else:
            victims = [ddlrun]
        return [pid for pid in victims if pid]

    def _mpirun_pid(self) -> int:
        """Return the mpirun of the job, a child of ddlrun; 0 if there is none."""
        words = {pid: cmdline(pid) for pid in children(self._job.process.pid)}
        return next((pid for pid, line_ in words.items() if is_mpirun(line_)), 0)

    def _find(self, host: str, condition: Callable[[int], bool]) -> int:
        """Return the first process on a host that fulfils a condition; 0 if none does."""
        pids = sorted(self._cluster.processes(host) - self._job.before)
        return next((pid for pid in pids if cmdline(pid) and condition(pid)), 0)

    # -- properties -------------------------------------------------------------------------------

    def _wait_for_end(self) -> list[Violation]:
        """Wait until ddlrun has ended and nothing is left; return the violation of the bound."""
        limit = time.monotonic() + self._scenario.bound + SPARE_SECONDS
        job = self._job
        if self._ddlrun_stopped:
            wait_until(lambda: all(map(self._belongs_to_ddlrun, self._left())), limit)
            self._continue([job.process.pid])
            limit += SPARE_SECONDS
        if not wait_until(lambda: job.process.poll() is not None, limit):
            return [Violation("bound", f"ddlrun runs on, beside {list(map(describe, self._left()))}")]
        if not wait_until(lambda: not self._left(), limit) and not self._end_what_may_stay():
            return [Violation("left", f"processes: {list(map(describe, self._left()))}")]
        return []

    def _end_what_may_stay(self) -> bool:
        """End what may stay on hosts that cannot be reached; return True if nothing is left.

        These are the processes of agents and keepers that were stopped: see Left-over processes in
        docs/explanation/faults.md.
        """
        left = self._left()
        stopped = {fault.host for fault in self._scenario.faults if fault.kind in (Kind.STOP_KEEPER, Kind.STOP_DAEMON)}
        unreachable = {pid for host in stopped & self._cut for pid in self._cluster.processes(host)}
        if not unreachable.issuperset(left):
            return False
        self._kill(left)
        return wait_until(lambda: not self._left(), time.monotonic() + SPARE_SECONDS)

    def _belongs_to_ddlrun(self, pid: int) -> bool:
        """Return True for ddlrun, its forks and links, and the agents there, which stay while it is stopped.

        So does its own process manager, where no keeper beside it ends it, and what a stopped keeper should end.
        """
        ddlrun, words = self._job.process.pid, cmdline(pid)
        is_link = words[:1] == ["ssh"] and parent(pid) == ddlrun
        is_manager = words[3:4] == [OWN_START] and parent(pid) == ddlrun and "h1" not in self._scenario.hosts
        is_own = words == cmdline(ddlrun) or is_link or is_manager or (is_agent(pid) and parent(pid) != 1)
        return is_own or any(state(keeper) == "T" and is_keeper(keeper) for keeper in (pid, *ancestors(pid)))

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Return the processes of the job that live, but for agents that are cut off and end two minutes later."""
        left = self._cluster.processes() - self._job.before - self._agents_cut_off()
        return [pid for pid in left if is_left(pid)]

    def _agents_cut_off(self) -> set[int]:
        """Return the agents on hosts that are cut off, which nothing tells that their links have ended."""
        pids = {pid for host in self._cut for pid in self._cluster.processes(host)} - self._job.before
        return {pid for pid in pids if is_agent(pid) and parent(pid) != 1}

    def _files(self) -> set[Path]:
        """Return the temporary files and the shared memory segments on all hosts."""
        namespaces = self._cluster.namespaces
        folders = [host.folder / "tmp" for host in self._cluster.hosts]
        folders += [Path(f"/proc/{namespaces.pid(host.name)}/root/dev/shm") for host in self._cluster.hosts]
        return {path for folder in folders for path in folder.iterdir()}

    def _check_files(self, before: set[Path]) -> list[Violation]:
        """Return a violation if files are left, and remove them.

        The folders of Open MPI's library are empty: a rank makes them in MPI_Init if mpirun was killed at that moment.
        If ddlrun and its guard were killed, the folder of the session stays. So does that of a daemon that was killed
        on a host that is cut off: all hosts have one /proc, and a search of another host may kill the keeper there
        before it removes the folder.
        """
        new = sorted(self._files() - before)
        may_stay = {path for path in new if path.name.startswith("ompi.") and is_empty(path)}
        if {Kind.KILL_GUARD, Kind.KILL_DDLRUN} <= self._scenario.kinds:
            may_stay.update(path for path in new if path.name.startswith("ddlrun-"))
        killed = {fault.host for fault in self._scenario.faults if fault.kind is Kind.KILL_DAEMON} & self._cut
        sessions = (path for path in new if path.name.startswith(("ompi.", "prted.")))
        may_stay.update(path for path in sessions if path.parent.parent.name in killed)
        for path in new:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        names = [f"{path.parent.parent.name}/{path.parent.name}/{path.name}" for path in new if path not in may_stay]
        return [Violation("left", f"files: {names}")] if names else []

    def _check_result(self, code: int | None, shown: str, injected: list[Fault]) -> list[Violation]:
        allowed = allowed_results(self._scenario, injected)
        if code is not None and any(result.allows(code, shown) for result in allowed):
            return []
        expected = " or ".join(f"{sorted(result.codes)} {result.pattern!r}" for result in allowed)
        return [Violation("cause", f"exit code {code}, {shown!r}; expected {expected}")]

    def _check_output(self, injected: list[Fault]) -> list[Violation]:
        """Return the ranks whose shown output has a gap, or lacks lines that were written."""
        orderly = all(fault.kind in ORDERLY for fault in injected) and len(injected) < MOST_ORDERLY
        orderly = orderly and self._job.process.returncode not in ABORTED.codes
        announced = "bytes of output were not printed" in self._job.errors.read_text(errors="replace")
        violations = []
        for rank, host in enumerate(self._scenario.hosts):
            shown = shown_bytes(self._shown.read_bytes(), f"[{rank}@{host}] ".encode())
            written = b"".join(line(rank, number, self._scenario.size) for number in range(sum(self._scenario.lines)))
            least = self._written(rank) * self._scenario.size if orderly else 0
            if not announced and (not written.startswith(shown) or len(shown) < least):
                at = next((at for at, (a, b) in enumerate(zip(shown, written, strict=False)) if a != b), len(shown))
                facts = f"{len(shown)} bytes shown, at least {least} written; from byte {at}: {shown[at:][:60]!r}"
                violations.append(Violation("output", f"rank {rank}: {facts}"))
        return violations


def shown_bytes(output: bytes, tag: bytes) -> bytes:
    """Return what a rank's lines show, without tags and newlines."""
    return b"".join(row.removeprefix(tag) for row in output.splitlines() if row.startswith(tag))


def listening(pid: int) -> list[tuple[str, int]]:
    """Return the IPv4 addresses and ports at which a process listens."""
    open_files = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    found = [row[1].split(":") for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in open_files]
    return [(socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)) for address, port in found]


def ancestors(pid: int) -> Iterator[int]:
    """Yield the parent of a process, and those above it."""
    while pid := parent(pid):
        yield pid


def is_left(pid: int) -> bool:
    """Return True for a process that a job may not leave behind: any but a zombie and sshd's own sessions."""
    words = cmdline(pid)
    return bool(words) and not words[0].startswith("sshd")


def is_mpirun(words: list[str]) -> bool:
    """Return True for the command line of an mpirun that starts ranks, or of ddlrun's own process manager."""
    of_mpirun = words != [] and os.path.basename(words[0]) in MPIRUNS and str(RANK) in words
    return of_mpirun or words[3:4] == [OWN_START]


def is_agent(pid: int) -> bool:
    """Return True for an agent of ddlrun's."""
    return cmdline(pid)[-2:] == [OWN_START, "--agent"] and not is_keeper(pid)


def is_mpi_daemon(pid: int) -> bool:
    """Return True for mpirun's daemon."""
    return os.path.basename(command(pid)) in DAEMONS


def is_session(word: str) -> bool:
    """Return True for the first word of an sshd that serves a connection."""
    return word.startswith("sshd:") and "[listener]" not in word


def describe(pid: int) -> str:
    """Return a process with its state and the beginning of its command line."""
    return f"{pid} {state(pid)} {' '.join(cmdline(pid))[:80]}"


def state(pid: int) -> str:
    """Return the state of a process, such as T for a stopped one."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "-"


def command(pid: int) -> str:
    """Return the first word of a process's command line; empty if it has none."""
    return next(iter(cmdline(pid)), "")


def wait_until(condition: Callable[[], object], limit: float) -> bool:
    """Wait for a condition; return False at the limit, a time of time.monotonic()."""
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(INTERVAL)
    return True
