"""Run the fault tests and write what they saw into docs/explanation/faults.md: python -m tests.hosts.faults.

Arguments are pytest's: with `-k how` the other rows of the table stay as they are.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "faults.md"
BEGIN, END = "<!-- table -->\n", "<!-- end -->\n"


def rows(lines: list[str]) -> dict[str, dict[str, dict[str, object]]]:
    """Return fault -> major -> what was seen."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for row in map(json.loads, lines):
        match = re.fullmatch(r"test_(\w+)\[openmpi(\d)-?(.*)\]", row["test"])
        if match:
            detail = match[3].split("-")[0]
            found.setdefault(f"{match[1].replace('_', ' ')}{': ' * bool(detail)}{detail}", {})[match[2]] = row
    return found


HEAD = (
    "| fault | exit code, 4.1 / 5.0 | nothing left after, 4.1 / 5.0 | what ddlrun says first (5.0) |",
    "|---|---|---|---|",
)


def table(found: dict[str, dict[str, dict[str, object]]], before: list[str]) -> str:
    """Return the rows as a Markdown table; those that it had before stay where there is nothing new."""
    lines = {line.split(" | ")[0]: line for line in before}
    for fault, seen in found.items():
        both = [seen.get(major, {}) for major in ("4", "5")]
        codes, seconds = (" / ".join(str(one.get(key, "-")) for one in both) for key in ("code", "seconds"))
        said = both[1].get("said") or both[0].get("said") or [""]
        shown = re.sub(r"/\S*/", ".../", str(said[0] if isinstance(said, list) else said)).replace("|", "\\|")
        times = " / ".join(f"{part} s" for part in seconds.split(" / "))
        lines[f"| {fault}"] = f"| {fault} | {codes} | {times} | {shown[:110]} |"
    return "".join(f"{line}\n" for line in (*HEAD, *lines.values()))


def main() -> int:
    """Run the tests; the page changes only if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder, "rows")
        argv = [sys.executable, "-m", "pytest", "-q", "tests/hosts/test_faults.py", *sys.argv[1:]]
        code = subprocess.run(argv, env={**os.environ, "FAULT_TABLE": str(seen)}, check=False).returncode
        if code == 0:
            before, _, rest = PAGE.read_text().partition(BEGIN)
            old, _, after = rest.partition(END)
            kept = [line for line in old.splitlines()[2:] if line.startswith("| ") and line not in HEAD]
            shown = table(rows(seen.read_text().splitlines()), kept if sys.argv[1:] else [])
            PAGE.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}")
    return code


if __name__ == "__main__":
    sys.exit(main())
