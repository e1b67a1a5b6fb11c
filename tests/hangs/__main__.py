"""Run hangs and healthy jobs, write the results, and the page: python -m tests.hangs [--jobs N] [--again] [PATTERN...].

Each is a job of its own. A run whose result is there is not repeated, unless --again is given or ddlrun has changed.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from functools import partial

from tests.hangs.catalogue import HEALTHY, list_runs
from tests.hangs.page import PAGE, render_page
from tests.hangs.results import current_commit, read_results, write_result
from tests.hangs.runs import STALL_SECONDS, run_hang, run_healthy


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.hangs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="the number of jobs at once")
    parser.add_argument("--again", action="store_true", help="also repeat runs that have a result")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", default=["*"], help="the runs, such as locks.*.0")
    options = parser.parse_args()
    commit, results = current_commit(), read_results()
    runs = {run.name: partial(run_hang, run) for run in list_runs()}
    runs |= {f"healthy.{name}": partial(run_healthy, name) for name in HEALTHY}
    chosen = {name: run for name, run in runs.items() if any(fnmatch(name, pattern) for pattern in options.patterns)}
    with ThreadPoolExecutor(options.jobs) as pool:
        started = {
            pool.submit(run): name
            for name, run in chosen.items()
            if options.again or results.get(name, {}).get("commit") != commit
        }
        try:
            for done in as_completed(started):
                name, row = started[done], done.result()
                write_result(name, row | {"commit": commit})
                print(name, *row.values(), flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    PAGE.write_text(render_page(read_results(), STALL_SECONDS))


if __name__ == "__main__":
    main()
