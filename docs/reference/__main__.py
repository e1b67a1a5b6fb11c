"""Write docs/reference/command-line.md anew from the program: `make reference`."""

from pathlib import Path

import click

from ddlrun.cli import group

PAGE = Path(__file__).with_name("command-line.md")
HEAD = "# Every option\n\nWritten by `make reference` from the program's own help.\n"


def page() -> str:
    """Return the page: the help of ddlrun and of each command, 100 columns wide."""
    parent = click.Context(group, info_name="ddlrun", max_content_width=100, terminal_width=100)
    texts = [("ddlrun", group.get_help(parent))]
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None:
            raise KeyError(name)
        settings = {**command.context_settings, "max_content_width": 100, "terminal_width": 100}
        context = click.Context(command, info_name=name, parent=parent, **settings)
        texts.append((f"ddlrun {name}", command.get_help(context)))
    return HEAD + "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in texts)


if __name__ == "__main__":
    PAGE.write_text(page())
