"""NCCL's logs while a job runs: each is kept in the run folder, and each problem of a network is reported once."""

import os
import time
from collections.abc import Callable
from contextlib import suppress

from ddlrun.plan.run_dir import RunDir, nccl_log
from ddlrun.wire.loop import NEVER

# The networks are known, as far as they will be, once no host has sent anything for this time.
QUIET_SECONDS = 10.0


class NcclLogs:
    """The logs of a job's hosts."""

    def __init__(self, files: RunDir, host_of: Callable[[int], str], tell: Callable[[str], None]) -> None:
        """Begin without any."""
        self._files, self._host_of, self._tell = files, host_of, tell
        self._reported: set[str] = set()
        self.due = NEVER
        """The time at which `examine` has something to do."""

    def add(self, rank: int, text: str) -> None:
        """Add lines to the log of a rank's host; a full disk is ignored."""
        with suppress(OSError):
            os.makedirs(self._files.nccl_logs, exist_ok=True)
            with open(nccl_log(self._files.path, self._host_of(rank)), "a", encoding="utf-8") as file:
                file.write(text)
        self.due = time.monotonic() + QUIET_SECONDS

    def examine(self) -> None:
        """Report the problems that are new."""
        if self.due == NEVER:
            return
        from ddlrun.network.nccl_log import find_transport_problems  # noqa: PLC0415 - 3 ms, for jobs with NCCL alone
        from ddlrun.runs.nccl_logs import read_run_networks  # noqa: PLC0415 - 1 ms, the same

        self.due = NEVER
        texts = [finding.text for finding in find_transport_problems(*read_run_networks(self._files.path))]
        for text in texts:
            if text not in self._reported:
                self._tell(f"warning: NCCL: {text}")
        self._reported.update(texts)
