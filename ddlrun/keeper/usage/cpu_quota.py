"""The CPU quota of a process's cgroups, and how often they were throttled."""

from __future__ import annotations

from ddlrun.keeper.proc_files import list_cgroups, parse_counters, read_file


class QuotaPeriods:
    """The periods of the CPU quotas that apply to a process."""

    def __init__(self, pid: int) -> None:
        """Find the cgroups of the process that have a quota."""
        self._files = [f"{folder}/cpu.stat" for folder in list_cgroups(pid, "cpu") if _has_quota(folder)]
        self._before = {path: _read_periods(path) for path in self._files}

    def take(self) -> tuple[int, int]:
        """Return the periods since the last call, and those that were throttled, of the most throttled cgroup."""
        most = (0, 0)
        for path in self._files:
            now, before = _read_periods(path), self._before[path]
            self._before[path] = now
            periods, throttled = now[0] - before[0], now[1] - before[1]
            if periods > 0 and throttled >= most[1]:
                most = (periods, throttled)
        return most


def _read_periods(path: str) -> tuple[int, int]:
    counters = parse_counters(read_file(path))
    return counters.get(b"nr_periods", 0), counters.get(b"nr_throttled", 0)


def _has_quota(folder: str) -> bool:
    """Return True if a cgroup has a CPU quota; v2 has it in cpu.max, v1 in cpu.cfs_quota_us."""
    limit = read_file(f"{folder}/cpu.max") or read_file(f"{folder}/cpu.cfs_quota_us")
    return limit[:1].isdigit()
