"""Run the fault tests and write what they saw into docs/explanation/faults.md: python -m tests.faults."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "faults.md"
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


def table(found: dict[str, dict[str, dict[str, object]]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| fault | exit code, 4.1 / 5.0 | nothing left after, 4.1 / 5.0 | what ddlrun says first (5.0) |",
        "|---|---|---|---|",
    ]
    for fault, seen in found.items():
        both = [seen.get(major, {}) for major in ("4", "5")]
        codes, seconds = (" / ".join(str(one.get(key, "-")) for one in both) for key in ("code", "seconds"))
        said = both[1].get("said") or both[0].get("said") or [""]
        shown = re.sub(r"/\S*/", ".../", str(said[0] if isinstance(said, list) else said)).replace("|", "\\|")
        lines.append(
            f"| {fault} | {codes} | {' / '.join(f'{part} s' for part in seconds.split(' / '))} | {shown[:110]} |"
        )
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    """Run the tests; the page changes only if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder, "rows")
        argv = [sys.executable, "-m", "pytest", "-q", "tests/test_hosts_faults.py"]
        code = subprocess.run(argv, env={**os.environ, "FAULT_TABLE": str(seen)}, check=False).returncode
        if code == 0:
            before, _, rest = PAGE.read_text().partition(BEGIN)
            after = rest.partition(END)[2]
            PAGE.write_text(before + BEGIN + "\n" + table(rows(seen.read_text().splitlines())) + "\n" + END + after)
    return code


if __name__ == "__main__":
    sys.exit(main())
