"""Generator of the command-line reference and the man pages, from the program's help, and of the schemas."""

import re
from pathlib import Path

from ddlrun.cli.options.usual import full_help
from ddlrun.environment.library_settings import KINDS, SETTINGS, SWITCHES
from ddlrun.supervise.cause import REACHABLE, RESET, UNREACHABLE, EndCause
from docs.reference.contexts import command_contexts
from docs.reference.man_pages import write_man_pages
from docs.reference.repeated_options import ShownOptions
from docs.reference.schemas import write_schemas
from docs.reference.wire import PAGE as WIRE_PAGE
from docs.reference.wire import render_wire

PAGE = Path(__file__).with_name("command-line.md")
SETTINGS_PAGE = Path(__file__).with_name("library-settings.md")
SETTINGS_HEAD = """# Settings of Horovod and of ddlrun.ddl.lms

This page lists options of horovodrun and of IBM's large-model support, which `ddlrun launch` accepts beside [its
own](command-line.md#ddlrun-launch). Each sets a variable of the ranks. In the [config file](config-file.md), the key
sets it. `make reference` generates this page from the program.

| option | key | variable | value |
|---|---|---|---|
"""
CAUSES_PAGE = Path(__file__).with_name("causes.md")
CAUSES_HEAD = """# How the cause of a failure is found

This page lists the causes of the end of a job in the order in which ddlrun tries them, with the first line and the
[exit code](exit-codes.md). `make reference` generates it from the table in the program. The code is the key `cause` in
outcome.json. Words in capitals vary; for an empty text, ddlrun names the signal or the rank that failed first.

## Events

The first event ends the job.

| code | evidence | text | exit code |
|---|---|---|---|
"""
REPORT_HEAD = """
## The end of the process manager

These are tried when the process manager, such as mpirun, has ended. If an event came first, it stays the cause, with
two exceptions: rows that begin with *connection* explain a closed or reset connection, and any row counts if the loss
of the manager or a host may explain the rank's failure.

| code | evidence | text | exit code |
|---|---|---|---|
"""
HEAD = """# Command-line reference

This page shows the help of every command, generated from the program. What is the same for several commands is shown
once; `ddlrun COMMAND --help` has all of it.
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


def render_settings() -> str:
    """Return the page with the settings of libraries."""
    rows = []
    for setting in SETTINGS:
        option = f"`--{setting.option}`" + (f", `--no-{setting.option}`" if setting.is_switch else "")
        on, off = SWITCHES.get(setting.kind, ("", ""))
        value = f"{on} if it is on, otherwise {off}" if setting.is_switch else KINDS[setting.kind][0]
        rows.append(f"| {option} | `{setting.yaml}` | {setting.variable} | {value} |\n")
    return SETTINGS_HEAD + "".join(rows)


def render_causes() -> str:
    """Return the page with the causes of the end of a job."""
    events = [cause for cause in EndCause if cause.value.find is None]
    others = [cause for cause in EndCause if cause not in events]
    return CAUSES_HEAD + "".join(map(_render_cause, events)) + REPORT_HEAD + "".join(map(_render_cause, others))


def _render_cause(cause: EndCause) -> str:
    row = cause.value
    text = re.sub("|".join(map(re.escape, (RESET, UNREACHABLE, REACHABLE))), "...", row.text)
    text = re.sub(r"{(\w+)[^}]*}", lambda match: match[1].upper(), text.replace("{label}", "rank N on HOST"))
    return f"|{cause.name.lower()}|{row.evidence}|{text}|{row.exit_code}|\n"


if __name__ == "__main__":
    CAUSES_PAGE.write_text(render_causes())
    PAGE.write_text(render_page())
    SETTINGS_PAGE.write_text(render_settings())
    WIRE_PAGE.write_text(render_wire())
    write_man_pages()
    write_schemas()
