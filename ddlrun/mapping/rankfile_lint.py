"""Any rank file -> everything that Open MPI 4.1 or 5.0 would not do as it says, and the file mended.

What each major does was measured with 4.1.4 and 5.0.11; tests/mpi/test_rankfile_lint.py asks both again.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from ddlrun.machine import Core, Machine
from ddlrun.mapping.placement import LocalRankPlacement
from ddlrun.mapping.rankfile import BETWEEN, MOST_CHARACTERS, name_problem, slot_text

MachineOf = Callable[[str], Machine | None]

_LINE = r"\s*rank\s+(\d+)\s*=\s*([^\s=#]+)\s+slots?\s*=\s*([^\s#]*)([^#]*?)\s*(#.*)?"
_NO_SLOT = r"\s*rank\s+\d+\s*=\s*[^\s=#]+\s*(#.*)?"
_NOTHING = r"\s*((#|//).*)?"
_SPAN = r"\d{1,5}(?:-\d{1,5})?"
_TERM = rf"[sS]?(?P<package>\d{{1,4}}):c?(?P<inside>\*|{_SPAN})|(?P<flat>{_SPAN})|[sS](?P<whole>\d{{1,4}})"
# 5.0 keeps so many characters of a slot text.
_MOST_SLOT = 64
_SYNTAX = "stops with a syntax error"
_MISSING = '"A rank is missing its location specification"'


class LintFinding(NamedTuple):
    """One thing that a rank file says otherwise than it is read: where, what each major really does, the remedy.

    `line` and `column` count from 1, None: the file as a whole. What is no `error` is a warning.
    """

    line: int | None
    column: int | None
    error: bool
    what: str
    open_mpi_4: str
    open_mpi_5: str
    remedy: str

    @property
    def place(self) -> str:
        """Where it stands, to be read after a file's name: `:LINE:COLUMN`, as far as there is one."""
        return "".join(f":{number}" for number in (self.line, self.column) if number is not None)

    def matters(self, major: int | None) -> bool:
        """Tell whether Open MPI `major` (None: either) reads it otherwise than it is meant."""
        told = {4: self.open_mpi_4, 5: self.open_mpi_5}.get(major or 0, "")
        return not told.startswith("reads it")

    def really(self, major: int | None) -> str:
        """Say what Open MPI `major` does (None: each of both)."""
        told = {4: self.open_mpi_4, 5: self.open_mpi_5}
        if major in told:
            return f"Open MPI {told[major]}"
        same = self.open_mpi_4 == self.open_mpi_5
        return f"Open MPI {self.open_mpi_4}" if same else f"4.1 {self.open_mpi_4}, 5.0 {self.open_mpi_5}"


class CoreRange(NamedTuple):
    """Cores of a slot text: `low` to `high` inside a package, or over the host; no bounds: the whole package."""

    package: int | None
    low: int | None
    high: int | None


class RankEntry(NamedTuple):
    """A line that gives a rank its place; `parts` is None where its slot text cannot be read."""

    line: int
    rank: int
    host: str
    slot: str
    column: int
    parts: tuple[CoreRange, ...] | None
    comment: str


def lint(
    text: str,
    machine_of: MachineOf = lambda _: None,
    ranks: int | None = None,
    hosts: Collection[str] | None = None,
) -> tuple[LintFinding, ...]:
    """Return every finding, by line.

    `machine_of` gives a host's machine, None: only what the text alone shows. `ranks` is the number of
    processes that the file is to be launched with, `hosts` who may stand there.
    """
    entries, findings = _read(text)
    findings += [finding for entry in entries for finding in _entry(entry, machine_of(entry.host), hosts)]
    findings += _ranks(entries, ranks)
    findings += _shared(entries, machine_of)
    findings += _shape(entries)
    return tuple(sorted(findings, key=lambda one: (one.line is None, one.line or 0, one.column or 0)))


def fix(text: str, machine_of: MachineOf = lambda _: None) -> tuple[str, tuple[LintFinding, ...]]:
    """Return the file written so that both majors read it alike, and what only a person can mend.

    Comments stay; rank 0 comes first. Lines that cannot be read stay as they are.
    """
    entries, _ = _read(text)
    lines_of_entries = {entry.line for entry in entries}
    in_order = iter(sorted(entries, key=lambda entry: entry.rank != 0))
    lines = [
        _written(next(in_order), machine_of) if number in lines_of_entries else line.rstrip("\r")
        for number, line in enumerate(text.split("\n"), 1)
    ]
    fixed = "\n".join(lines).rstrip("\n") + "\n"
    return fixed, lint(fixed, machine_of)


def hosts_of(text: str) -> tuple[str, ...]:
    """Return the hosts that a file names, in the order of their first ranks."""
    entries = sorted(_read(text)[0], key=lambda entry: entry.rank)
    return tuple(dict.fromkeys(entry.host for entry in entries))


def places(text: str, machine_of: Callable[[str], Machine]) -> dict[int, tuple[str, tuple[Core, ...]]]:
    """Return each rank's host and cores, of a file that `lint` finds no error in."""
    entries, _ = _read(text)
    return {entry.rank: (entry.host, tuple(_cores(entry.parts or (), machine_of(entry.host)))) for entry in entries}


def _read(text: str) -> tuple[list[RankEntry], list[LintFinding]]:
    entries: list[RankEntry] = []
    findings: list[LintFinding] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        last = number == len(lines)
        if line.endswith("\r"):
            findings.append(_both(number, len(line), "the line ends in CR LF", _SYNTAX, "write LF alone"))
        if re.fullmatch(_NOTHING, line.rstrip("\r")):
            if last and line.strip():
                findings.append(
                    _both(number, None, "a comment ends the file without a newline", _SYNTAX, "end it with one")
                )
            continue
        if re.fullmatch(_NO_SLOT, line.rstrip("\r")):
            what, five = f"{_shown(line.strip())} says no cores", "binds the rank to none, without a word"
            findings.append(LintFinding(number, 1, True, what, 'stops ("Sorry! ...")', five, "say which: slot=0:0-4"))
            continue
        match = re.fullmatch(_LINE, line.rstrip("\r"))
        if not match or len(match[1]) > 9 or not (match[3] + match[4]).replace("\t", " ").isprintable():
            what = f"{_shown(line)} is no line of a rank file"
            findings.append(_both(number, 1, what, _SYNTAX, "write: rank N=HOST slot=PACKAGE:CORES"))
            continue
        entry, more = _parse(number, match)
        entries.append(entry)
        findings += more
        if last and match[5]:
            findings.append(
                _both(number, None, "a comment ends the file without a newline", _SYNTAX, "end it with one")
            )
    if not entries:
        what = "the file places no rank"
        findings.append(_both(None, None, what, '"No nodes are available"', "ddlrun gen-rankfile writes one"))
    return entries, findings


def _parse(number: int, match: re.Match[str]) -> tuple[RankEntry, list[LintFinding]]:
    column = match.start(3) + 1
    parts, findings = _parse_slot(match[3], number, column)
    if match[4].strip():
        what = f"{_shown(match[4].strip())} after the slot text"
        findings.append(
            _both(number, match.start(4) + 1, what, "does not read it", "leave it out, or put a # before", error=False)
        )
    return RankEntry(number, int(match[1]), match[2], match[3], column, parts, match[5] or ""), findings


def _parse_slot(text: str, line: int, column: int) -> tuple[tuple[CoreRange, ...] | None, list[LintFinding]]:
    """Read a slot text as it was meant; find what is not read so."""
    if not text:
        return None, [
            _both(line, column, "no slot text", "places the rank anywhere, or fails", "say which cores: slot=0:0-4")
        ]
    if text in ("*", "*:*"):
        what = f"slot={text}"
        got = "gives core 0 alone" if text == "*" else "gives package 0 alone"
        return None, [_both(line, column, what, got, "name the cores: slot=0-19 counts them over the host")]
    parts: list[CoreRange] = []
    findings: list[LintFinding] = []
    package: int | None = None
    for separator, term in re.findall(r"(^|[;,])([^;,]*)", text):
        match = re.fullmatch(_TERM, term)
        if not match:
            if not term and parts and text.endswith(";"):
                continue
            return None, [_unreadable(term, line, column, text)]
        if match["whole"]:
            parts.append(CoreRange(int(match["whole"]), None, None))
        elif match["flat"]:
            package = package if separator == "," else None
            parts.append(CoreRange(package, *_bounds(match["flat"])))
        else:
            package = int(match["package"])
            parts.append(CoreRange(package, *_bounds(match["inside"])))
    backwards = [part for part in parts if part.low is not None and part.high is not None and part.low > part.high]
    if backwards:
        what = f"slot={text}: a range runs backwards"
        return None, [
            _both(line, column, what, "leaves the rank unbound, without a word", "write the smaller core first")
        ]
    if "," in text and ":" in text:
        findings.append(_comma(text, line, column))
    return tuple(parts), findings


def _bounds(text: str) -> tuple[int | None, int | None]:
    if text == "*":
        return None, None
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def _unreadable(term: str, line: int, column: int, text: str) -> LintFinding:
    what = f"slot={_shown(text)}: {_shown(term)} names no cores"
    remedy = "write PACKAGE:FIRST-LAST, such as 0:0-4, or FIRST-LAST over the host"
    if re.fullmatch(r"[pP]\d+", term):
        return LintFinding(line, column, True, what, "gives another core than 5.0", "gives the whole package", remedy)
    return _both(line, column, what, "takes a core of its own choice, or fails", remedy)


def _comma(text: str, line: int, column: int) -> LintFinding:
    what = f"slot={text}: a comma between cores of a package"
    remedy = "one range: 0:0-4; several are parted by ; each with its package"
    if re.search(r",[^,;:]*:", text):
        kept = "reads it as it is meant, if every part names its package"
        return LintFinding(
            line, column, True, what, kept, "counts what follows in the first package, or drops it", remedy
        )
    dropped = "drops what follows a range" if re.search(r"-\d+,", text) else "reads it"
    return LintFinding(
        line, column, True, what, "takes the first core alone, or fails with two cryptic lines", dropped, remedy
    )


def _entry(entry: RankEntry, machine: Machine | None, hosts: Collection[str] | None) -> Iterator[LintFinding]:
    """Find what is wrong with one line: its host, its length, and its cores on that machine."""
    yield from _host(entry, hosts)
    length = len(entry.host) + BETWEEN + len(entry.slot)
    if length > MOST_CHARACTERS:
        what = f"host and slot text are {length - BETWEEN} characters"
        four, five = '"buffer overflow detected" (134)', "reads it"
        if len(entry.slot) > _MOST_SLOT:
            five = f"drops what is beyond {_MOST_SLOT} characters of the slot text"
        remedy = f"at most {MOST_CHARACTERS - BETWEEN}: ranges, shorter names"
        yield LintFinding(entry.line, entry.column, True, what, four, five, remedy)
    if machine is not None and entry.parts:
        yield from _on_machine(entry, entry.parts, machine)


def _host(entry: RankEntry, hosts: Collection[str] | None) -> Iterator[LintFinding]:
    """Find what is wrong with the name of a line's host."""
    line, name = entry.line, entry.host
    column = len("rank =") + len(str(entry.rank)) + 1
    problem = name_problem(name)
    if name.startswith("+n"):
        what, got = f"host {name!r} is relative", "needs -H or a hostfile that it counts in"
        yield _both(line, column, what, got, "write the host's name", error=False)
    elif problem:
        what = f"host {_shown(name)}: {problem}"
        five = "reads it" if "4.1" in problem else "refuses it, or means another host"
        four = "crashes" if "4.1" in problem else five
        yield LintFinding(line, column, True, what, four, five, "give it another name in /etc/hosts")
    elif "." in name and not name.replace(".", "").isdigit():
        what = f"host {name!r} has a dot"
        four, five = (
            f"cuts it there, unless --{word} is 1"
            for word in ("mca orte_keep_fqdn_hostnames", "prtemca prte_keep_fqdn_hostnames")
        )
        yield LintFinding(line, column, False, what, four, five, "ddlrun launch --rankfile sees to it")
    if hosts is not None and name not in hosts:
        what, got = f"host {name!r} is none of the job's", '"All nodes which are allocated ... already filled"'
        remedy = f"take one of {', '.join(sorted(hosts)[:8])}"
        yield _both(line, column, what, f"{got}, or it starts there", remedy)


def _on_machine(entry: RankEntry, parts: Sequence[CoreRange], machine: Machine) -> Iterator[LintFinding]:
    """Find what is wrong with a line's cores: one that is not there hides all else."""
    line, column, what = entry.line, entry.column, _slot_on(entry, machine)
    missing = _missing(entry, parts, machine)
    if missing is not None:
        yield missing
        return
    cores = list(_cores(parts, machine))
    if not machine.uniform and any(part.package for part in parts):
        told, meant = f"{what}: packages of different sizes", slot_text(_seat(cores), machine)
        yield LintFinding(
            line,
            column,
            True,
            told,
            "reads it as it is",
            "silently takes other cores",
            f"count over the host: slot={meant}",
        )
    if not all(core.usable for core in cores):
        told = f"{what}: not all of these cores are usable"
        got = "binds there all the same, against the affinity that the job was given"
        yield _both(line, column, told, got, "take cores that are usable", error=False)
    if len({core.package for core in cores}) > 1 and len(cores) > 1:
        told, remedy = f"{what}: over several packages", "a rank per package, unless it is meant"
        yield _both(line, column, told, "does so", remedy, error=False)


def _missing(entry: RankEntry, parts: Sequence[CoreRange], machine: Machine) -> LintFinding | None:
    """Return the first of a line's packages or cores that the machine does not have."""
    line, column, what = entry.line, entry.column, _slot_on(entry, machine)
    packages = machine.packages
    if any(part.package is not None for part in parts) and not machine.packaged:
        return _both(line, column, f"{what}: it has no packages", "fails", "count cores over the host: slot=0-3")
    for part in parts:
        if part.package is None:
            if (part.high or 0) >= len(machine.cores):
                told, remedy = f"{what}: there is no core {part.high}", f"cores 0-{len(machine.cores) - 1}"
                four, five = "ends with 1 and no message at all", "refuses the line"
                return LintFinding(line, column, True, told, four, five, remedy)
        elif part.package >= len(packages):
            told = f"{what}: there is no package {part.package}"
            return _both(line, column, told, "fails", f"packages 0-{len(packages) - 1}")
        elif (part.high or 0) >= len(packages[part.package]):
            told = f"{what}: package {part.package} has cores 0-{len(packages[part.package]) - 1}"
            last = part.package == len(packages) - 1
            four = "fails with two cryptic lines"
            five = "refuses the line" if last else f"silently takes cores of package {part.package + 1}"
            return LintFinding(line, column, True, told, four, five, "keep to the package's own cores")
    return None


def _slot_on(entry: RankEntry, machine: Machine) -> str:
    return f"slot={entry.slot} on {entry.host} ({machine})"


def _cores(parts: Sequence[CoreRange], machine: Machine) -> Iterator[Core]:
    """Yield the cores that are meant, each once, in order."""
    numbers: set[int] = set()
    for part in parts:
        inside = machine.cores if part.package is None else machine.packages[part.package]
        chosen = inside if part.low is None else inside[part.low : (part.high or part.low) + 1]
        numbers |= {core.logical_index for core in chosen}
    return (machine.cores[number] for number in sorted(numbers))


def _ranks(entries: Sequence[RankEntry], ranks: int | None) -> Iterator[LintFinding]:
    """Find ranks that come twice, are missing, or are too many; rank 0 has to come first."""
    seen: dict[int, int] = {}
    for entry in entries:
        if entry.rank in seen:
            what = f"rank {entry.rank} stands in line {seen[entry.rank]} already"
            yield _both(entry.line, 1, what, f'"Error, rank {entry.rank} is already assigned"', "give it one line")
        seen.setdefault(entry.rank, entry.line)
    if 0 in seen and entries[0].rank != 0:
        what = f"rank 0 comes after rank {entries[0].rank}"
        yield _both(seen[0], 1, what, '"Error, rank 0 is already assigned"', "put its line first")
    missing = [rank for rank in range(min(max(seen, default=-1), len(seen) + 8) + 1) if rank not in seen]
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        yield _both(None, None, f"rank {shown} has no line, rank {max(seen)} has", _MISSING, "number them 0, 1, 2, ...")
    if ranks is not None and entries and len(seen) != ranks:
        fewer = len(seen) < ranks
        what = f"{len(seen)} ranks stand there, {ranks} are to be launched"
        yield _both(
            None,
            None,
            what,
            _MISSING if fewer else "silently runs the first ranks",
            f"launch {len(seen)}, or write the others",
        )


def _shared(entries: Sequence[RankEntry], machine_of: MachineOf) -> Iterator[LintFinding]:
    """Find cores that two ranks of a host have."""
    owners: dict[tuple[str, int | None, int], int] = {}
    for entry in entries:
        shared: dict[int, tuple[int | None, int]] = {}
        for package, core in _keys(entry, machine_of(entry.host)):
            other = owners.setdefault((entry.host, package, core), entry.rank)
            if other != entry.rank:
                shared.setdefault(other, (package, core))
        for other, (package, core) in shared.items():
            name = f"core {core}" if package is None else f"core {core} of package {package}"
            what = f"rank {entry.rank} has {name} of {entry.host}, as rank {other} has"
            yield LintFinding(
                entry.line, entry.column, True, what, "lets them share it, without a word",
                "refuses the file, unless --bind-to core:overload-allowed", "a core of its own for each rank",
            )  # fmt: skip


def _keys(entry: RankEntry, machine: Machine | None) -> Iterator[tuple[int | None, int]]:
    """Yield what stands for an entry's cores: (None, logical index) where the machine is known."""
    parts = entry.parts or ()
    if machine is not None and all(_there(part, machine) for part in parts):
        yield from ((None, core.logical_index) for core in _cores(parts, machine))
        return
    for part in parts:
        if part.low is not None:
            yield from (
                (part.package, core) for core in range(part.low, min(part.high or part.low, part.low + 4096) + 1)
            )


def _there(part: CoreRange, machine: Machine) -> bool:
    return part.package is None or part.package < len(machine.packages)


def _shape(entries: Sequence[RankEntry]) -> Iterator[LintFinding]:
    """Find hosts with different numbers of ranks: no XxYxZ."""
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.host] = counts.get(entry.host, 0) + 1
    if len(set(counts.values())) > 1:
        most, least = (pick(counts, key=lambda host: counts[host]) for pick in (max, min))
        what = f"{most} has {counts[most]} ranks, {least} has {counts[least]}"
        yield _both(None, None, what, "runs them so", "the same number on each host, for a topology XxYxZ", error=False)


def _written(entry: RankEntry, machine_of: MachineOf) -> str:
    """Write a line so that both majors read it as it was meant, as far as that can be known."""
    slot, machine = entry.slot, machine_of(entry.host)
    if entry.parts is not None:
        if machine is not None and _missing(entry, entry.parts, machine) is None:
            slot = slot_text(_seat(list(_cores(entry.parts, machine))), machine)
        else:
            slot = (";" if any(part.package is not None for part in entry.parts) else ",").join(map(_term, entry.parts))
    return f"rank {entry.rank}={entry.host} slot={slot}" + (f" {entry.comment}" if entry.comment else "")


def _term(part: CoreRange) -> str:
    inside = "*" if part.low is None else f"{part.low}" if part.low == part.high else f"{part.low}-{part.high}"
    return inside if part.package is None else f"{part.package}:{inside}"


def _seat(cores: Sequence[Core]) -> LocalRankPlacement:
    return LocalRankPlacement(0, tuple(cores), None, len(cores))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _both(
    line: int | None, column: int | None, what: str, really: str, remedy: str, *, error: bool = True
) -> LintFinding:
    """Return a finding that both majors agree about."""
    return LintFinding(line, column, error, what, really, really, remedy)
