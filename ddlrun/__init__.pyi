from ddlrun.api.function import JobError as JobError
from ddlrun.api.function import run as run
from ddlrun.api.launch import launch as launch
from ddlrun.errors import DdlrunError as DdlrunError
from ddlrun.plan.outcome import Outcome as Outcome
from ddlrun.plan.outcome import RankEnd as RankEnd

__version__: str
PUBLIC: dict[str, str]
