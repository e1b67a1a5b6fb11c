"""What other tools find in a job that hangs: they read PyTorch's flight recorders, and stacks by py-spy.

fr_trace and torch.distributed.debug need the members of groups, which PyTorch 2.13 does not record for gloo: fr_trace
gets them from the job.
"""

import io
import json
import logging
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 12.0
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen|^<string>|/ddlrun/")
ONE_AT_A_TIME = threading.Lock()


class Seen(NamedTuple):
    """A rank of a job that hangs, as other tools see it."""

    stack: tuple[str, ...]
    """The places on the stack of its main thread, the innermost first; empty: there is none."""
    records: dict[str, Any] | None
    """Its flight recorder."""
    groups: dict[str, Any]
    """The members of its groups."""


class Named(NamedTuple):
    """What a tool has named."""

    ranks: list[int]
    text: str
    """With lines, as far as it names any."""


def look(facts: list[dict[str, Any]]) -> list[Seen]:
    """Look at all ranks at once, by the facts that they have left."""
    with ThreadPoolExecutor(len(facts)) as pool:
        return list(pool.map(_look_at, facts))


def _look_at(facts: dict[str, Any]) -> Seen:
    records = _fetch(f"{facts['server']}/handler/fr_trace_json") if "server" in facts else None
    return Seen(_read_stack(facts["pid"]), records, facts.get("groups", {}))


def _fetch(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=SECONDS) as reply:  # noqa: S310
            return dict(json.loads(reply.read()))
    except (OSError, ValueError):
        return None


def _read_stack(pid: int) -> tuple[str, ...]:
    argv = [str(Path(sys.prefix, "bin", "py-spy")), "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return ()
    threads = {thread["os_thread_id"]: thread["frames"] for thread in json.loads(done.stdout)}
    return tuple(f"{frame['filename']}:{frame['line']}" for frame in threads.get(pid, ()))


def vote(seen: list[Seen]) -> Named:
    """Name the ranks whose innermost line of the program is not that of more than half of the ranks."""
    places = [next((place for place in rank.stack if not LIBRARY.search(place)), "") for rank in seen]
    place, count = Counter(places).most_common(1)[0]
    if 2 * count <= len(seen):
        return Named([], "no majority")
    odd = [rank for rank, other in enumerate(places) if other != place]
    return Named(odd, ", ".join(Path(places[rank]).name for rank in odd))


def trace(seen: list[Seen]) -> Named | None:
    """Run fr_trace on the flight recorders; None if there are none."""
    if not any(rank.records for rank in seen):
        return None
    with tempfile.TemporaryDirectory() as folder:
        for number, rank in enumerate(seen):
            if rank.records is not None:
                Path(folder, f"trace_{number}").write_bytes(pickle.dumps({**rank.records, "pg_config": rank.groups}))
        return _run_fr_trace(folder)


def _run_fr_trace(folder: str) -> Named:
    from torch.distributed.flight_recorder import fr_trace  # noqa: PLC0415 - takes seconds
    from torch.distributed.flight_recorder.components.builder import logger  # noqa: PLC0415

    text = io.StringIO()
    handler = logging.StreamHandler(text)
    with ONE_AT_A_TIME, redirect_stdout(text), redirect_stderr(text):
        own, logger.logger.handlers = logger.logger.handlers, [handler]
        try:
            fr_trace.main([folder, "--allow-incomplete-ranks"])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise any
            return Named([], f"{type(error).__name__}: {error}")
        finally:
            logger.logger.handlers = own
    found = re.findall(r"missing ranks: \{(.*)\}|Culprit rank (\d+)", text.getvalue())
    return Named(sorted({int(rank) for words in found for rank in re.findall(r"\d+", ",".join(words))}), "")


def debug(seen: list[Seen]) -> Named | None:
    """Build the table of the page of torch.distributed.debug from what its servers reply; None if there is none."""
    if not any(rank.records for rank in seen):
        return None
    from torch.distributed.debug._debug_handlers import FlightRecorderHandler  # noqa: PLC0415 - takes seconds
    from torch.distributed.debug._frontend import Response  # noqa: PLC0415 - takes seconds

    replies = [Response(200 if rank.records else 503, json.dumps(rank.records)) for rank in seen]
    with ONE_AT_A_TIME, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            table = FlightRecorderHandler._build_db([""] * len(seen), replies).collectives  # noqa: SLF001
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise any
            return Named([], f"{type(error).__name__}: {error}")
    return Named(sorted({rank for row in table for rank in row.missing_ranks or ()}), "")
