"""The stage of a launch that copies the files of --fetch back, after the end of the ranks."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddlrun.application.attempt import Attempt
from ddlrun.application.inputs import reach
from ddlrun.application.reporter import try_line
from ddlrun.errors import UnreachableError
from ddlrun.hosts import fold
from ddlrun.listening import own_addresses
from ddlrun.plan.outcome import Outcome
from ddlrun.plan.plan import Plan
from ddlrun.ranges import render_spaced
from ddlrun.remote.temporary_folder import temporary_folder
from ddlrun.ship.files import INCOMING
from ddlrun.ship.host.results import is_wanted
from ddlrun.ship.placing import PlacedFile, Placing, PlacingError, ResultPlacer
from ddlrun.ship.request import ShipRequest
from ddlrun.ship.results import FetchTask, Received, receive_results
from ddlrun.ship.server import LONGEST_SECONDS
from ddlrun.units import render_memory
from ddlrun.wording import counted, printable_line

# More files than these are counted, and the first of those are named that did not simply get their names.
MOST_NAMED = 20


class Fetched(NamedTuple):
    """What has come back, and what has not."""

    placed: Sequence[PlacedFile]
    problems: Sequence[str]
    left: Mapping[str, Sequence[str]]
    """Host -> files that are never copied back, such as links."""


def fetch(request: ShipRequest, attempt: Attempt, plan: Plan, outcome: Outcome) -> None:
    """Copy the files of --fetch back from the hosts, and list them; those of lost hosts stay there.

    Raises UnreachableError where a file is missing and the job itself has not failed.
    """
    settings, reporter = attempt.settings, attempt.reporter
    hosts = [name for name in plan.placement.hosts.names if name not in outcome.lost_hosts]
    place = f"{request.run_folder(plan.run_id)}{request.working_folder}"
    if outcome.requested:
        try_line(reporter, "fetching results; Ctrl-C leaves them on the hosts")
    try:
        fetched = _fetch(request, attempt, plan, hosts)
    except OSError as error:
        fetched = Fetched((), [f"`--fetch`: {error.filename or request.working_folder}: {error.strerror}"], {})
    except BaseException:
        try_line(reporter, f"`--fetch` was interrupted; results are on {fold(hosts)}, in {place}")
        raise
    lost = [name for name in plan.placement.hosts.names if name not in hosts]
    problems = [*fetched.problems, *((f"hosts {fold(lost)}: `--fetch`: lost with their results",) if lost else ())]
    if not settings.run.quiet:
        complete = not (problems or any(fetched.left.values()))
        lines = render_fetched(fetched.placed, request, _ranks_of(plan), complete=complete)
        for line in (*lines, *render_left(fetched.left)):
            try_line(reporter, line)
    if problems:
        problems.append(f"`--fetch`: what is missing is on the hosts for 14 days, in {place}")
        if not outcome.exit_code:
            raise UnreachableError(*problems)
        for problem in problems:
            try_line(reporter, f"error: {problem}")


def _fetch(request: ShipRequest, attempt: Attempt, plan: Plan, hosts: Sequence[str]) -> Fetched:
    folder = os.getcwd()
    since = os.stat(plan.run_dir.plan).st_mtime
    others = [name for name in hosts if name not in plan.local_hosts]
    prefix = f"{INCOMING}{os.uname().nodename}-"
    remove_interrupted(folder, prefix)
    with temporary_folder(f"{prefix}{os.getpid()}-", folder) as incoming:
        task = FetchTask(
            request=request, run_id=plan.run_id, hosts=hosts,
            addresses=own_addresses(others, plan.own_address), folder=incoming,
        )  # fmt: skip
        return _place(receive_results(task, reach(attempt.links, LONGEST_SECONDS)), ResultPlacer(folder, since))


def remove_interrupted(folder: str, prefix: str) -> None:
    """Remove unfinished folders of transfers whose ddlrun, the process after the prefix of the name, no longer runs."""
    for name in os.listdir(folder):
        process = name.removeprefix(prefix).partition("-")[0]
        if name.startswith(prefix) and process.isdigit() and not os.path.exists(f"/proc/{process}"):
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)


def _place(received: Received, placer: ResultPlacer) -> Fetched:
    """Put files in their places, those of rank 0's host first."""
    problems = [f"host {host}: `--fetch`: {line}" for host, lines in received.problems.items() for line in lines]
    placed = []
    for file in received.files:
        try:
            placed.append(placer.place(file))
        except PlacingError as error:
            problems.append(f"host {file.host}: `--fetch`: {printable_line(str(error))}")
    return Fetched(placed, problems, received.left)


def _ranks_of(plan: Plan) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for placed in plan.placement.by_host():
        ranks.setdefault(placed.host.name, []).append(placed.rank)
    return ranks


def render_fetched(
    placed: Sequence[PlacedFile], request: ShipRequest, ranks: Mapping[str, Sequence[int]], *, complete: bool = True
) -> Iterator[str]:
    """Yield lines that name what has come back, from which host and its ranks; of very many files, those to look at.

    What has not been written is named where all results are `complete`.
    """
    missing = [path for path in request.fetched if not any(is_wanted(file.result.path, [path]) for file in placed)]
    if missing and complete:
        yield f"--fetch: no rank has written {', '.join(map(repr, missing))}"
    same: dict[str, list[str]] = {}
    for file in placed:
        if file.placing is Placing.SAME:
            same.setdefault(file.name, []).append(file.result.host)
    news = [file for file in placed if file.placing is not Placing.SAME]
    many = len(news) > MOST_NAMED
    if many:
        size = render_memory(sum(file.result.size for file in news))
        yield f"fetched {counted(len(news), 'file')} ({size}) from {fold(_hosts(news))}"
    unusual = [file for file in news if file.other is not None or file.placing is Placing.REPLACED]
    for file in (unusual if many else news)[:MOST_NAMED]:
        yield _render(file, ranks, same.pop(file.name, []))
    if len(unusual) > MOST_NAMED:
        yield f"and {len(unusual) - MOST_NAMED} more of these"
    if same and not many:
        yield f"not changed: {counted(len(same), 'file')} with the content that is here already"


def render_left(left: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line per group of hosts with the same files that were not copied back."""
    alike: dict[str, list[str]] = {}
    for host, lines in left.items():
        if lines:
            alike.setdefault("; ".join(lines), []).append(host)
    for text, hosts in alike.items():
        yield f"not fetched from {fold(hosts)}: {text}"


def _render(file: PlacedFile, ranks: Mapping[str, Sequence[int]], same: Sequence[str]) -> str:
    """Render the line of a file."""
    host, size = file.result.host, render_memory(file.result.size)
    noun = "rank" if len(ranks[host]) == 1 else "ranks"
    line = f"fetched {printable_line(file.name)} ({size}) from {host} ({noun} {render_spaced(ranks[host])})"
    if same:
        line += f"; the same on {fold(same)}"
    if file.other is not None:
        path = printable_line(file.result.path)
        line += f"; {path} is {file.other}'s" if file.other else f"; {path} has changed here during the run"
    return f"{line}; the former one is {printable_line(file.former)}" if file.former else line


def _hosts(files: Sequence[PlacedFile]) -> list[str]:
    return list(dict.fromkeys(file.result.host for file in files))
