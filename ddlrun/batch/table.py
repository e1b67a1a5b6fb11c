"""All schedulers, in the order that --scheduler auto looks for them."""

from ddlrun.batch import Scheduler
from ddlrun.batch.flux import FLUX
from ddlrun.batch.kubernetes import KUBERNETES
from ddlrun.batch.lsf import LSF
from ddlrun.batch.pbs import PBS
from ddlrun.batch.sge import SGE
from ddlrun.batch.slurm import SLURM

SCHEDULERS: dict[str, Scheduler] = {one.name: one for one in (SLURM, LSF, PBS, SGE, FLUX, KUBERNETES)}
