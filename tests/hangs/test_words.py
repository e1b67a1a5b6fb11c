"""What ranks wait for, in words: imports, locks and what holds them, threads at the end, pools, and a connection."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import OWN, launch_line
from tests.hangs.words import RANKS
from tests.support.launches import run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extra
SCRIPT = Path(__file__).with_name("words.py")
LINES = {
    line.rpartition("  # ")[2]: f"words.py:{number}"
    for number, line in enumerate(SCRIPT.read_text().splitlines(), 1)
    if "  # " in line
}


def test_the_words_for_what_ranks_wait_for(tmp_path: Path) -> None:
    """Those that poll, as SQLite does, are awake at some moments, and some ranks are on their way at first."""
    argv = launch_line(OWN, tmp_path, "-np", str(len(RANKS)), str(SCRIPT), str(tmp_path))
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        try:
            wait_until(lambda: all((tmp_path / f"begun{rank}").exists() for rank in range(len(RANKS))))
            wait_until((tmp_path / "port").exists)
            expected = list_words(tmp_path, (tmp_path / "port").read_text())
            seen: dict[int, str] = {}
            wait_until(lambda: seen.update(examine(tmp_path, expected)) or seen == expected, lambda: (seen, expected))
        finally:
            job.terminate()


def list_words(folder: Path, port: str) -> dict[int, str]:
    """Return the beginning of what each rank does, in words."""
    return {
        0: f"imports modules (import_slowly, {LINES['imports']}: ",
        1: f"waits for a lock on {folder}/runs.db, which rank 2 holds (wait_for_sqlite, {LINES['sqlite']}: ",
        2: f"sleeps (hold, {LINES['holds']}: time.sleep(1000))",
        3: f"waits for a lock on {folder}/lock, which rank 2 holds (wait_for_file_lock, {LINES['fcntl']}: ",
        4: f'waits for the lock of logging, which thread "writer" holds ({LINES["emits"]}) (wait_for_logging, '
        f"{LINES['logging']}: ",
        5: 'has finished the program, and waits for thread "taker", which waits for a queue (take, '
        f"{LINES['takes']}: queue.Queue[int]().get())",
        6: f'waits for a pool (wait_for_pool, {LINES["pool"]}: pool.map(tokenize, ["a"])), whose worker waits for '
        f"a lock (tokenize, {LINES['tokenizes']}: with LOCK:) in process ",
        7: f"connects to 127.0.0.1:{port} (connect, {LINES['connects']}: ",
    }


def examine(folder: Path, expected: dict[int, str]) -> dict[int, str]:
    """Return what each rank does, as long as it is expected to be."""
    argv = [sys.executable, "-m", "ddlrun", "doctor", "--json", "--interval", "0.1", str(folder / "run")]
    text = str(json.loads(run(argv).stdout)["verdict"]["text"])
    parts = dict(part.removeprefix("rank ").split(" ", 1) for part in re.split(r"; (?=rank \d)", text))
    return {rank: parts.get(str(rank), "")[: len(words)] for rank, words in expected.items()}
