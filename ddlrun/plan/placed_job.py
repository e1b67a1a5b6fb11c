"""A job whose ranks have their places: the input of everything that makes up the ranks' environment."""

from collections.abc import Mapping
from typing import NamedTuple

from ddlrun.environment.exports import keep_inherited
from ddlrun.managers import ProcessManager
from ddlrun.mapping.placement import Placement
from ddlrun.plan.settings import Settings
from ddlrun.plan.survey import Survey


class PlacedJob(NamedTuple):
    """The settings of a job, what its hosts are, and where its ranks go."""

    settings: Settings
    survey: Survey
    placement: Placement

    @property
    def manager(self) -> ProcessManager:
        """The process manager."""
        return self.survey.installation.manager

    @property
    def inherited(self) -> Mapping[str, str]:
        """The environment of ddlrun itself, without what --export leaves out."""
        chosen = self.settings.environment
        return keep_inherited(self.survey.environ, chosen.export, chosen.names)

    @property
    def environ(self) -> dict[str, str]:
        """The inherited environment, with the user's variables."""
        return {**self.inherited, **self.settings.environment.variables}


class Contribution(NamedTuple):
    """Variables of one source, and notes on them; warnings are shown even without --verbose."""

    variables: dict[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
