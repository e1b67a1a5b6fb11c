"""Files of a run folder that its page shows."""

import json
import os
from contextlib import suppress
from typing import Any

from ddlrun.plan.run_dir import rank_log

# The part of a log that is shown.
LOG_BYTES = 1 << 16
PLACE_FIELDS = ("rank", "host", "local_rank", "packages", "cores", "gpu")
# The page draws no cell for a rank beyond these.
MOST_RANKS = 1000


def read_ranks(path: str) -> list[dict[str, Any]]:
    """Return the places of the ranks of a plan, up to a number; none where the plan cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as file:
        return [{name: rank[name] for name in PLACE_FIELDS} for rank in json.load(file)["ranks"][:MOST_RANKS]]
    return []


def read_verdict(path: str) -> str:
    """Return the verdict of the last examination; empty where there was none."""
    with suppress(OSError, ValueError, KeyError, TypeError), open(path, encoding="utf-8") as file:
        return str(json.load(file)["sentence"])
    return ""


def read_log(folder: str, rank: int, plan: str) -> str:
    """Return the end of a rank's log, as whole lines if possible; empty where it has printed nothing.

    Args:
        folder: The run folder.
        rank: The rank.
        plan: The file of the plan.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(plan, encoding="utf-8") as file:
            ranks = len(json.load(file)["ranks"])
        with open(rank_log(folder, rank, ranks), "rb") as log:
            start = max(0, log.seek(0, os.SEEK_END) - LOG_BYTES)
            log.seek(start)
            text = log.read(LOG_BYTES)
        if start:
            text = text.partition(b"\n")[2] or text
        return text.decode(errors="replace")
    return ""
