"""The table of suites in a page: rows are replaced, results that are not new stay."""

from collections.abc import Mapping, Sequence

from tests.clients.suites import COLUMNS, SUITES

BEGIN, END = "<!-- suites -->\n", "<!-- end of suites -->\n"
TITLES = ("suite", "version", *COLUMNS)
# A result that is missing, and one that a suite cannot have.
NOT_RUN, NOWHERE = "not run", "-"


def replace_rows(page: str, rows: Mapping[str, Sequence[str]]) -> str:
    """Return the page with new rows: a version and the results per suite.

    A suite that was not run keeps the old result of the same version.
    """
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    known: dict[str, Sequence[str]] = {**parse_rows(page)}
    for name, row in rows.items():
        known[name] = _merge(known.get(name, row), row)
    lines = [
        _render(TITLES),
        f"|{'---|' * len(TITLES)}",
        *(_render([name, *known[name]]) for name in SUITES if name in known),
    ]
    return "\n".join((f"{before}{BEGIN}", *lines, "", f"{END}{after}"))


def _render(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def parse_rows(page: str) -> dict[str, list[str]]:
    """Return the version and the results of each suite in a page."""
    table = page.partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in rows[1:]}


def _merge(old: Sequence[str], new: Sequence[str]) -> Sequence[str]:
    """Return a new row, with the old results of the same version where it has none."""
    if old[0] != new[0]:
        return new
    return [before if result == NOT_RUN else result for before, result in zip(old, new, strict=True)]
