"""Report of a failed run on one screen: the root cause first."""

import errno
import os
import re
import signal
from collections.abc import Iterator, Sequence

from ddlrun.errors import spell_options
from ddlrun.managers.openmpi.hints import MPI_HINTS
from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.plan.plan import Plan
from ddlrun.plan.tracebacks import exception_line, find_failure, is_collateral, last_lines, without_numbers
from ddlrun.ranges import name_numbers
from ddlrun.report.hints import CODE_HINTS, HINTS, LIMIT_HINTS, find_hint
from ddlrun.wording import printable, signal_name

# Lines on ranks that failed later, and the characters of an exception in them.
MOST_KINDS = 4
MOST_CHARACTERS = 200
# Where in C++ an error was raised, as PyTorch writes it.
CPP_LOCATION = re.compile(r"\[[^\s\]]+\.\w+:\d+\] ")
# The colour of errors in Okabe and Ito's palette, which is not mistaken for green, and the nearest of eight colours.
VERMILION, RED = "1;38;5;166", "1;31"
TOO_LONG = os.strerror(errno.E2BIG)


def render_outcome(outcome: Outcome, plan: Plan, *, with_tail: bool = True) -> str:
    """Render the reason of a failure: the cause, perhaps with its last lines, the other ranks, the path of the logs.

    Of a success only the last line is rendered, and only if output was not printed.
    """
    lines = [*_reason(outcome, plan, with_tail=with_tail)] if outcome.exit_code else []
    if outcome.exit_code or outcome.unprinted_bytes:
        lines.append(_last_line(outcome, plan))
    return "".join(f"ddlrun: {printable(line)}\n" for line in lines)


def colour_report(report: str, *, many_colours: bool) -> str:
    """Return a report whose first line, the failure, stands out on a terminal; its words say the same."""
    first, newline, rest = report.partition("\n")
    return report and f"\x1b[{VERMILION if many_colours else RED}m{first}\x1b[0m{newline}{rest}"


def _reason(outcome: Outcome, plan: Plan, *, with_tail: bool) -> Iterator[str]:
    root = outcome.root
    if root is not None:
        how = "an uncaught exception" if root.ended_by_order else render_end(root)
        yield f"failed: {_describe(root, plan)}: {how}, after {root.seconds:.1f} s"
        if root.reason:
            yield f"  because: {root.reason}"
        lines = last_lines(root.tail)
        if lines and with_tail:
            yield f"  last lines of its {root.wrote_to}:"
            yield from (f"    {line}".rstrip() for line in lines)
    elif outcome.signal is not None and not outcome.reason:
        yield f"ended by {signal_name(outcome.signal)} after {outcome.until_end:.1f} s"
    else:
        verb = "ended" if outcome.requested else "failed"
        reason = spell_options(outcome.reason or "") or f"{plan.manager.name} ended with {outcome.exit_code}"
        yield f"{verb} after {outcome.until_end:.1f} s: {reason}"
    hint = _hint(outcome, plan.program)
    if hint:
        yield f"  hint: {hint}"
    yield from render_others(outcome)


def _last_line(outcome: Outcome, plan: Plan) -> str:
    count = outcome.unprinted_bytes
    unprinted = f"{count} bytes of output were not printed; " if count else ""
    folder = plan.run_dir.path
    name = "" if os.path.basename(folder) == plan.run_id else f"run {plan.run_id}; "
    return f"exit code {outcome.exit_code}; {unprinted}{name}logs: {folder}"


def _hint(outcome: Outcome, program: Sequence[str]) -> str | None:
    root = outcome.root
    if root is None:
        by_output = None if outcome.reason else find_hint(outcome.mpirun_output, MPI_HINTS)
        return by_output or LIMIT_HINTS.get(outcome.exit_code)
    if TOO_LONG in root.tail:
        return "the arguments, or the environment, are too long for that host: put them into a file, or unset variables"
    if root.exit_code in (126, 127):
        return CODE_HINTS[root.exit_code]
    explained = root.reason or root.ordered or "Fatal Python error" in root.tail
    failure = find_failure(root.tail)
    text = root.tail if failure is None else "\n".join(failure.lines)
    python = program[0] if re.fullmatch(r"python[\d.]*", os.path.basename(program[0])) else "python"
    return find_hint(text, HINTS, python) or (None if explained else CODE_HINTS.get(root.exit_code))


def _describe(end: RankEnd, plan: Plan) -> str:
    placed = next((placed.binding for placed in plan.placement.by_host() if placed.rank == end.rank), None)
    gpu = f", GPU {placed.gpu.number}" if placed is not None and placed.gpu is not None else ""
    return f"rank {end.rank} on {end.host} (local rank {end.local_rank}{gpu})"


def render_end(end: RankEnd) -> str:
    """Render the end of a rank: its exit code or signal."""
    if end.signal is not None:
        return f"killed by {signal_name(end.signal)} ({signal.strsignal(end.signal)})"
    meaning = {126: " (the program cannot be executed)", 127: " (the program does not exist)"}.get(end.exit_code, "")
    if end.exit_code == 1 and "Traceback (most recent call last)" in end.tail:
        meaning = " (an uncaught Python exception)"
    return f"exit code {end.exit_code}{meaning}"


def render_others(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each way in which ranks other than the root have ended."""
    others = [end for end in outcome.ends if end is not outcome.root]
    early = [end for end in others if end.exit_code == 0 and not end.ordered]
    later = [end for end in others if end.exit_code and (not end.ordered or _lost_another(end))]
    ended = [end for end in others if end.ordered and end not in later]
    yield from _later_failures(later, outcome.root)
    if early:
        yield f"  had already ended with exit code 0: {_ranks(early)}"
    if ended:
        yield f"  ended by ddlrun: {_ranks(ended)}"
    if outcome.lost_ranks:
        yield f"  lost: {', '.join(outcome.lost_ranks[:8])}{_more(len(outcome.lost_ranks) - 8)}"


def _lost_another(end: RankEnd) -> bool:
    """Return True if a rank had failed as it lost another one, though ddlrun's order may have ended it."""
    ended = end.ended_by_order and find_failure(end.tail) is None
    return not ended and is_collateral(end)


def _later_failures(ends: list[RankEnd], root: RankEnd | None) -> Iterator[str]:
    """Yield a line for each kind of failure: ranks that only lost the root's connection, and others."""
    kinds: dict[tuple[bool, int, str], list[RankEnd]] = {}
    known_root = root is not None and not is_collateral(root)
    for end in ends:
        lost_root = known_root and is_collateral(end)
        code = 0 if lost_root else end.exit_code  # whether it or ddlrun's order ended such a rank first is chance
        kinds.setdefault((lost_root, code, without_numbers(exception_line(end.tail))), []).append(end)
    for (lost_root, _, _), equal in list(kinds.items())[:MOST_KINDS]:
        verb = f"lost their connection to rank {root.rank}" if root is not None and lost_root else "also failed"
        host = f" on {equal[0].host}" if len(equal) == 1 else ""
        yield f"  {verb}: {_ranks(equal)}{host} ({_failure(equal[0], with_code=not lost_root)})"
    remaining = [end for equal in list(kinds.values())[MOST_KINDS:] for end in equal]
    if remaining:
        yield f"  also failed: {_ranks(remaining)}"


def _failure(end: RankEnd, *, with_code: bool) -> str:
    """Return the end of a rank in words, with its exception, of which the log has the traceback."""
    exception = CPP_LOCATION.sub("", exception_line(end.tail), count=1)
    if is_collateral(end):
        exception = exception.partition(". ")[0]
    if len(exception) > MOST_CHARACTERS:
        exception = f"{exception[:MOST_CHARACTERS]}..."
    code = f", exit code {end.exit_code}" if with_code and not end.ended_by_order else ""
    return f"{exception}{code}" if exception else render_end(end)


def _ranks(ends: list[RankEnd]) -> str:
    return name_numbers("rank", (end.rank for end in ends))


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
