"""The state of a running job, apart from the connections of its keepers."""

import select

from ddlrun.hangs.stall import StallDetector
from ddlrun.managers.openmpi.ssh_clients import SshClients
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import SupervisedJob, SupervisionOptions
from ddlrun.remote.manager_session import Process
from ddlrun.supervise.console import Console
from ddlrun.supervise.heartbeat import Heartbeat
from ddlrun.supervise.job_record import JobRecord
from ddlrun.supervise.limits import JobLimits
from ddlrun.supervise.manager_process import ManagerProcess
from ddlrun.supervise.sampling import Sampling
from ddlrun.supervise.signals import SignalWarnings


class SupervisionState:
    """A running process manager, the progress of its ranks, and what is printed of them."""

    def __init__(self, options: SupervisionOptions, job: SupervisedJob, files: RunDir, process: Process) -> None:
        """Begin with the start of the process manager."""
        self.options, self.job = options, job
        self.epoll = select.epoll()
        self.console = Console(options, job.ranks, files)
        ssh_clients = SshClients(self.epoll, job.host_names if job.manager.starts_ssh else ())
        self.manager = ManagerProcess(process, job, ssh_clients)
        self.stalls = StallDetector(options.stall)
        self.limits = JobLimits(options, job, process.pid)
        self.heartbeat = Heartbeat(options.heartbeat, self.limits.started_at)
        self.warnings = SignalWarnings()
        self.samples = Sampling(options.sample_interval, job.ranks, files, self.console.tell)
        self.record = JobRecord()
        self.last_output = self.limits.started_at
        """The time at which a rank last wrote something."""
