"""Content of a page besides samples: the program, the cores and the end of each rank, and the sections."""

import os
from collections.abc import Iterator, Sequence
from typing import TypedDict

from ddlrun.hosts import fold
from ddlrun.page.learners import make_learners
from ddlrun.page.record import Fields, RunRecord
from ddlrun.page.sections import Column, PageSection, has_content, make_section, make_table
from ddlrun.plan.outcome import RankEnd
from ddlrun.ranges import render_ranges
from ddlrun.report.outcome import render_end
from ddlrun.units import render_bytes
from ddlrun.wording import counted

# A page has no row and no cell for a rank beyond these.
MOST_RANKS = 1000
DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError)


class Place(TypedDict):
    """The place of a rank."""

    rank: int
    host: str


class PageContent(TypedDict):
    """What a page shows besides samples."""

    job: str
    """The number of ranks and the hosts."""
    notes: list[str]
    failure: str
    """The reason of a failure with the last lines of output; empty without one."""
    hosts: list[str]
    """The hosts in the order of the plan."""
    places: list[Place]
    """The places of the ranks, up to a number."""
    columns: list[Column]
    sections: list[PageSection]


def make_content(record: RunRecord) -> PageContent:
    """Return the content of a record; a note says where it is not as this ddlrun writes it."""
    content: PageContent = {
        "job": "", "notes": list(record.gaps), "failure": record.failure, "hosts": [], "places": [], "columns": [],
        "sections": [],
    }  # fmt: skip
    try:
        planned = sorted(record.plan.get("ranks", ()), key=lambda rank: int(rank["rank"]))
        content["job"] = _describe_job(record.plan) if planned else ""
        content["hosts"] = [host["name"] for host in record.plan.get("hosts", ())]
        content["places"] = [{"rank": rank["rank"], "host": rank["host"]} for rank in planned[:MOST_RANKS]]
        content["columns"] = [column for column in _columns(record, planned[:MOST_RANKS]) if any(column["texts"])]
        content["sections"] = [section for section in _sections(record) if has_content(section)]
    except DAMAGED as error:
        writer = f" ({record.plan['version']})" if "version" in record.plan else ""
        problem = f"{type(error).__name__} {error}"
        content["notes"].append(f"the records of this run are not as this ddlrun{writer} writes them: {problem}")
    return content


def _describe_job(plan: Fields) -> str:
    hosts = fold(host["name"] for host in plan["hosts"])
    return f"{counted(len(plan['ranks']), 'rank')} on {hosts} ({plan['topology']})"


def _columns(record: RunRecord, planned: Sequence[Fields]) -> Iterator[Column]:
    """Yield the columns of the table of ranks that need no samples."""
    if len({rank["host"] for rank in planned}) > 1:
        yield _column("local rank", [str(rank["local_rank"]) for rank in planned], width="chosen")
        yield _column("x, y, z", [", ".join(map(str, rank["coords"])) for rank in planned], width="chosen")
    yield _column("package", [render_ranges(rank["packages"]) for rank in planned], width="chosen")
    yield _column("cores", [render_ranges(rank["cores"]) for rank in planned])
    yield _column("GPU", ["" if rank["gpu"] is None else str(rank["gpu"]) for rank in planned])
    yield _column("NICs", [", ".join(rank["nics"]) for rank in planned], width="chosen")
    yield _column("threads", [str(rank["threads"]) for rank in planned], width="chosen")
    yield _bound(record.binding, planned)
    if record.dumps:
        last = record.dumps[-1]
        computing = [f"{1e3 * seconds:.2f}" for seconds in last["compute"]]
        yield _column("computing, ms", computing, number=True)
        yield _column("jitter, %", [f"{100 * share:.1f}" for share in last["jitter"]], number=True)
    yield from _ends(record.outcome, planned)


def _column(
    title: str, texts: list[str], *, number: bool = False, width: str = "wide", failures: Sequence[int] = ()
) -> Column:
    return {"title": title, "number": number, "width": width, "texts": texts, "failures": list(failures)}


def _bound(binding: Fields, planned: Sequence[Fields]) -> Column:
    """Return the CPUs that ranks really got, and how they differ from the plan."""
    bound = {fields["rank"]: fields for fields in binding.get("bindings", ())}
    records = [bound.get(rank["rank"], {"cpus": "", "problem": ""}) for rank in planned]
    failures = [fields["rank"] for fields in records if fields["problem"]]
    texts = [fields["problem"] or fields["cpus"] for fields in records]
    return _column("actual CPUs", texts, width="wide" if failures else "chosen", failures=failures)


def _ends(outcome: Fields, planned: Sequence[Fields]) -> Iterator[Column]:
    by_rank = {fields["rank"]: RankEnd(**fields) for fields in outcome.get("ends", ())}
    ends = [by_rank.get(rank["rank"]) for rank in planned]
    peaks = ["" if end is None else render_bytes(1024 * end.max_rss_kib) for end in ends]
    failures = [end.rank for end in ends if end is not None and end.exit_code and not end.ordered]
    yield _column("most memory", peaks, number=True, width="wide" if failures else "always")
    texts = ["" if end is None else _describe_end(end) for end in ends]
    yield _column("end", texts, width="always" if failures else "wide", failures=failures)


def _describe_end(end: RankEnd) -> str:
    return f"{'ended by ddlrun: ' if end.ordered else ''}{render_end(end)}"


def _sections(record: RunRecord) -> Iterator[PageSection]:
    plan, check = record.plan, record.check
    yield make_learners(record)
    if check:
        rows = [
            [it["check"], it["hosts"], it["level"].lower(), it["message"], it["remedy"]] for it in check["findings"]
        ]
        failed = any(it["level"] != "ok" for it in check["findings"])
        table = make_table(check["summary"], ["check", "hosts", "level", "finding", "remedy"], rows)
        yield make_section("Check of the hosts", unfolded=failed, tables=[table])
    if "reasons" in plan:
        yield make_section("Plan", facts=_facts(plan))
        yield make_section("Environment", facts=[
            *((name, value) for name, value in sorted(plan["variables"].items())),
            ("passed on, values left out", " ".join(record.environment)), ("removed", " ".join(plan["removed"])),
        ])  # fmt: skip


def _facts(plan: Fields) -> Iterator[tuple[str, str]]:
    for name, reason in plan["reasons"].items():
        yield name.replace("_", " "), f"{plan[name]}: {reason}" if name in plan else reason
    yield "hosts", f"{fold(host['name'] for host in plan['hosts'])}, from {plan['hosts_source']}"
    yield from (("machine", f"{fold(it['hosts'])}: {it['summary']} ({it['source']})") for it in plan["machines"])
    yield "process manager", ", ".join(map(str, plan["mpirun"].values()))
    yield from (("note", note) for note in plan["notes"])
    yield "command", " ".join(plan["command"])
    yield "run folder", plan["run_dir"]
    yield "ddlrun", plan["version"]


def script_name(program: Sequence[str]) -> str:
    """Return the name of a program's script for a title.

    >>> script_name(["/bin/python3", "-u", "a/train.py", "x"]), script_name(["python", "-m", "pkg.train"])
    ('train.py', 'pkg.train')
    >>> script_name(["./solve"]), script_name(["python", "-c", "print()"]), script_name([])
    ('solve', 'python', 'ddlrun')
    """
    words = [word for word in program if not word.startswith("-")]
    if len(words) > 1 and "-c" not in program and os.path.basename(words[0]).startswith("python"):
        words = words[1:]
    return os.path.basename(words[0]) if words else "ddlrun"
