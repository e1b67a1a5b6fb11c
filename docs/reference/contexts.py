"""The commands of ddlrun in contexts of click, for the generators of the reference."""

from collections.abc import Mapping
from functools import cache

import click

from ddlrun.cli import group
from ddlrun.cli.groups import LazyGroup

WIDTH = 78  # of 80 columns click uses 78


@cache
def command_contexts() -> dict[str, click.Context]:
    """Return the contexts by command; that of ddlrun itself has an empty name."""
    widths = {"max_content_width": WIDTH, "terminal_width": WIDTH}
    parent = click.Context(group, info_name="ddlrun", **{**group.context_settings, **widths})
    contexts = {"": parent}
    _add_commands(contexts, parent, widths)
    return contexts


def _add_commands(contexts: dict[str, click.Context], parent: click.Context, widths: Mapping[str, int]) -> None:
    """Add the contexts of a group's commands, and of theirs."""
    if not isinstance(parent.command, LazyGroup):
        return
    for name in parent.command.list_commands(parent):
        command = parent.command.get_command(parent, name)
        if command is None:
            raise KeyError(name)
        context = click.Context(command, info_name=name, parent=parent, **{**command.context_settings, **widths})
        contexts[context.command_path.removeprefix("ddlrun ")] = context
        _add_commands(contexts, context, widths)
