"""All schedulers, in the order in which --scheduler auto looks for them."""

from ddlrun.schedulers.submit import Scheduler
from ddlrun.schedulers.submit.flux import FLUX
from ddlrun.schedulers.submit.kubernetes import KUBERNETES
from ddlrun.schedulers.submit.lsf import LSF
from ddlrun.schedulers.submit.pbs import PBS
from ddlrun.schedulers.submit.sge import SGE
from ddlrun.schedulers.submit.slurm import SLURM

SCHEDULERS: dict[str, Scheduler] = {scheduler.name: scheduler for scheduler in (SLURM, LSF, PBS, SGE, FLUX, KUBERNETES)}
