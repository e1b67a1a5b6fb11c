"""Generator of the command-line reference and the man pages, from the program's help, and of the schemas."""

from pathlib import Path

from ddlrun.cli.options.usual import full_help
from docs.reference.contexts import command_contexts
from docs.reference.man_pages import write_man_pages
from docs.reference.schemas import write_schemas

PAGE = Path(__file__).with_name("command-line.md")
HEAD = """# Command-line reference

This page shows the help of every command. `make reference` generates it from the program.
"""


def render_page() -> str:
    """Return the page: the help of ddlrun and of each command."""
    texts = {f"ddlrun {name}".rstrip(): full_help(context) for name, context in command_contexts().items()}
    return HEAD + "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in texts.items())


if __name__ == "__main__":
    PAGE.write_text(render_page())
    write_man_pages()
    write_schemas()
