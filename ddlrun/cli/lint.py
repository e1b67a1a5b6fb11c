"""ddlrun lint: check a rank file against the behaviour of Open MPI."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import click

from ddlrun.application.inputs import open_links, reach, read_machines, read_rankfile, ssh_launcher
from ddlrun.application.output_files import write_atomically
from ddlrun.cli.console import print_note
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.options.shared import machine_option, probe_option, ssh_options
from ddlrun.cli.options.types import COUNT, Choice
from ddlrun.errors import EXIT_BAD_INPUT, InputError
from ddlrun.hosts import Host, HostList
from ddlrun.mapping.lint_findings import LintFinding
from ddlrun.mapping.placement_notes import unchecked_notes
from ddlrun.mapping.rankfile_entries import parse_host_names
from ddlrun.mapping.rankfile_lint import MachineOf, fix, lint
from ddlrun.remote.probe import probe


@click.command("lint", cls=Sections)
@argument("rankfile")
@machine_option()
@probe_option
@ssh_options
@option("Checks", "-np", "--num-proc", "ranks", type=COUNT, metavar="N", help="Total number of ranks of the launch.")
@option("Checks", "--open-mpi", type=Choice(["4", "5"]), help="Report only problems of this major version.")
@option("Output", "--fix", "fixing", is_flag=True, help="Print a rank file that both versions read alike.")
@option("Output", "-o", "--output", metavar="FILE", help="With --fix: write the rank file to FILE.")
@option("Output", "--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(rankfile: str, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Check RANKFILE against Open MPI 4.1 and 5.0.

    Reports every line that either version would not follow. RANKFILE may be - for standard input. With --machine
    or --probe, cores are checked against those of the hosts. The exit code is 2 if there are errors.
    """
    if options["output"] and not options["fixing"]:
        raise InputError("-o: needs --fix; give both")
    text = read_rankfile(rankfile)
    machine_of = _machine_of(text, options)
    if options["fixing"]:
        fixed, all_findings = fix(text, machine_of)
        write_atomically(options["output"] or "-", [fixed])
    else:
        all_findings = lint(text, machine_of, options["ranks"])
    major = int(options["open_mpi"]) if options["open_mpi"] else None
    findings = [finding for finding in all_findings if finding.concerns(major)]
    _print_findings(rankfile, findings, options)
    return EXIT_BAD_INPUT if any(finding.error for finding in findings) else 0


def _print_findings(rankfile: str, findings: Sequence[LintFinding], options: Mapping[str, Any]) -> None:
    """Print the findings; on standard error where --fix prints the file."""
    report = (
        json.dumps([finding.as_dict() for finding in findings], indent=2)
        if options["as_json"]
        else _render_findings(rankfile, findings)
    )
    if report:
        click.echo(report, err=options["fixing"])
    elif not options["fixing"]:
        hint = "" if _has_machines(options) else "; cores were not checked: give --machine or --probe"
        print_note(f"{rankfile}: no findings{hint}")


def _has_machines(options: Mapping[str, Any]) -> bool:
    return any(options[name] for name in ("machine", "probe"))


def _machine_of(text: str, options: Mapping[str, Any]) -> MachineOf:
    """Return a function from a host's name to its machine, None where it is not known."""
    if len([name for name in ("machine", "probe") if options[name]]) > 1:
        raise InputError("--machine and --probe exclude each other; give one of them")
    names = parse_host_names(text)
    if not names or not _has_machines(options):
        return lambda _: None
    hosts = HostList(tuple(map(Host, names)), "the rank file")
    if options["probe"]:
        with closing(open_links(ssh_launcher(options))) as links:
            return probe(hosts, reach(links)).get
    machines = read_machines(hosts, options["machine"])
    for note in unchecked_notes(machines):
        print_note(note)
    return machines.get


def _render_findings(name: str, findings: Sequence[LintFinding]) -> str:
    """Render findings like a compiler's, each with the behaviour of both versions and the remedy."""
    return "\n".join("\n    ".join(_lines(name, finding)) for finding in findings)


def _lines(name: str, finding: LintFinding) -> Iterator[str]:
    yield f"{name}{finding.location}: {'error' if finding.error else 'warning'}: {finding.message}"
    if finding.same_in_both:
        yield f"Open MPI: {finding.open_mpi_4}"
    else:
        yield f"4.1: {finding.open_mpi_4}"
        yield f"5.0: {finding.open_mpi_5}"
    yield f"fix: {finding.remedy}"
