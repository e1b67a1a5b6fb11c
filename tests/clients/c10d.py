"""Run PyTorch's own cases for its backend gloo with gloo and with the backend "ddl"; print the numbers side by side.

    python -m tests.clients.c10d [--ranks N] [--file FILE] [NAME...]

The exit code is 1 if a case passes with gloo alone, except those
that `EXPECTED` explains.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from tests.clients.run import PYTHON, install

ROOT = Path(__file__).parents[2]
# The reason with which PyTorch skips cases of groups of some ranks, and the ranks that these need.
SMALL, MORE_RANKS = "Skipped due to small world size.", "8"
# Cases that cannot pass, and the reason.
EXPECTED = {
    "test_ddp_logging_data_cpu": "it compares the name of the backend with gloo's",
}

# Why PyTorch skips cases, and words of its reasons, in order.
KINDS = {
    "need GPUs or NCCL": ("CUDA", "NCCL", "Nccl", "nccl"),
    "are switched off by PyTorch": ("https://github.com", "flakiness"),
}


def run(backend: str, arguments: list[str]) -> dict[str, dict[str, str]]:
    """Run the cases with a backend; return their results by name."""
    with tempfile.TemporaryDirectory() as folder:
        # The cases leave files in the folder for temporary ones.
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder}
        file = Path(folder, "results")
        argv = [str(PYTHON), "-m", "tests.clients.c10d_cases", backend, "--results", str(file), *arguments]
        subprocess.run(argv, cwd=ROOT, env=environ, stdout=sys.stderr, check=True)
        results = [json.loads(line) for line in file.read_text().splitlines()]
    return {result["case"]: result for result in results}


def run_all(backend: str, arguments: list[str]) -> dict[str, dict[str, str]]:
    """Run the cases with a backend, and those that need more ranks with 8."""
    results = run(backend, arguments)
    small = [case for case, result in results.items() if result["reason"] == SMALL]
    return results | (run(backend, [*arguments, "--ranks", MORE_RANKS, "--only", *small]) if small else {})


def add_case_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select cases."""
    parser.add_argument("--ranks", default="4", help="ranks of a case (4)")
    parser.add_argument("--file", type=Path, help="a file of cases, such as PyTorch's test_c10d_gloo.py")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="these cases alone")
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of the names of cases (all)")


def summary(gloo: dict[str, str], ddl: dict[str, str]) -> tuple[str, list[str]]:
    """Return the numbers of two backends, and the cases that pass with gloo alone for no known reason.

    >>> summary({"A.x": "passed", "A.y": "skipped"}, {"A.x": "failed", "A.y": "skipped"})
    ('gloo: 1 passed, 0 failed, 1 skipped\\nddl: 0 passed, 1 failed, 1 skipped', ['A.x'])
    """
    counts = {"gloo": Counter(gloo.values()), "ddl": Counter(ddl.values())}
    states = ("passed", "failed", "skipped")
    lines = [f"{name}: {', '.join(f'{count[state]} {state}' for state in states)}" for name, count in counts.items()]
    worse = [case for case, state in gloo.items() if state == "passed" and ddl.get(case) != "passed"]
    return "\n".join(lines), [case for case in worse if case.rpartition(".")[2] not in EXPECTED]


def skips(results: Collection[dict[str, str]]) -> str:
    """Return the reasons for which PyTorch skips cases: those of each kind, with the number of cases.

    >>> cases = [{"state": "skipped", "reason": reason} for reason in ("no torchvision", "CUDA is not available.")]
    >>> print(skips([*cases, cases[1], {"state": "passed", "reason": ""}]))
    2 need GPUs or NCCL:
      2  CUDA is not available.
    1 other:
      1  no torchvision
    """
    counts = Counter(result["reason"].strip() for result in results if result["state"] == "skipped")
    kinds: dict[str, dict[str, int]] = {}
    for reason, count in counts.most_common():
        kind = next((kind for kind, words in KINDS.items() if any(word in reason for word in words)), "other")
        kinds.setdefault(kind, {})[reason] = count
    lines = []
    for kind, reasons in kinds.items():
        lines += [f"{sum(reasons.values())} {kind}:", *(f"  {count}  {reason}" for reason, count in reasons.items())]
    return "\n".join(lines)


def main() -> None:
    """Run the cases with both backends."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.c10d", description="Compare ddl with gloo.")
    add_case_options(parser)
    parser.parse_intermixed_args()
    install(())
    results = {backend: run_all(backend, sys.argv[1:]) for backend in ("gloo", "ddl")}
    states = [{case: result["state"] for case, result in results[backend].items()} for backend in ("gloo", "ddl")]
    text, worse = summary(*states)
    print(text)
    print(skips(results["ddl"].values()))
    for case in worse:
        print(f"\n{case}: {results['ddl'].get(case, {}).get('reason', 'it was not run')}")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
