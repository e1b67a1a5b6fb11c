"""Grid Engine on the test cluster: sge_qmaster on h1, one sge_execd per host, a cell in the cluster's folder.

    with GridEngineCluster(hosts_per_rack=2, racks=1) as cluster:
        job = cluster.submit("cat $PE_HOSTFILE", "-pe", "fill", "4", "-o", f"{tmp_path}/out")
        cluster.wait_for(job)

`run` and `argv` set SGE_ROOT and the ports, so qsub, qstat, qhost and qrsh work on each host. Every host has
SLOTS slots. The parallel environment `fill` fills one host after the other; `spread` fills them round robin.
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import cluster, scheduler
from tests.cluster.namespaces import ClusterError, program
from tests.cluster.scheduler import SchedulerCluster
from tests.support.waiting import pause

SLOTS = 4
MASTER, EXECUTOR, SUBMIT = "/usr/sbin/sge_qmaster", "/usr/sbin/sge_execd", "/usr/bin/qsub"
SETUP = "/usr/lib/gridengine"
SHARED = "/usr/share/gridengine"

# SGE_ND keeps the daemons in the foreground.
PORTS = {"SGE_CELL": "default", "SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445", "SGE_ND": "1"}

BOOTSTRAP = """admin_user none
default_domain none
ignore_fqdn false
spooling_method classic
spooling_lib libspoolc
spooling_params {root}/default/common;{root}/qmaster
binary_path /usr/sbin
qmaster_spool_dir {root}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

# Differences from Debian's default-configuration: root may submit, and no mail is sent.
GLOBAL = {"min_uid": "0", "min_gid": "0", "execd_spool_dir": "{root}/execd", "mailer": "/bin/true"}
GLOBAL |= {"load_report_time": "00:00:02", "finished_jobs": "100"}

# The hosts share one process table, in which execd recognizes the processes of a job by their group.
LOCAL = "gid_range {first}-{last}\n"

EXECUTION_HOST = """hostname {name}
load_scaling NONE
complex_values NONE
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""

# tmpdir is a job's $TMPDIR. Each host has its own, as the hosts share one disk.
QUEUE = """qname all.q
hostlist {names}
seq_no 0
load_thresholds NONE
suspend_thresholds NONE
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH INTERACTIVE
ckpt_list NONE
pe_list fill spread
rerun FALSE
slots {slots}
tmpdir /tmp,{tmpdirs}
shell /bin/sh
prolog NONE
epilog NONE
shell_start_mode unix_behavior
starter_method NONE
suspend_method NONE
resume_method NONE
terminate_method NONE
notify 00:00:60
owner_list NONE
user_lists NONE
xuser_lists NONE
subordinate_list NONE
complex_values NONE
projects NONE
xprojects NONE
calendar NONE
initial_state default
"""
LIMITS = ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")

PARALLEL = """pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule ${rule}
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""


def why_not() -> str:
    """Return the reason why this machine cannot run Grid Engine, and the remedy; empty if it can."""
    return cluster.why_not() or scheduler.missing("Grid Engine", MASTER, EXECUTOR, SUBMIT)


class GridEngineCluster(SchedulerCluster):
    """A cluster whose hosts run jobs of the queue all.q, ready when `with` begins."""

    def argv(self, host: str, command: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs `command` on `host` with Grid Engine's variables set."""
        setting = [f"{key}={value}" for key, value in {"SGE_ROOT": str(self._root), **PORTS}.items()]
        return super().argv(host, [program("env"), *setting, *command], cwd=cwd)

    def submit(self, script: str, *options: str, cwd: Path | None = None) -> str:
        """Submit the lines of a shell script by qsub on h1, with output and errors in one file; return the job's id."""
        argv = ["qsub", "-terse", "-cwd", "-S", "/bin/sh", "-j", "yes", *options]
        done = self.run("h1", argv, cwd=cwd, stdin=f"{script}\n")
        if done.returncode:
            raise ClusterError(done.stdout + done.stderr)
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return the job's state in qstat, such as qw, r, dr, Eqw; empty once it has ended."""
        lines = self.run("h1", ["qstat", "-u", "*"], check=True).stdout.splitlines()
        return next((line.split()[4] for line in lines if line.split()[0] == job), "")

    def clear(self) -> None:
        """Delete all jobs, and wait until none is left."""
        self.run("h1", ["qdel", "-f", "-u", "*"])
        self.settle(lambda: not self.run("h1", ["qstat", "-u", "*"], check=True).stdout)

    def wait_for(self, job: str, *states: str, timeout: float = 120) -> str:
        """Wait until the job is in one of `states` (default: "", the end) and return the state.

        Raises ClusterError if the job ends before, or after `timeout` seconds.
        """
        expected = set(states) or {""}
        begin = time.monotonic()
        while (state := self.state(job)) not in expected:
            if not state or time.monotonic() > begin + timeout:
                raise ClusterError(f"job {job} is in state {state!r}, not {expected}")
            pause(begin)
        return state

    @property
    def _root(self) -> Path:
        return self.folder / "sge"

    def _up(self) -> None:
        super()._up()
        self._make_cell()
        self.launch("sge_qmaster", "h1", [MASTER])
        self.settle(lambda: not self.run("h1", ["qconf", "-sm"]).returncode)
        self._configure()
        for host in self.hosts:
            self.launch(f"sge_execd.{host.name}", host.name, [EXECUTOR])
        self.settle(self._ready)

    def _ready(self) -> bool:
        """Return True if every host has reported its load: the scheduler uses no other hosts."""
        lines = self.run("h1", ["qhost"]).stdout.splitlines()
        reported = [line for line in lines if re.match(r"h\d", line) and line.split()[6] != "-"]
        return len(reported) == len(self.hosts)

    def _make_cell(self) -> None:
        """Set up a cell as Debian's package does at its installation, in the cluster's folder."""
        common = self._root / "default" / "common"
        for folder in (common, self._root / "qmaster" / "job_scripts", self._root / "execd", self._root / "new"):
            folder.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self._root / name).symlink_to(scheduler.UNPACKED / "var/lib/gridengine" / name)
        (common / "bootstrap").write_text(BOOTSTRAP.format(root=self._root))
        (common / "act_qmaster").write_text("h1\n")
        self._setup("spoolinit", "classic", "libspoolc", f"{common};{self._root}/qmaster", "init")
        self._setup("spooldefaults", "configuration", str(self._global()))
        self._setup("spooldefaults", "complexes", f"{SHARED}/util/resources/centry")
        self._setup("spooldefaults", "usersets", f"{SHARED}/util/resources/usersets")
        self._setup("spooldefaults", "managers", "root")

    def _global(self) -> Path:
        """Write the global configuration; return its path."""
        changes = {key: value.format(root=self._root) for key, value in GLOBAL.items()}
        text = (scheduler.UNPACKED / f"{SHARED[1:]}/default-configuration").read_text()
        pairs = (line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#")
        lines = (f"{key} {changes.get(key, ' '.join(value.split()))}\n" for key, value in pairs)
        return self._write_new("global", "".join(lines))

    def _configure(self) -> None:
        """Add hosts, the queue and parallel environments, and make the scheduler act within a second."""
        for number, host in enumerate(self.hosts):
            first = 60000 + 100 * number
            self._qconf("-ah", host.name)
            self._qconf("-as", host.name)
            self._qconf("-Aconf", str(self._write_new(host.name, LOCAL.format(first=first, last=first + 99))))
            self._qconf("-Ae", str(self._write_new(f"{host.name}.execution", EXECUTION_HOST.format(name=host.name))))
        for name, rule in (("fill", "fill_up"), ("spread", "round_robin")):
            self._qconf("-Ap", str(self._write_new(name, PARALLEL.format(name=name, rule=rule))))
        self._qconf("-Aq", str(self._write_new("queue", self._queue())))
        prompt = re.sub(r"(?m)^(schedule_interval) .*", r"\1 0:0:1", self._qconf("-ssconf"))
        self._qconf("-Msconf", str(self._write_new("scheduler", prompt)))

    def _queue(self) -> str:
        names = " ".join(host.name for host in self.hosts)
        tmpdirs = ",".join(f"[{host.name}={host.environment['TMPDIR']}]" for host in self.hosts)
        limits = "".join(f"{kind}_{limit} INFINITY\n" for limit in LIMITS for kind in "sh")
        return QUEUE.format(names=names, slots=SLOTS, tmpdirs=tmpdirs) + limits

    def _write_new(self, name: str, text: str) -> Path:
        path = self._root / "new" / name
        path.write_text(text)
        return path

    def _qconf(self, *options: str) -> str:
        return self._run_checked(["qconf", *options])

    def _setup(self, name: str, *options: str) -> str:
        return self._run_checked([f"{SETUP}/{name}", *options])

    def _run_checked(self, command: Sequence[str]) -> str:
        done = self.run("h1", command)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout
