"""The commands of ddlrun in contexts of click, for the generators of the reference."""

from functools import cache

import click

from ddlrun.cli import group

WIDTH = 78  # of 80 columns click uses 78


@cache
def command_contexts() -> dict[str, click.Context]:
    """Return the contexts by command; that of ddlrun itself has an empty name."""
    widths = {"max_content_width": WIDTH, "terminal_width": WIDTH}
    parent = click.Context(group, info_name="ddlrun", **{**group.context_settings, **widths})
    contexts = {"": parent}
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None:
            raise KeyError(name)
        settings = {**command.context_settings, **widths}
        contexts[name] = click.Context(command, info_name=name, parent=parent, **settings)
    return contexts
