"""The supervision options of a launch, read from the options of a launch."""

import os
import signal
from collections.abc import Mapping
from typing import Any

from ddlrun.errors import InputError
from ddlrun.plan.supervision import OutputStyle, RankInput, StallAction, SupervisionOptions
from ddlrun.ranges import parse_ranges
from ddlrun.schedulers import Allocation
from ddlrun.supervise.encryption import find_cryptography

# These end the job, or cannot be caught.
UNFORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


def read_supervision(
    options: Mapping[str, Any], allocation: Allocation | None, stdin: RankInput | None
) -> SupervisionOptions:
    """Return the supervision options; `stdin` is the rank that gets standard input.

    Raises InputError on a wrong list of ranks or signals, and PreflightError where messages cannot be encrypted.
    """
    folder, ranks, local = (options[name] for name in ("output_filename", "shown_ranks", "shown_local_ranks"))
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
        forward=parse_signals(options["forward_signals"]),
        encryption=_read_encryption(options),
        style=OutputStyle(
            tag=options["tag"],
            timestamp=options["timestamp_output"],
            ranks=parse_ranks(ranks, "`--ranks`") if ranks else None,
            local_ranks=parse_ranks(local, "`--local-ranks`") if local else None,
            folder=requeued(os.path.abspath(folder), allocation) if folder else None,
            rank_logs=options["rank_logs"],
            fold=options["fold_output"],
            many_colours="256color" in os.environ.get("TERM", "") or "COLORTERM" in os.environ,
            raw=stdin.rank if stdin is not None and at_terminal else None,
        ),
        input=stdin,
        status_line=os.isatty(2) and not options.get("quiet") and smart and not at_terminal,
        colour="NO_COLOR" not in os.environ and smart,
    )


def _read_encryption(options: Mapping[str, Any]) -> str | None:
    if not options.get("encrypt"):
        return None

    return find_cryptography()


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
            raise InputError(f"{option} {text!r}: {part!r} is no rank; write a list such as 0,3-5")
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
