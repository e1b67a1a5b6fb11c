"""Benchmark of ddlrun launch beside the mpirun command that it prints."""

import json
import operator
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measure import DDLRUN, Failed, NotInstalled, Row, Series, interleaved, run, show, wall

NO_OP = ["--ranks-per-host", "core", "/bin/true"]
INIT = [sys.executable, "-c", "from mpi4py import MPI"]

# An mpirun that writes down its time of start, unless only its version is queried, and then becomes the real one.
STAMPED = """
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc > 1 && strcmp(argv[1], "--version")) {
        FILE *file = fopen(STAMP, "w");
        fprintf(file, "%lld", now.tv_sec * 1000000000LL + now.tv_nsec);
        fclose(file);
    }
    argv[0] = REAL;
    execv(REAL, argv);
    return 127;
}
"""


def launch(mpirun: str, title: str, folder: Path, rounds: int) -> list[str]:
    """Show the time that ddlrun adds, and that its choice of components saves; return the rows that failed."""
    return [*_added(mpirun, title, folder, rounds), *_components(mpirun, title, folder, rounds)]


def _added(mpirun: str, title: str, folder: Path, rounds: int) -> list[str]:
    line, env = bare(mpirun, folder / "no-op", NO_OP)
    ours = [*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", mpirun]
    series = interleaved({"ddlrun": wall([*ours, *NO_OP]), "bare": wall(line, env)}, rounds)
    added = series["ddlrun"].against(series["bare"], operator.sub)
    rows = [
        Row("mpirun, with the command that ddlrun prints", series["bare"]),
        Row("ddlrun launch", series["ddlrun"], base=series["bare"]),
        Row("added by ddlrun, pair by pair", added, goal=90),
        *before_mpirun(mpirun, folder, rounds),
    ]
    return show(f"{title}: launch of /bin/true, 2 ranks", rows)


def _components(mpirun: str, title: str, folder: Path, rounds: int) -> list[str]:
    ours = [*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", mpirun]
    line, env = bare(mpirun, folder / "init", ["-np", "2", *INIT])
    plain = {key: value for key, value in env.items() if key not in ("OMPI_MCA_pml", "OMPI_MCA_btl")}
    samplers = {"bare": wall(line, plain), "chosen": wall(line, env), "ddlrun": wall([*ours, "-np", "2", *INIT])}
    series = interleaved(samplers, rounds)
    rows = [
        Row("mpirun, its own choice of components", series["bare"]),
        Row("mpirun, ddlrun's choice of components", series["chosen"], base=series["bare"]),
        Row("ddlrun launch", series["ddlrun"], base=series["bare"]),
    ]
    return show(f"{title}: 'from mpi4py import MPI', 2 ranks", rows)


def bare(mpirun: str, folder: Path, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that ddlrun would run, and its environment."""
    run([*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", mpirun, "--run-dir", str(folder), "--dry-run", *words])
    plan = json.loads((folder / "plan.json").read_text())
    return plan["command"], {**os.environ, **plan["variables"]}


def before_mpirun(mpirun: str, folder: Path, rounds: int) -> Iterator[Row]:
    """Yield the time until mpirun starts, as written down by an mpirun in its place."""
    stamp = folder / "stamp"
    try:
        stamped = stamped_mpirun(mpirun, folder / "prefix", stamp)
    except Failed as error:
        yield Row("until mpirun starts", Series((), error), goal=60)
        return
    ours = [*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", stamped, *NO_OP]

    def until() -> float:
        start = time.monotonic_ns()
        run(ours)
        return (int(stamp.read_text()) - start) / 1e6

    queries = {"direct": wall([mpirun, "--version"]), "stamped": wall([stamped, "--version"])}
    series = interleaved({"until": until, **queries}, rounds)
    yield Row("until mpirun starts", series["until"], goal=60)
    yield Row("of this, mpirun --version (run alone)", series["direct"])
    yield Row("of this, measuring (on mpirun --version)", series["stamped"].against(series["direct"], operator.sub))


def stamped_mpirun(mpirun: str, prefix: Path, stamp: Path) -> str:
    """Compile an mpirun, with the prefix of the real one, that writes down its time of start; return its path."""
    if shutil.which("cc") is None:
        raise NotInstalled("no C compiler")
    real = Path(mpirun).resolve().parent.parent
    (prefix / "bin").mkdir(parents=True)
    for name in ("etc", "lib", "lib64"):
        if (real / name).is_dir():
            (prefix / name).symlink_to(real / name)
    source, binary = prefix / "mpirun.c", prefix / "bin" / "mpirun"
    source.write_text(STAMPED)
    run(["cc", "-O2", "-static", f'-DREAL="{mpirun}"', f'-DSTAMP="{stamp}"', "-o", str(binary), str(source)])
    return str(binary)
