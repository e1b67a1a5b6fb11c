"""Report of the checks as a table and as JSON."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ddlrun.hosts import fold
from ddlrun.preflight.findings import FindingCode, Level, PreflightFinding, group_findings
from ddlrun.preflight.judge import NAMES
from ddlrun.preflight.run import PreflightReport
from ddlrun.wording import counted

if TYPE_CHECKING:  # for the annotations alone
    from ddlrun.network.subnet_selection import Network
    from ddlrun.preflight.records import CheckRecord, FindingRecord, NetworkRecord


class _Row(NamedTuple):
    """A row of the table: equal findings of several hosts."""

    check: str
    hosts: str
    level: str
    message: str
    remedy: str


def render_report(report: PreflightReport, *, everything: bool) -> str:
    """Write a row per problem with its remedy, and with `everything` also a row per check that passed."""
    rows = [row for name in NAMES for row in _rows(report, name, everything=everything)]
    cells = [(row.check, row.hosts, row.level) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row, words in zip(rows, cells, strict=True):
        start = "  ".join(word.ljust(width) for word, width in zip(words, widths, strict=True))
        lines.append(f"{start}  {row.message}".rstrip())
        if row.remedy:
            lines.append(f"{' ' * len(start)}  remedy: {row.remedy}")
    return "".join(f"{line}\n" for line in [*lines, _summary(report)])


def _rows(report: PreflightReport, name: str, *, everything: bool) -> Iterator[_Row]:
    findings = [
        finding
        for finding in report.findings
        if finding.check == name and (everything or finding.level is not Level.OK)
    ]
    for group in group_findings(findings):
        first = group[0]
        yield _Row(
            check=name,
            hosts=fold(dict.fromkeys(finding.host for finding in group)),
            level="ok" if first.level is Level.OK else first.level.value.upper(),
            message="" if first.code is FindingCode.PASSED else first.message,
            remedy=first.remedy,
        )


def _summary(report: PreflightReport) -> str:
    hosts = list(dict.fromkeys(finding.host for finding in report.findings if finding.check == "ssh"))
    failures = len(report.unreachable) + len(report.failures)
    warnings = sum(finding.level is Level.WARNING for finding in report.findings)
    counts = ((failures, "failure"), (warnings, "warning"))
    result = ", ".join(counted(number, noun) for number, noun in counts if number) or "no problems"
    network = f"; network {report.network.subnets[0]}" if report.network and report.network.subnets else ""
    return f"{fold(hosts)}: {result}{network}"


def check_record(report: PreflightReport) -> "CheckRecord":
    """Return a report as JSON can carry it: the network, and every finding, including those of checks that passed."""
    return {
        "schema": "urn:ddlrun:check:1",
        "exit_code": report.exit_code,
        "network": None if report.network is None else _network_dict(report.network),
        "findings": [_finding_dict(finding) for finding in report.findings],
    }


def _finding_dict(finding: PreflightFinding) -> "FindingRecord":
    return {
        "host": finding.host,
        "check": finding.check,
        "code": finding.code.name.lower().replace("_", "-"),
        "level": finding.level.value,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def _network_dict(network: "Network") -> "NetworkRecord":
    return {
        "subnets": list(network.subnets),
        "interfaces": {host: list(names) for host, names in network.interfaces.items()},
        "addresses": dict(network.addresses),
        "reason": network.reason,
        "rejected": [{"subnet": rejected.subnet, "reason": rejected.reason} for rejected in network.rejected],
    }


def check_json(report: PreflightReport) -> str:
    """Write the JSON of a report for the run folder: all findings, equal ones of several hosts as one."""
    rows = [row for name in NAMES for row in _rows(report, name, everything=True)]
    return json.dumps({"summary": _summary(report), "findings": [row._asdict() for row in rows]}) + "\n"
