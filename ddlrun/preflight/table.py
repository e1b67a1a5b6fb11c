"""A preflight's report as text and as JSON."""

import json
from collections.abc import Iterator

from ddlrun.hosts import fold
from ddlrun.preflight.judge import NAMES, OK, WARNING, PreflightFinding
from ddlrun.preflight.run import PreflightReport, alike


def render_report(report: PreflightReport, *, everything: bool) -> str:
    """Write what is wrong, a row a finding, with what mends it; with `everything` what is right too."""
    rows = [row for name in NAMES for row in _rows(report, name, everything=everything)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:3] if rows else []
    lines = []
    for *cells, what, remedy in rows:
        start = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{start}  {what}".rstrip())
        lines += [f"{' ' * len(start)}  mend: {remedy}"] * bool(remedy)
    return "".join(f"{line}\n" for line in [*lines, _summary(report)])


def _rows(report: PreflightReport, name: str, *, everything: bool) -> Iterator[tuple[str, str, str, str, str]]:
    found = [one for one in report.findings if one.check == name and (everything or one.level != OK)]
    for same in alike(found):
        level = "ok" if same[0].level == OK else same[0].level.upper()
        what = "" if same[0].what == "ok" else same[0].what
        yield name, fold(dict.fromkeys(one.host for one in same)), level, what, same[0].remedy


def _summary(report: PreflightReport) -> str:
    hosts = list(dict.fromkeys(one.host for one in report.findings if one.check == "ssh"))
    bad = [*report.unreachable, *report.failures]
    warned = [one for one in report.findings if one.level == WARNING]
    counts = [_count(len(bad), "failure"), _count(len(warned), "warning")]
    told = ", ".join(filter(None, counts)) or "all is well"
    network = f"; network {report.network.subnets[0]}" if report.network and report.network.subnets else ""
    return f"{fold(hosts)}: {told}{network}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}" if number else ""


def report_json(report: PreflightReport) -> str:
    """Write a report as JSON: the network, and every finding, the good ones too."""
    network = report.network
    shown = network and {
        "subnets": network.subnets, "interfaces": network.interfaces, "addresses": network.addresses,
        "reason": network.reason, "rejected": [{"subnet": one, "why": why} for one, why in network.rejected],
    }  # fmt: skip
    findings = [_finding(one) for one in report.findings]
    return json.dumps({"exit_code": report.exit_code, "network": shown, "findings": findings}, indent=2) + "\n"


def check_json(report: PreflightReport) -> str:
    """Write what a run folder keeps of a report as JSON: findings, the good ones too, hosts that say alike as one."""
    names = ("check", "hosts", "level", "what", "remedy")
    found = [dict(zip(names, row, strict=True)) for name in NAMES for row in _rows(report, name, everything=True)]
    return json.dumps({"summary": _summary(report), "findings": found}) + "\n"


def _finding(finding: PreflightFinding) -> dict[str, str]:
    return finding._asdict()
