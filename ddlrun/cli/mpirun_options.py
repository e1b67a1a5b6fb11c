"""Options of Open MPI's mpirun: translated, or rejected with a remedy. Each is written with - or --."""

import re
from collections.abc import Callable

from ddlrun.errors import InputError

Words = tuple[str, ...]
PLACEMENT = "ddlrun plans the placement; use --topology, --bind, --rankfile, and see ddlrun show placement"
SHOW = "ddlrun show placement, hosts or machines shows that; leave the option out"
FOLDER = "ranks start in the current folder; cd there first"
DEBUGGER = "use --debug-rank N for a rank under a debugger"
# Options that ddlrun has, too, which mpirun and mpiexec accept with one dash.
SHARED = (
    "--host", "--hosts", "--hostfile", "--rankfile", "--output-filename", "--tag-output", "--timestamp-output",
    "--allow-run-as-root", "--timeout", "--quiet", "--verbose", "--launcher", "--membind",
)  # fmt: skip
# Option -> option of ddlrun with the same value.
RENAMED = {
    "--n": "-np", "--np": "-np", "--machinefile": "--hostfile", "--default-hostfile": "--hostfile",
    "--npernode": "--accelerators", "--cpus-per-proc": "--cores-per-rank", "--cpus-per-rank": "--cores-per-rank",
    "--rf": "--rankfile",
}  # fmt: skip
# Switch -> words for ddlrun; none where ddlrun does the same without an option.
SWITCHES: dict[str, Words] = {
    **dict.fromkeys(
        ("--noprefix", "--nooversubscribe", "--disable-recovery", "--show-progress", "--do-not-resolve"), ()),
    "--oversubscribe": ("--overload",), "-q": ("--quiet",),
    "--prefix-timestamp": ("--timestamp-output",), "--pernode": ("--accelerators", "1"),
    "--bind-to-core": ("--bind", "core"), "--bind-to-socket": ("--bind", "package"),
    "--bynode": ("--rank-order", "ddl"), "--byslot": ("--rank-order", "host"), "--do-not-launch": ("--dry-run",),
}  # fmt: skip
# Option without an equivalent -> reason and remedy.
UNSUPPORTED = {
    **dict.fromkeys(("--binding-args", "--cpu-set", "--cpu-list", "--bycore", "--cartofile"), PLACEMENT),
    **dict.fromkeys(
        ("--report-bindings", "--display", "--display-map", "--display-devel-map", "--display-diffable-map",
         "--display-allocation", "--display-devel-allocation", "--display-topo"), SHOW),
    **dict.fromkeys(("--wdir", "--wd", "--set-cwd-to-session-dir"), FOLDER),
    **dict.fromkeys(("--debugger", "--tv"), DEBUGGER),
    **dict.fromkeys(("--preload-files", "--preload-binary", "-s"), "use --ship FOLDER, which copies it to all hosts"),
    **dict.fromkeys(("--get-stack-traces", "--report-state-on-timeout"), "use --stall-timeout TIME, or ddlrun doctor"),
    **dict.fromkeys(
        ("--tune", "-am", "-cf", "--personality", "--report-pid", "--report-uri", "--report-events",
         "--debug-daemons", "--debug-daemons-file",
         "--debug-devel", "-d", "--leave-session-attached", "--dvm", "--hnp", "--novm", "--ompi-server",
         "--launch-agent", "--enable-recovery", "--continuous", "--max-vm-size", "--fwd-mpirun-port", "--xml",
         "--xml-file", "--index-argv-by-rank", "--output-proctable", "--report-child-jobs-separately",
         "--enable-instant-on-support", "--use-regexp", "--runtime-options", "--with-ft", "--stream-buffering"),
        "an option of mpirun alone: pass it on in --mpi-args"),
    "--prefix": "use --mpirun DIR/bin/mpirun for another Open MPI; ddlrun tells its daemons where it is",
    "--path": "set PATH, which all ranks get",
    "--merge-stderr-to-stdout": "redirect the output: ddlrun launch ... 2>&1",
    "--app": "separate the programs with a colon: -np 2 A : -np 3 B",
    "--use-hwthread-cpus": "use --threads-per-core N, for hardware threads of a rank's cores",
    "--xterm": "use --debug-rank N or --pty for a rank at this terminal",
    "--version": "ddlrun --version prints the version",
    "-V": "ddlrun --version prints the version",
    "--debug": "use --verbose for all reasons and the command, and ddlrun show for parts of a plan",
    "-c": "use -np N for the number of ranks (mpirun), or --cores-per-rank N for their cores (srun)",
    "-N": "use --accelerators N for ranks per host, or -H HOST,HOST for hosts",
}  # fmt: skip
BINDINGS = {
    "none": "none", "core": "core", "hwthread": "core", "numa": "numa", "socket": "package", "package": "package",
}  # fmt: skip
# Policies and modifiers of --map-by -> words for ddlrun.
POLICIES: dict[str, Words] = {**dict.fromkeys(("", "slot", "core"), ()), "node": ("--rank-order", "ddl")}
MODIFIERS: dict[str, Words] = {
    "": (), "nooversubscribe": (), "oversubscribe": ("--overload",), "overload-allowed": ("--overload",),
}  # fmt: skip
RANKINGS = {"slot": "host", "node": "ddl"}


def translate_bind(name: str, value: str) -> Words:
    """Translate --bind-to. Raises InputError."""
    policy, _, modifiers = value.partition(":")
    if policy not in BINDINGS:
        raise InputError(f"{name} {value}: unknown binding; write one of {', '.join(BINDINGS)}, or use --rankfile")
    return "--bind", BINDINGS[policy], *(["--overload"] if "overload-allowed" in modifiers else [])


def translate_mapping(name: str, value: str) -> Words:
    """Translate --map-by where it names ranks per host or package, the order of ranks, their cores, or a rank file.

    Raises InputError for other policies and modifiers.
    """
    per_unit = re.match(r"ppr:([1-9][0-9]*):(node|socket|package)(?![^:])", value)
    policy, _, modifiers = value[0 if per_unit is None else per_unit.end() :].partition(":")
    if policy == "rankfile" and modifiers.startswith("file="):
        return "--rankfile", modifiers.removeprefix("file=")
    words = POLICIES.get(policy)
    if per_unit is not None:
        is_host = per_unit[2] == "node"
        words = ("--accelerators", per_unit[1]) if is_host else per_package(name, per_unit[1], value)
    for modifier in re.split("[:,]", modifiers.lower()):
        cores = re.fullmatch(r"pe=([1-9][0-9]*)", modifier)
        more = MODIFIERS.get(modifier) if cores is None else ("--cores-per-rank", cores[1])
        words = None if words is None or more is None else (*words, *more)
    if words is None:
        raise InputError(f"{name} {value}: {PLACEMENT}")
    return words


def per_package(name: str, value: str, typed: str = "") -> Words:
    """Translate a number of ranks per package. Raises InputError for any number but 1."""
    if value != "1":
        raise InputError(f"{name} {typed or value}: write the number of ranks per host: --accelerators N")
    return "--accelerators", "package"


def translate_ranking(name: str, value: str) -> Words:
    """Translate --rank-by. Raises InputError."""
    if value not in RANKINGS:
        raise InputError(f"{name} {value}: {PLACEMENT}")
    return "--rank-order", RANKINGS[value]


def translate_stdin(name: str, value: str) -> Words:
    """Translate the rank that gets standard input. Raises InputError for several."""
    if not value.isdecimal():
        raise InputError(
            f"{name} {value}: only one rank can read standard input: --stdin-rank N; for none, redirect it: </dev/null"
        )
    return "--stdin-rank", value


# Option -> function from its name and value to words for ddlrun.
VALUES: dict[str, Callable[[str, str], Words]] = {
    "--bind-to": translate_bind, "--map-by": translate_mapping, "--rank-by": translate_ranking,
    "--npersocket": per_package, "--stdin": translate_stdin,
    "--ppr": lambda name, value: translate_mapping(name, f"ppr:{value}"),
}  # fmt: skip
