"""All schedulers, in the order in which --scheduler auto looks for them."""

from ddlrun.plugins import load_plugins
from ddlrun.schedulers.submit import Scheduler
from ddlrun.schedulers.submit.flux import FLUX
from ddlrun.schedulers.submit.kubernetes import KUBERNETES
from ddlrun.schedulers.submit.lsf import LSF
from ddlrun.schedulers.submit.pbs import PBS
from ddlrun.schedulers.submit.sge import SGE
from ddlrun.schedulers.submit.slurm import SLURM

SCHEDULERS: dict[str, Scheduler] = {scheduler.name: scheduler for scheduler in (SLURM, LSF, PBS, SGE, FLUX, KUBERNETES)}
# The entry points of plug-ins; each is a Scheduler.
GROUP = "ddlrun.submit"


def all_schedulers() -> dict[str, Scheduler]:
    """Return ddlrun's own schedulers, and after them those of plug-ins. Raises InputError where one is broken."""
    return SCHEDULERS | load_plugins(GROUP, Scheduler) | SCHEDULERS  # no plug-in replaces one of them
