"""A rank that leaves out a collective of its tensor-parallel group: the doctor names it, also after its death."""

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import OWN, launch_line
from tests.hangs.test_hangs import examine
from tests.support import needs
from tests.support.launches import run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extra
SCRIPT = Path(__file__).with_name("mesh.py")
LINES = {
    line.rpartition("# ")[2]: number
    for number, line in enumerate(SCRIPT.read_text().splitlines(), 1)
    if line.endswith(("# tp", "# dp", "# end"))
}
RANKS, GUILTY = 4, 3
RING = "rank 0 waits for rank 2 in all_reduce of mesh_dp, rank 2 for rank 3 in all_reduce of mesh_tp, rank 3 for rank 0"


def expected(used: str, *, lines: bool = True) -> str:
    """Return the sentence on the job; `used` comes before the members of a group that are not certain."""
    tp, dp, end = (f" (mesh.py:{LINES[name]})" if lines else "" for name in ("tp", "dp", "end"))
    return (
        f"ranks 1 and 3 wait in barrier{end}, collective 1; "
        f"rank 0 waits in all_reduce{dp}, collective 5 of mesh_dp ({used}ranks 0 and 2); "
        f"rank 2 waits in all_reduce{tp}, collective 5 of mesh_tp ({used}ranks 2 and 3); "
        f"{RING} in barrier; rank {GUILTY} calls these in a different order"
    )


@pytest.mark.parametrize("backend", ["gloo", "ddl"])
def test_the_doctor_compares_the_members_of_each_group(backend: str, tmp_path: Path) -> None:
    needs.package("torch")
    argv = launch_line(OWN, tmp_path, "-np", str(RANKS), "-x", f"BACKEND={backend}", str(SCRIPT), str(GUILTY))
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        try:
            wait_until((tmp_path / "run" / "run.json").exists)
            verdict = examine(tmp_path)["verdict"]
        finally:
            job.terminate()
    assert (verdict["guilty"], verdict["text"]) == ([GUILTY], expected(""))


def test_the_dumps_of_a_job_that_ddlrun_did_not_start(tmp_path: Path) -> None:
    """PyTorch 2.13 records no members of gloo's groups: they are those that have used them."""
    needs.package("torch")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environ = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = [sys.executable, str(SCRIPT), str(GUILTY), str(tmp_path)]
    ranks = [
        subprocess.Popen(argv, env={**environ, "RANK": str(rank)}, stdout=subprocess.DEVNULL) for rank in range(RANKS)
    ]
    try:
        wait_until(partial(has_all, tmp_path / "json"))
        # Until all ranks wait, the job moves between the dumps.
        for folder, text in ("pickles", expected("used by ")), ("json", expected("used by ", lines=False)):
            judged = partial(judge, tmp_path / folder)
            wait_until(lambda judged=judged, text=text: judged() == text, judged)  # type: ignore[misc]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def has_all(folder: Path) -> bool:
    return all((folder / f"nccl_trace_rank_{rank}").exists() for rank in range(RANKS))


def judge(folder: Path) -> str:
    """Return the verdict on dumps."""
    done = run([sys.executable, "-m", "ddlrun", "doctor", "--json", "--dumps", str(folder)])
    text: str = json.loads(done.stdout)["verdict"]["text"]
    return text
