"""The help of ddlrun launch on one screen: its usual options."""

from collections.abc import Iterable

import click

from ddlrun.cli.options import option

# Heading -> options, each with one line of help.
USUAL_OPTIONS = {
    "Ranks": (
        ("-np, -n, --num-proc N", "Total number of ranks."),
        ("--ranks-per-host N|UNIT", "Ranks per host, or one per gpu, core or numa."),
        ("-H, --host, --hosts LIST", "Hosts, such as n1,n2 or n[01-04]:2 (2 slots)."),
        ("--hostfile FILE", "Hosts, one per line, with slots=N, rack=NAME."),
        ("--topology XxYxZ", "X ranks per host, Y hosts per rack, Z racks."),
        ("--bind UNIT", "Bind ranks to core, numa, package or none."),
        ("--cores-per-rank N", "Cores per rank; otherwise an equal share."),
    ),
    "Script": (
        ("-m", "SCRIPT is a Python module, as in python -m."),
        ("-x, --env NAME[=VALUE]", "Set a variable for the ranks, or pass it on."),
        ("--ship code,env,PATH,...", "Copy code, Python, data to the hosts first."),
        ("--restarts N", "Restart a failed job up to N times."),
        ("--timeout TIME", "End the job after this time: 90, 90s, 5m, 2h."),
        ("--stall-timeout TIME", "End a job that hangs, and show where."),
        ("--debug-rank N", "Run rank N under a debugger at this terminal."),
    ),
    "Output": (
        ("--dry-run", "Print the plan, and start nothing."),
        ("--ranks LIST", "Print the output of these ranks only: 0,3-5."),
        ("--output WORD,...", "tag, no-tag, timestamp, fold or dir=DIR."),
        ("--verbose, --quiet", "Print reasons, too; print only the output."),
    ),
    "Other": (
        ("--config-file FILE", "Read options from a YAML file."),
        ("--help-all", "All options; torchrun's and mpirun's work, too."),
    ),
}


def format_usual_help(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the usage, the first two paragraphs of the description, and the usual options."""
    command.format_usage(ctx, formatter)
    paragraphs = (command.help or "").split("\n\n")[:2]
    with formatter.indentation():
        for paragraph in paragraphs:
            formatter.write_paragraph()
            formatter.write_text(" ".join(paragraph.split()))
    format_usual_options(formatter, USUAL_OPTIONS)


def format_usual_options(formatter: click.HelpFormatter, headings: Iterable[str]) -> None:
    """Write the usual options under some headings, all in the same columns."""
    width = max(len(names) for rows in USUAL_OPTIONS.values() for names, _ in rows)
    for heading in headings:
        with formatter.section(heading):
            formatter.write_dl([(names.ljust(width), text) for names, text in USUAL_OPTIONS[heading]])


def full_help(ctx: click.Context) -> str:
    """Return the help with every option."""
    formatter = ctx.make_formatter()
    click.Command.format_help(ctx.command, ctx, formatter)
    return formatter.getvalue().rstrip("\n")


def _show_all(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(full_help(ctx))
        ctx.exit()


help_all_option = option(
    "Other", "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show all options and exit.",
)  # fmt: skip
