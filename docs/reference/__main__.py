"""Generator of the command-line reference and the man pages, from the program's help, and of the schemas."""

from pathlib import Path

from ddlrun.cli.options.usual import full_help
from docs.reference.contexts import command_contexts
from docs.reference.man_pages import write_man_pages
from docs.reference.repeated_options import ShownOptions
from docs.reference.schemas import write_schemas

PAGE = Path(__file__).with_name("command-line.md")
HEAD = """# Command-line reference

This page shows the help of every command, generated from the program. Options that mean the same for several commands
are shown once; `ddlrun COMMAND --help` has all of them.
"""


def render_page() -> str:
    """Return the page: the help of ddlrun and of each command."""
    shown = ShownOptions()
    page = HEAD
    for name, context in command_contexts().items():
        title = f"ddlrun {name}".rstrip()
        page += f"\n## {title}\n\n```text\n{shown.shorten(title, full_help(context))}\n```\n"
        if name == "launch":  # its own --help, whose words rerun has, too
            shown.shorten(title, context.get_help())
    return page


if __name__ == "__main__":
    PAGE.write_text(render_page())
    write_man_pages()
    write_schemas()
