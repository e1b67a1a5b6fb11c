"""Slurm on the test cluster: slurmctld and munged on h1, one slurmd per host, and one leaf switch per rack.

    with SlurmCluster(hosts_per_rack=2, racks=2) as cluster:
        job = cluster.submit("srun hostname", "-N4", f"--output={tmp_path}/out")
        cluster.wait_for(job, "COMPLETED")

`run` and `argv` set SLURM_CONF, so sbatch, salloc, squeue and scontrol work on each host; ssh does not pass
it on. Nodes claim 2 sockets of 10 cores and 2 GPUs, which nothing checks: all hosts share the machine's few
cores, and task/none binds no process. With `binds`, nodes have the machine's cores, and Slurm binds processes to them.
"""

import itertools
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import cluster, scheduler
from tests.cluster.namespaces import ClusterError, program
from tests.cluster.scheduler import SchedulerCluster
from tests.support.waiting import pause

# Messages of Slurm's daemons, and files of sbcast, enter each switch once.
BY_TOPOLOGY = "RoutePlugin=route/topology\n"
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"})
CONTROLLER, NODE, MUNGE = "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged"
GPUS = 2

# KillWait: seconds from TERM to KILL. config_overrides: allow more cores and memory than the machine has.
# TmpFS: all hosts share /tmp, where the plugin for PMIx makes a folder that it wants for itself.
# MinJobAge keeps its default of 300 s, during which a finished job can be queried.
CONF = """ClusterName=ddl
SlurmctldHost=h1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{task}
TmpFS={folder}/%n/tmp
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,bf_interval=1
TopologyPlugin=topology/tree
MpiDefault=none
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
SlurmdTimeout=30
KillWait=5
NodeName=h[1-{count}] {cores} ThreadsPerCore=1 RealMemory=1000000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def why_not() -> str:
    """Return the reason why this machine cannot run Slurm, and the remedy; empty if it can."""
    return cluster.why_not() or scheduler.missing("Slurm", CONTROLLER, NODE, MUNGE, "/usr/bin/sbatch")


class SlurmCluster(SchedulerCluster):
    """A cluster whose hosts are Slurm's nodes, idle when `with` begins; racks are rack0, rack1, ... under spine."""

    def __init__(
        self,
        hosts_per_rack: int,
        racks: int,
        *,
        around: Sequence[str] = (),
        link: str | None = None,
        nic: str | None = None,
        binds: bool = False,
        settings: str = "",
    ) -> None:
        """Prepare the cluster; the command `around` starts each slurmd, and `settings` are more lines of slurm.conf.

        For `link` and `nic` see SchedulerCluster.
        """
        super().__init__(hosts_per_rack, racks, link=link, nic=nic)
        self._around, self._settings = around, settings
        self._task = "affinity" if binds else "none"
        self._cores = f"Sockets=1 CoresPerSocket={os.cpu_count()}" if binds else "Sockets=2 CoresPerSocket=10"

    def argv(self, host: str, command: Sequence[str], *, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs `command` on `host` with SLURM_CONF set."""
        return super().argv(host, [program("env"), f"SLURM_CONF={self.folder}/slurm.conf", *command], cwd=cwd)

    def submit(self, script: str, *options: str, cwd: Path | None = None) -> str:
        """Submit the lines of a shell script (without #!) by sbatch on h1; return the job's id."""
        argv = ["sbatch", "--parsable", *options]
        done = self.run("h1", argv, cwd=cwd, stdin=f"#!/bin/sh\n{script}\n")
        if done.returncode:
            raise ClusterError(done.stderr)
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """Return the fields of `scontrol show job`: JobState, ExitCode, NodeList, ..."""
        words = self.run("h1", ["scontrol", "--oneliner", "show", "job", job], check=True).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job: str) -> str:
        """Return the job's state, such as PENDING, RUNNING, COMPLETING, TIMEOUT."""
        return self.job(job)["JobState"]

    def wait_for(self, job: str, *states: str, timeout: float = 120) -> str:
        """Wait until the job is in one of `states` (default: any end) and return the state.

        Raises ClusterError if the job ends in another state, or after `timeout` seconds.
        """
        expected = set(states) or ENDED
        begin = time.monotonic()
        while (state := self.state(job)) not in expected:
            if state in ENDED or time.monotonic() > begin + timeout:
                raise ClusterError(f"job {job} is {state}, not {' or '.join(expected)}")
            pause(begin)
        return state

    def requeue(self, job: str) -> None:
        """Put a running job back into the queue, and restart it without the usual delay of two minutes."""
        self.run("h1", ["scontrol", "requeue", job], check=True)
        self.wait_for(job, "PENDING", "REQUEUED")
        self.wait_until_idle()
        # slurmd tells the new start from the old one by its second, and fails the job if they are equal.
        ended = int(time.time())
        self.settle(lambda: int(time.time()) > ended + 1)
        self.run("h1", ["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)

    def start_slurmd(self, host: str) -> None:
        """Start the host's slurmd, the daemon slurmd.<host>; after `kill` its running steps go on."""
        self.launch(f"slurmd.{host}", host, [*self._around, NODE, "-D", "-N", host])

    def _up(self) -> None:
        super()._up()
        self._write_slurm()
        self._munge()
        self.launch("slurmctld", "h1", [CONTROLLER, "-D"])
        for host in self.hosts:
            self.start_slurmd(host.name)
        self.wait_until_idle()

    def clear(self) -> None:
        """Cancel all jobs, and wait until all nodes are idle."""
        jobs = self.run("h1", ["squeue", "--noheader", "--format=%A"], check=True).stdout.split()
        if jobs:
            self.run("h1", ["scancel", "--signal=KILL", "--full", *jobs])
            self.run("h1", ["scancel", *jobs])
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until all nodes are up and idle."""
        self.settle(self._idle)

    def _idle(self) -> bool:
        """Return True if all nodes are idle."""
        done = self.run("h1", ["sinfo", "--noheader", "--states=idle", "--format=%D"])
        return done.stdout.strip() == str(len(self.hosts))

    def _write_slurm(self) -> None:
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o700)
        values = {"folder": self.folder, "count": len(self.hosts), "gpus": GPUS}
        (self.folder / "slurm.conf").write_text(
            CONF.format(**values, task=self._task, cores=self._cores) + self._settings
        )
        for number in range(GPUS):
            os.mknod(self.folder / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # one device per GPU
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{GPUS - 1}]\n")
        # Slurm does not use the plugin, but looks for the file, and no host has one.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        racks = itertools.groupby(self.hosts, key=lambda host: host.rack)
        lines = [f"SwitchName=rack{rack} Nodes={_range([host.name for host in hosts])}\n" for rack, hosts in racks]
        spine = f"SwitchName=spine Switches=rack[0-{len(lines) - 1}]\n"
        (self.folder / "topology.conf").write_text("".join(lines) + spine)

    def _munge(self) -> None:
        """Start munged and wait for its socket, a file visible on all hosts."""
        folder = self.folder / "munge"
        (folder / "key").touch(mode=0o600)
        (folder / "key").write_bytes(b"the test cluster's alone, in a folder of root's" * 4)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self.launch("munged", "h1", [MUNGE, "--foreground", "--force", *options])
        self.settle((folder / "socket").exists)


def _range(names: Sequence[str]) -> str:
    return f"h[{names[0][1:]}-{names[-1][1:]}]"
