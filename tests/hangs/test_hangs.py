"""Seeded hangs: the doctor names the guilty rank, unless any may be that, and its line."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MPIRUNS, launch_line
from tests.hangs.expected import GUILTY, HANGS, SCRIPT, UNCLEAR, SeenVerdict, seen_verdict
from tests.support import needs
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.extra
RANKS = 3
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def examine(folder: Path) -> dict[str, Any]:
    """Return the examination of the running job once it hangs; a busy machine may take a while to get there."""
    argv = [sys.executable, "-m", "ddlrun", "doctor", "--json", "--interval", "0.2", str(folder / "run")]
    end = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        record: dict[str, Any] = json.loads(done.stdout)
        if record["verdict"]["hangs"]:
            return record
        assert time.monotonic() < end, record["sentence"]


def test_the_doctor_names_the_guilty_rank_and_its_line(tmp_path: Path) -> None:
    """One job hangs in each way in turn: what the ranks wait for comes once the doctor has seen it."""
    needs.package("torch")
    argv = launch_line(MPIRUNS[5], tmp_path, "-np", str(RANKS), str(SCRIPT), str(tmp_path), *HANGS)
    records: dict[str, dict[str, Any]] = {}
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=errors, env={**os.environ, **YIELD}) as job,
    ):
        try:
            for hang in HANGS:
                wait_until(partial(has_begun, tmp_path, hang), (tmp_path / "errors").read_text)
                records[hang] = examine(tmp_path)
                (tmp_path / hang).touch()
                if hang == "stopped":
                    subprocess.run(["kill", "-CONT", str(pid_of(records[hang], GUILTY))], check=True)
        finally:
            job.terminate()
    verdicts = {hang: seen_verdict(record, hang) for hang, record in records.items()}
    guilty = {hang: [] if hang in UNCLEAR else [GUILTY] for hang in HANGS}
    expected = {hang: SeenVerdict(hangs=True, guilty=ranks, lines=True) for hang, ranks in guilty.items()}
    assert verdicts == expected, {hang: record["sentence"] for hang, record in records.items()}


def has_begun(folder: Path, hang: str) -> bool:
    """Return True if all ranks have begun with a hang."""
    return all((folder / f"{hang}.{rank}").exists() for rank in range(RANKS))


def pid_of(record: dict[str, Any], rank: int) -> int:
    """Return the process of a rank from its snapshot."""
    return int(record["ranks"][rank]["snapshot"][0].split()[1])
