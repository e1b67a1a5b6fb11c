"""ddlrun lint: what Open MPI would not do as a rank file says."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from ddlrun.cli.gen_rankfile import write_atomically
from ddlrun.cli.inputs import SSH, load_machines, reach, read_preset, read_rankfile, ssh_way
from ddlrun.cli.options import COUNT, Sections, option, ssh_options
from ddlrun.errors import InputError
from ddlrun.hosts import Host, HostList
from ddlrun.mapping.rankfile_lint import LintFinding, MachineOf, fix, hosts_of, lint
from ddlrun.remote.probe import probe


@click.command("lint", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("rankfile")
@option("Hosts", "--machine", metavar="PRESET|FILE", help="What each host is made of, as for launch.")
@option("Hosts", "--load", metavar="DIR", help="Take the machines that ddlrun probe --save wrote.")
@option("Hosts", "--probe", is_flag=True, help="Ask each host (by ssh) what it is made of.")
@ssh_options
@option("Checks", "-np", "--num-proc", "ranks", type=COUNT, help="Ranks that the file is to be launched with.")
@option("Checks", "--open-mpi", type=click.Choice(["4", "5"]), help="Show what matters to this major alone.")
@option("Checks", "--fix", "fixing", is_flag=True, help="Print the file as both majors read it alike.")
@option("Checks", "-o", "--output", metavar="FILE", help="With --fix: write it to FILE.")
@option("Checks", "--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(rankfile: str, **options: Any) -> int:  # noqa: ANN401 - click's own
    """Say what Open MPI 4.1 and 5.0 would not do as RANKFILE says, all of it at once.

    RANKFILE - is standard input. With --machine, --load or --probe cores are checked against the hosts.
    Ends with 2 where there are errors.
    """
    if options["output"] and not options["fixing"]:
        raise InputError("-o goes with --fix")
    text = read_rankfile(rankfile)
    machine_of = _machine_of(text, options)
    if options["fixing"]:
        fixed, found = fix(text, machine_of)
        if options["output"]:
            write_atomically(options["output"], [fixed])
        else:
            sys.stdout.write(fixed)
    else:
        found = lint(text, machine_of, options["ranks"])
    findings = [one for one in found if one.matters(int(options["open_mpi"]) if options["open_mpi"] else None)]
    shown = (
        json.dumps([one._asdict() for one in findings], indent=2) if options["as_json"] else render(rankfile, findings)
    )
    if not shown and not options["fixing"]:
        unchecked = "" if _asked(options) else "; its cores were not checked: --machine, --load or --probe"
        click.echo(f"ddlrun: note: {rankfile}: nothing found{unchecked}", err=True)
    if shown:
        click.echo(shown, err=options["fixing"])
    return 2 if any(one.error for one in findings) else 0


def _asked(options: dict[str, Any]) -> bool:
    return any(options[way] for way in ("machine", "load", "probe"))


def render(name: str, findings: Sequence[LintFinding]) -> str:
    """Write findings as a compiler does, each with what the majors would do and the remedy."""
    blocks = []
    for one in findings:
        same = one.open_mpi_4 == one.open_mpi_5
        told = [f"Open MPI: {one.open_mpi_4}"] if same else [f"4.1: {one.open_mpi_4}", f"5.0: {one.open_mpi_5}"]
        kind = "error" if one.error else "warning"
        blocks.append("\n    ".join([f"{name}{one.place}: {kind}: {one.what}", *told, f"fix: {one.remedy}"]))
    return "\n".join(blocks)


def _machine_of(text: str, options: dict[str, Any]) -> MachineOf:
    if sum(map(bool, (options["machine"], options["load"], options["probe"]))) > 1:
        raise InputError("--machine, --load and --probe exclude each other; give one of them")
    names = hosts_of(text)
    if options["machine"] and (described := read_preset(options["machine"])) is not None:
        return lambda _: described
    if not names or not _asked(options):
        return lambda _: None
    hosts = HostList(tuple(map(Host, names)), "the rank file")
    if options["load"]:
        machines = load_machines(options["load"], hosts)
    elif options["machine"]:  # local
        here = probe(HostList((Host("localhost"),), "this machine"), reach(SSH))["localhost"]
        machines = dict.fromkeys(names, here)
    else:
        machines = probe(hosts, reach(ssh_way(options)))
    return machines.get
