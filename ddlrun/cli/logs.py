"""ddlrun logs: the output of a run."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing

import click

from ddlrun.application.read_supervision import parse_ranks
from ddlrun.cli.named_run import find_run_folder
from ddlrun.cli.options import Sections, argument, option
from ddlrun.cli.value_types import WholeNumber
from ddlrun.plan.run_dir import RunDir
from ddlrun.runs.history import PastRunState, read_past_run, restart_folder
from ddlrun.runs.log_files import LogReader, Source, rank_sources, run_sources

POLL_SECONDS = 0.2


@click.command("logs", cls=Sections, context_settings={"help_option_names": ["-h", "--help"]})
@argument("run", required=False)
@option("Output", "-f", "--follow", is_flag=True, help="Go on printing until the run and its restarts end.")
@option(
    "Output", "--rank", "--ranks", "ranks", metavar="LIST", help="Print the output of these ranks only, such as 0,3-5."
)
@option(
    "Output", "-n", "--lines", type=WholeNumber(min=0), metavar="N", help="Print only the last N lines of each log."
)
def command(run: str | None, ranks: str | None, lines: int | None, *, follow: bool) -> None:
    """Print the output of RUN.

    RUN is a run's name or the beginning of it, last, or a run folder; default: the last run that was started here.

    The ranks' standard output goes to standard output, and their standard error to standard error. With --rank, both
    streams of each rank go to standard output, in the order of their arrival.
    """
    folder = find_run_folder(run)
    chosen = None if ranks is None else parse_ranks(ranks, "--rank")
    if not follow:
        _print_run(folder, chosen, lines)
        return
    restart: str | None = folder
    while restart is not None:
        _print_run(restart, chosen, lines, follow=True)
        restart, lines = _await_restart(restart), None


def _print_run(folder: str, ranks: frozenset[int] | None, lines: int | None, *, follow: bool = False) -> None:
    """Print the logs of a run; `follow`: until it ends."""
    sources = run_sources(folder) if ranks is None else rank_sources(folder, ranks)
    with closing(LogReader(sources, last_lines=lines)) as reader:
        _print(reader, sources)
        if follow:
            _follow(reader, sources, lambda: _has_ended(folder))
    if follow and ranks is not None:
        rank_sources(folder, ranks)  # which was not known while the run was starting


def _print(reader: LogReader, sources: Sequence[Source]) -> bool:
    """Print what the logs have; return False if that is nothing."""
    printed = False
    streams = (sys.stdout, sys.stderr)
    for index, block in reader.read():
        stream = streams[sources[index].stream]
        if stream is not None:  # it is closed
            stream.buffer.write(block)
            stream.flush()
        printed = True
    return printed


def _follow(reader: LogReader, sources: Sequence[Source], has_ended: Callable[[], bool]) -> None:
    """Print the logs as they grow, until the run has ended."""
    while True:
        ended = has_ended()  # before reading: all that it wrote is read afterwards
        if not _print(reader, sources):
            if ended:
                return
            time.sleep(POLL_SECONDS)


def _await_restart(folder: str) -> str | None:
    """Return the folder of a failed run's restart; None where its ddlrun ends without one."""
    past, restart = read_past_run(folder), restart_folder(folder)
    while past is not None and past.state is PastRunState.FAILED:
        alive = past.run.alive()  # before looking: a restart that it wrote is seen afterwards
        if os.path.exists(RunDir(restart).plan):
            return restart
        if not alive:
            return None
        time.sleep(POLL_SECONDS)
    return None


def _has_ended(folder: str) -> bool:
    past = read_past_run(folder)
    if past is None:  # it is not yet written, or the folder is gone
        return os.path.exists(RunDir(folder).outcome) or not os.path.exists(RunDir(folder).plan)
    return past.state not in (PastRunState.RUNNING, PastRunState.UNKNOWN)
