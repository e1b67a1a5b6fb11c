"""Generator of docs/reference/command-line.md, from the help of the program, and of the schemas: `make reference`."""

from pathlib import Path

import click

from ddlrun.cli import group
from docs.reference.schemas import write_schemas

PAGE = Path(__file__).with_name("command-line.md")
WIDTH = 78  # of 80 columns click uses 78
HEAD = """# Command-line reference

This page shows the help of every command. `make reference` generates it from the program.
"""


def render_page() -> str:
    """Return the page: the help of ddlrun and of each command."""
    widths = {"max_content_width": WIDTH, "terminal_width": WIDTH}
    parent = click.Context(group, info_name="ddlrun", **{**group.context_settings, **widths})
    texts = [("ddlrun", group.get_help(parent))]
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None:
            raise KeyError(name)
        context = click.Context(command, info_name=name, parent=parent, **{**command.context_settings, **widths})
        texts.append((f"ddlrun {name}", command.get_help(context)))
    return HEAD + "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in texts)


if __name__ == "__main__":
    PAGE.write_text(render_page())
    write_schemas()
