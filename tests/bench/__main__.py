"""What ddlrun costs, beside what it is compared with: `make bench`. Prints tables and judges nothing."""

import contextlib
import json
import operator
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.bench.measure import ROUNDS, Failed, Row, Sample, Series, interleaved, run, show, wall
from tests.cluster.cluster import Cluster, why_not

BESIDE = Path(sys.executable).parent
DDLRUN = [str(BESIDE / "ddlrun")] if (BESIDE / "ddlrun").exists() else [sys.executable, "-m", "ddlrun"]
MPIRUNS = (os.environ.get("MPIRUN4", "/usr/bin/mpirun"), os.environ.get("MPIRUN5", str(BESIDE / "mpirun")))
NO_OP = ["--accelerators", "core", "/bin/true"]
PASS = [sys.executable, "-c", "pass"]
INIT = [sys.executable, "-c", "from mpi4py import MPI"]
LARGE = ("8x1024x16", "n[00001-16384]")
HUGE = ("8x8192x16", "n[000001-131072]")
MILLION = ["--topology", "8x1250x100", "--network", "nvlink4,8x400gbe,2:1", "--compute", "100ms"]

# An mpirun that writes down when it was started, then becomes the real one. Asked for its version it writes nothing.
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


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ddlrun-bench-") as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = name  # where run folders go
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed ddlrun has its bytecode
        found = {path: version(path) for path in MPIRUNS}
        versions = ", ".join(f"{path} {said or 'not installed'}" for path, said in found.items())
        cpu = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        print(f"{cpu}; Python {platform.python_version()}; Open MPI: {versions}; {ROUNDS} rounds in turn, one warm-up")
        for number, (mpirun, said) in enumerate(found.items()):
            if said:
                launch(mpirun, f"Open MPI {said}", folder / str(number))
        imports()
        commands()
        rank_files()
        launchers({path: said for path, said in found.items() if said})
        probing()


def version(mpirun: str) -> str | None:
    """Return what the mpirun says that it is; None: there is none."""
    with contextlib.suppress(Failed, OSError):
        match = re.search(r"\(Open MPI\) (\S+)", run([mpirun, "--version"]).stdout)
        return match[1] if match else None
    return None


def launch(mpirun: str, title: str, folder: Path) -> None:
    """Show what a launch costs over mpirun's own line, and what its choice of components saves."""
    line, env = bare(mpirun, folder / "no-op", NO_OP)
    ours = [*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", mpirun]
    found = interleaved({"ddlrun": wall([*ours, *NO_OP]), "bare": wall(line, env)})
    added = found["ddlrun"].against(found["bare"], operator.sub)
    rows = [
        Row("mpirun, the line that ddlrun prints", found["bare"]),
        Row("ddlrun launch", found["ddlrun"], base=found["bare"]),
        Row("added by ddlrun, pair by pair", added, goal=100),
        *before_mpirun(mpirun, folder),
    ]
    show(f"{title}: launch of /bin/true, 2 ranks", rows)

    line, env = bare(mpirun, folder / "init", ["-np", "2", *INIT])
    plain = {key: value for key, value in env.items() if key not in ("OMPI_MCA_pml", "OMPI_MCA_btl")}
    found = interleaved(
        {"bare": wall(line, plain), "chosen": wall(line, env), "ddlrun": wall([*ours, "-np", "2", *INIT])}
    )
    rows = [
        Row("mpirun, components left to it", found["bare"]),
        Row("mpirun, ddlrun's choice of components", found["chosen"], base=found["bare"]),
        Row("ddlrun launch", found["ddlrun"], base=found["bare"]),
    ]
    show(f"{title}: 'from mpi4py import MPI', 2 ranks", rows)


def bare(mpirun: str, folder: Path, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the line that ddlrun would run and its environment."""
    run([*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", mpirun, "--run-dir", str(folder), "--dry-run", *words])
    plan = json.loads((folder / "plan.json").read_text())
    return plan["command"], {**os.environ, **plan["variables"]}


def before_mpirun(mpirun: str, folder: Path) -> Iterator[Row]:
    """Measure the time until mpirun starts: an mpirun in its place writes down when that was."""
    stamp = folder / "stamp"
    try:
        stamped = stamped_mpirun(mpirun, folder / "prefix", stamp)
    except (Failed, OSError) as error:
        yield Row("until mpirun starts", Series((), f"no C compiler: {error}"), goal=60)
        return
    ours = [*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", stamped, *NO_OP]

    def until() -> float:
        start = time.monotonic_ns()
        run(ours)
        return (int(stamp.read_text()) - start) / 1e6

    asked = {"direct": wall([mpirun, "--version"]), "stamped": wall([stamped, "--version"])}
    found = interleaved({"until": until, **asked})
    yield Row("until mpirun starts", found["until"], goal=60)
    yield Row("of this, mpirun --version (run alone)", found["direct"])
    yield Row("of this, measuring (on mpirun --version)", found["stamped"].against(found["direct"], operator.sub))


def stamped_mpirun(mpirun: str, prefix: Path, stamp: Path) -> str:
    """Compile an mpirun of the same prefix that writes down when it was started."""
    real = Path(mpirun).resolve().parent.parent
    (prefix / "bin").mkdir(parents=True)
    for name in ("etc", "lib", "lib64"):
        if (real / name).is_dir():
            (prefix / name).symlink_to(real / name)
    source, binary = prefix / "mpirun.c", prefix / "bin" / "mpirun"
    source.write_text(STAMPED)
    run(["cc", "-O2", "-static", f'-DREAL="{mpirun}"', f'-DSTAMP="{stamp}"', "-o", str(binary), str(source)])
    return str(binary)


def imports() -> None:
    """List the imports of a dry run that take longest by themselves."""
    line = [sys.executable, "-X", "importtime", "-m", "ddlrun", "launch", "--dry-run", *NO_OP]
    found = re.findall(r"import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)", run(line).stderr)
    print("\nlaunch --dry-run: the 10 imports that take longest by themselves (ms alone, ms with theirs)")
    for alone, together, name in sorted(found, key=lambda row: -int(row[0]))[:10]:
        print(f"  {int(alone) / 1000:6.1f} {int(together) / 1000:6.1f}  {name}")
    print(f"  {sum(int(row[0]) for row in found) / 1000:6.1f}         all {len(found)}, Python's own included")


def commands() -> None:
    """Show what small commands cost beside importing their command line library."""
    lines = {
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "ddlrun --help": [*DDLRUN, "--help"],
        "ddlrun gen-rankfile 4x2x3 sys-[89074-89079]": [*DDLRUN, "gen-rankfile", "4x2x3", "sys-[89074-89079]"],
    }
    found = interleaved({name: wall(line) for name, line in {**lines, "plan": [*DDLRUN, "plan", *MILLION]}.items()})
    plan = found.pop("plan")
    click, _, rank_file = found.values()
    ratio = rank_file.against(click, operator.truediv)
    rows = [Row(name, series, base=click) for name, series in found.items()]
    rows.append(Row("ddlrun plan of 1,000,000 learners", plan, goal=1000))
    show("small commands", [*rows, Row("gen-rankfile to import click", ratio, unit="x", goal=3)])


def rank_files() -> None:
    """Show what large rank files cost: rendering alone, the memory of it, the whole command."""
    rows: list[Row] = []
    for (topology, hosts), ms, mib in ((LARGE, 100, 64), (HUGE, 1000, None)):
        peaks: list[float] = []
        found = interleaved({"render": rendering(topology, hosts, peaks)})
        peak = Series(tuple(peaks[1:]), found["render"].why_not)
        rows.append(Row(f"{topology}: rendering alone", found["render"], goal=ms))
        rows.append(Row(f"{topology}: peak memory (ru_maxrss of a process for this alone)", peak, "MiB", mib))
    lines = {"large": [*DDLRUN, "gen-rankfile", *LARGE], "one": [*DDLRUN, "gen-rankfile", "8", "n1"]}
    found = interleaved({name: wall(line) for name, line in lines.items()})
    rows += [
        Row("gen-rankfile of one host, whole command", found["one"]),
        Row(f"gen-rankfile of {LARGE[0]}, whole command", found["large"], base=found["one"]),
        Row("beyond that of one host", found["large"].against(found["one"], operator.sub)),
    ]
    show("large rank files: 131,072 ranks on 16,384 hosts, 1,048,576 on 131,072", rows)


def rendering(topology: str, hosts: str, peaks: list[float]) -> Sample:
    """Return a sampler of rendering, which also keeps the peak memory."""

    def sample() -> float:
        said = json.loads(run([sys.executable, "-m", "tests.bench.scale", topology, hosts]).stdout)
        peaks.append(said["peak_mib"])
        return float(said["seconds"]) * 1000

    return sample


def launchers(mpiruns: Mapping[str, str]) -> None:
    """Show the same no-op under several launchers."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    samplers: dict[str, Sample] = {}
    for mpirun, said in mpiruns.items():
        samplers[f"mpirun -np 2, Open MPI {said}"] = wall([mpirun, *root, "-np", "2", *PASS])
        samplers[f"ddlrun launch -np 2, Open MPI {said}"] = wall(
            [*DDLRUN, "launch", "--allow-run-as-root", "--mpirun", mpirun, "-np", "2", *PASS]
        )
    samplers["torchrun --nproc-per-node 2"] = tool("torchrun", "--nproc-per-node", "2", "--no-python", *PASS)
    samplers["horovodrun -np 2"] = tool("horovodrun", "-np", "2", *PASS)
    found = interleaved(samplers)
    first = next(iter(found.values()))
    show("python -c pass, 2 ranks, by launcher", [Row(name, series, base=first) for name, series in found.items()])


def probing() -> None:
    """Show what asking 64 hosts costs over real ssh, all of them on this machine's cores."""
    if why_not():
        print(f"\nprobing: {why_not()}")
        return
    with Cluster(hosts_per_rack=16, racks=4) as cluster:
        probe = [*DDLRUN, "probe", "--refresh"]
        slowest = wall(cluster.argv("h1", [*probe, "h2"]))
        ours = wall(cluster.argv("h1", [*probe, "h[1-64]"]))
        kept = wall(cluster.argv("h1", [*DDLRUN, "probe", "h[1-64]"]))
        found = interleaved({"one": slowest, "all": ours, "kept": kept}, rounds=3)
        cluster.cut("h64")
        late = interleaved({"cut": _failing(cluster.argv("h1", [*probe, "--timeout", "5", "h[1-64]"]))}, rounds=1)[
            "cut"
        ]
    rows = [
        Row("one host", found["one"]),
        Row("64 hosts", found["all"], goal=5000),
        Row("64 hosts, as kept for an hour", found["kept"], goal=5000),
        Row("64 hosts, one cut off, --timeout 5", late, goal=7000),
    ]
    show("ddlrun probe: 64 hosts with an sshd each, all on this machine", rows)


def _failing(argv: list[str]) -> Sample:
    """Return a sampler of a command that ends with 3, as one of its hosts does not answer."""

    def sample() -> float:
        start = time.perf_counter()
        code = subprocess.run(argv, capture_output=True, check=False).returncode
        if code != 3:
            raise Failed(f"ended with {code}")
        return (time.perf_counter() - start) * 1000

    return sample


def tool(name: str, *words: str) -> Sample:
    """Return a sampler of another launcher, with the system's mpirun first on PATH; one that fails if there is none."""
    path = shutil.which(name, path=f"{BESIDE}:{os.environ.get('PATH', os.defpath)}")
    if path is None:
        return _missing
    return wall(
        [path, *words], {**os.environ, "PATH": f"{Path(MPIRUNS[0]).parent}:{os.environ.get('PATH', os.defpath)}"}
    )


def _missing() -> float:
    raise Failed("not installed")


if __name__ == "__main__":
    main()
