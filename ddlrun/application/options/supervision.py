"""The options for supervision, debugging, wrappers and standard input, read from the options of a launch."""

import os
import shlex
import signal
from collections.abc import Mapping
from typing import Any

from ddlrun.errors import InputError
from ddlrun.plan.supervision import InputMode, OutputStyle, RankInput, StallAction, SupervisionOptions, reads_script
from ddlrun.plan.wrappers import Wrapper, make_debugger
from ddlrun.ranges import parse_ranges
from ddlrun.schedulers import Allocation
from ddlrun.wording import did_you_mean

OUTPUT_WORDS = ("tag", "no-tag", "timestamp", "fold", "dir=DIR")
# These end the job, or cannot be caught.
UNFORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


def read_supervision(
    options: Mapping[str, Any], allocation: Allocation | None, stdin: RankInput | None
) -> SupervisionOptions:
    """Return the supervision options; `stdin` is the rank that gets standard input.

    Raises InputError on a wrong list of ranks or signals, and PreflightError where messages cannot be encrypted.
    """
    ranks, local = options["shown_ranks"], options["shown_local_ranks"]
    output = parse_output(options["output"])
    folder = output.get("dir")
    smart = os.environ.get("TERM") != "dumb"
    at_terminal = stdin is not None and stdin.terminal
    return SupervisionOptions(
        grace=options["grace"],
        heartbeat=options["heartbeat"],
        timeout=options["timeout"],
        start=options.get("start_timeout") or 0.0,
        stall=options["stall_timeout"],
        sample_interval=options["sample_interval"],
        stall_action=StallAction(options["stall_action"]),
        stall_work_factor=options["stall_work_factor"],
        forward=parse_signals(options["forward_signals"]),
        encryption=_find_cryptography() if options.get("encrypt") else None,
        style=OutputStyle(
            tag={"tag": True, "no-tag": False}.get(output.get("tag", "")),
            timestamp="timestamp" in output,
            ranks=parse_ranks(ranks, "`--ranks`") if ranks else None,
            local_ranks=parse_ranks(local, "`--local-ranks`") if local else None,
            folder=requeued(os.path.abspath(os.path.expanduser(folder)), allocation) if folder else None,
            fold="fold" in output,
            many_colours="256color" in os.environ.get("TERM", "") or "COLORTERM" in os.environ,
            raw=stdin.rank if stdin is not None and at_terminal else None,
        ),
        input=stdin,
        status_line=os.isatty(2) and options.get("verbose") is not False and smart and not at_terminal,
        colour="NO_COLOR" not in os.environ and smart,
    )


def _find_cryptography() -> str:
    from ddlrun.supervise.listener import find_cryptography  # noqa: PLC0415 - 1 ms, for --encrypt alone

    return find_cryptography()


def parse_output(text: str | None) -> dict[str, str]:
    """Return the words of --output by name; the last of two that exclude each other counts. Raises InputError.

    >>> parse_output("tag,timestamp,no-tag,dir=out")
    {'tag': 'no-tag', 'timestamp': 'timestamp', 'dir': 'out'}
    >>> parse_output("dir=lr=0.1,bs=32,tag")
    {'dir': 'lr=0.1,bs=32', 'tag': 'tag'}
    """
    words: dict[str, str] = {}
    for word in text.split(",") if text else ():
        name, _, value = word.partition("=")
        if word not in OUTPUT_WORDS and not (value and name == "dir"):
            hint = did_you_mean(word, OUTPUT_WORDS)
            if not hint and next(reversed(words), "") == "dir":
                words["dir"] += f",{word}"  # of the folder's name
                continue
            hint = hint or "; to write a file, redirect the output: > FILE"
            raise InputError(f"`--output` {text!r}: {word!r} is none of {', '.join(OUTPUT_WORDS)}{hint}")
        words[name.removeprefix("no-")] = value or word
    return words


def requeued(folder: str, allocation: Allocation | None) -> str:
    """Return the folder of a run: below the named one where the job's scheduler has restarted the job."""
    return f"{folder}/requeue-{allocation.restarts}" if allocation is not None and allocation.restarts else folder


def parse_ranks(text: str, option: str) -> frozenset[int]:
    """Parse a list of ranks such as 0,3-5. Raises InputError."""
    ranks = frozenset[int]()
    for part in text.split(","):
        try:
            numbers = parse_ranges(part)
        except ValueError:
            numbers = frozenset()
        if not numbers:
            raise InputError(f"{option} {text!r}: {part!r} is not a rank; write a list such as 0,3-5")
        ranks |= numbers
    return ranks


def parse_signals(text: str) -> tuple[int, ...]:
    """Return the numbers of signals, which are named as for kill. Raises InputError."""
    numbers = []
    for word in filter(None, (word.strip().upper().removeprefix("SIG") for word in text.split(","))):
        number = int(word) if word.isdigit() else getattr(signal, f"SIG{word}", None)
        if not isinstance(number, int) or not 0 < number < signal.NSIG or number in UNFORWARDED:
            raise InputError(
                f"`--forward-signals` {text!r}: {word!r} cannot be passed on; write names such as USR1,USR2"
            )
        numbers.append(int(number))
    return tuple(dict.fromkeys(numbers))


def read_input(options: Mapping[str, Any], program: tuple[str, ...]) -> RankInput | None:
    """Return the rank whose standard input is ddlrun's by an option; None: rank 0's, as it is passed on.

    Raises InputError where two options name different ranks.
    """
    chosen, debugged = options["stdin_rank"], options["debug_rank"]
    if debugged is not None:
        if chosen not in (None, debugged):
            raise InputError(
                f"`--debug-rank` {debugged}: rank {debugged} has the terminal; omit `--stdin-rank` {chosen}"
            )
        return RankInput(debugged, InputMode.DEBUGGER)
    if options["pty"] or (chosen is None and options["processes"] == 1 and _is_interactive(program)):
        return RankInput(chosen or 0, InputMode.TERMINAL)
    return None if chosen is None else RankInput(chosen, InputMode.PIPE)


def _is_interactive(program: tuple[str, ...]) -> bool:
    """Return True for an interpreter without a script that would be started at a terminal."""
    return reads_script(program) and os.isatty(0) and os.isatty(1)


def read_wrappers(options: Mapping[str, Any], program: tuple[str, ...]) -> tuple[Wrapper, ...]:
    """Return the wrappers of --wrap, that of --debug-rank, and the programs that replace the first on some ranks.

    The last one is innermost. Raises InputError.
    """
    wrappers = [parse_wrapper(text) for text in options["wrap"]]
    others: tuple[Wrapper, ...] = options.get("other_programs", ())
    rank = options["debug_rank"]
    if rank is not None:
        debugged = next((other.words for other in others if rank in (other.ranks or ())), program)
        wrappers.append(make_debugger(debugged, rank))
    return (*wrappers, *others)


def parse_wrapper(text: str) -> Wrapper:
    """Parse RANKS:COMMAND. Raises InputError.

    >>> parse_wrapper("all:perf record -o {run}/perf.{rank}").words
    ('perf', 'record', '-o', '{run}/perf.{rank}')
    """
    ranks, colon, command = text.partition(":")
    example = "write RANKS:COMMAND, such as 0,3-5:'strace -o {run}/strace.{rank}'"
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"`--wrap` {text!r}: {error}; {example}") from error
    if not colon or not words:
        raise InputError(f"`--wrap` {text!r}: {'no command' if colon else 'no ranks'}; {example}")
    return Wrapper(None if ranks == "all" else parse_ranks(ranks, "`--wrap`"), words)
