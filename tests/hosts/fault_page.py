"""Generator of docs/reference/faults.md from the results that tests compare with: python -m tests.hosts.fault_page."""

from pathlib import Path

from tests.hosts.fault_results import Result, read_results

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "faults.md"
HEAD = """# Faults and results

This page lists faults with the exit code and the first line that ddlrun prints, for users who search for a message.
[After a failure](../how-to/after-a-failure.md) says what to do next.

- Tests cause each fault in a job of four ranks on the hosts h1 to h4, and compare with this table. After each fault,
  no process and no temporary file of the job is left on any host.
- Lines are shown without times, process ids, ports and remedies.
- *own*: under [ddlrun's own process manager](../explanation/mpi.md#which-program-starts-the-ranks), without an
  MPI, with MPICH and with Intel MPI. There, *mpirun* is ddlrun's process manager, and a *daemon* is its agent.
- A cell is the exit code and the first line. An empty one is the same as under Open MPI; "-" means that there is no
  such fault.

| Open MPI | own | faults |
|---|---|---|
"""


def render_page() -> str:
    """Return the page."""
    faults: dict[str, list[str]] = {}
    for fault, row in read_results().items():
        faults.setdefault(render_results(row), []).append(fault)
    return HEAD + "".join(f"{results}{'<br>'.join(names)}|\n" for results, names in faults.items())


def render_results(row: dict[str, Result]) -> str:
    """Return the first two cells of a line of the table."""
    openmpi, own = (render_result(row.get(manager)) for manager in ("openmpi", "own"))
    return f"|{openmpi}|{'' if own == openmpi else own}|"


def render_result(result: Result | None) -> str:
    """Return an exit code and a line as a cell."""
    if result is None:
        return "-"
    code = "not 0" if result.code is None else str(result.code)
    return f"{code}: {result.line}".replace("|", "\\|") if result.line else code


if __name__ == "__main__":
    PAGE.write_text(render_page())
