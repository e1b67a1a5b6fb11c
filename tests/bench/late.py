"""The allreduce with a late host, over hosts in network namespaces: the usual schedule, and one that takes it last.

    python -m tests.bench.late [options] [CELL ...]

The ranks of a host begin each reduction --delay times S/B seconds late, for S bytes and NICs of B bytes/s of data. The
times are those after their arrival. Algorithms, over MPI, over TCP (`-tcp`) and in PyTorch's backend (`-torch`):

    usual    the usual schedule
    last     the schedule that takes the host last
    found    the schedule that ddl chooses after a comparison of the hosts
    on-time  the usual schedule, no host is late
    early    the schedule that takes the host last, but it is not late

Algorithms take turns in one job; times are medians of the slowest rank's; every sum is checked. The exit code is 1 if a
job fails or a sum is wrong. With --smoke, one run of each algorithm on a small array.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tests.bench.allreduce import JobFailed
from tests.bench.unequal import UnequalCell, cell_parser, make_plan, measure, parse_cells

RANKS = Path(__file__).parent / "programs" / "late_ranks.py"
ON_TIME = ("on-time", "early")
NAMES = (
    "usual-tcp", "last-tcp", "found-tcp", "on-time-tcp", "early-tcp", "usual", "last", "on-time", "early",
    "usual-torch", "found-torch",
)  # fmt: skip
HEADINGS = ("cell", "algorithm", "median s", "range", "time / (S/B)", "time / usual", "runs")
# The place of the late host.
LATE = 3


def equal_hosts(hosts: int, ranks: int, nic: int = 40) -> UnequalCell:
    """Return a cell of equal hosts with NICs of `nic` Mbit/s."""
    name = f"{ranks}x{hosts}" if nic == 40 else f"{ranks}x{hosts}-{nic}"
    return UnequalCell(name, (ranks,) * hosts, (nic,) * hosts, (hosts,))


CELLS = (
    equal_hosts(8, 1), equal_hosts(8, 2), equal_hosts(6, 1), equal_hosts(4, 2), equal_hosts(4, 1), equal_hosts(16, 1),
    equal_hosts(8, 1, 200),
)  # fmt: skip
SMOKE = (UnequalCell("smoke", (1,) * 4, (1000,) * 4, (4,), mib=1),)


def split(name: str) -> tuple[str, str]:
    """Return the kind of an algorithm, and the suffix that names its transport.

    >>> split("on-time-tcp"), split("found")
    (('on-time', '-tcp'), ('found', ''))
    """
    transport = next((end for end in ("-tcp", "-torch") if name.endswith(end)), "")
    return name.removesuffix(transport), transport


def least_seconds(cell: UnequalCell) -> float:
    """Return the seconds in which a NIC carries the array once."""
    return cell.mib * 2**20 / cell.links.nics[0]


def show(cell: UnequalCell, results: list[dict[str, Any]], delays: dict[str, float]) -> None:
    """Print a row per algorithm, beside the usual schedule over the same transport."""
    after = {}
    for result in results:
        name = result["algorithm"]
        after[name] = [seconds - delays[name] for seconds in result["seconds"]]
    for name, seconds in after.items():
        kind, transport = split(name)
        usual = after.get(("on-time" if kind in ON_TIME else "usual") + transport, [])
        median = statistics.median(seconds)
        words = [cell.name, name, f"{median:.3f}", f"{min(seconds):.3f}-{max(seconds):.3f}"]
        words += [f"{median / least_seconds(cell):.2f}", f"{median / statistics.median(usual):.3f}" if usual else ""]
        print(f"| {' | '.join([*words, str(len(seconds))])} |", flush=True)


def main() -> None:
    parser = cell_parser(__doc__, NAMES, CELLS)
    parser.set_defaults(rounds=5, mib=8)
    parser.add_argument("--delay", type=float, default=1, metavar="SHARE", help="the delay in units of S/B (1)")
    options, cells = parse_cells(parser, CELLS, SMOKE)
    failed = []
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    for cell in cells:
        delay = options.delay * least_seconds(cell)
        delays = {name: 0 if split(name)[0] in ON_TIME else delay for name in options.names}
        plan = make_plan(cell, options) | {"late": LATE, "delays": delays}
        try:
            results = list(measure(cell, options.major, RANKS, plan))
        except JobFailed as error:
            sys.stderr.write(f"{error}\n")
            failed.append(cell.name)
            continue
        show(cell, results, delays)
        failed += [cell.name for result in results if not result["right"]]
        if options.json is not None:
            with options.json.open("a") as file:
                file.writelines(json.dumps({"cell": cell.name, "delay": delays, **result}) + "\n" for result in results)
    if failed:
        sys.exit(f"failed or wrong: {', '.join(failed)}")


if __name__ == "__main__":
    main()
