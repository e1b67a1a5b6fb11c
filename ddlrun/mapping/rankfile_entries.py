"""Lenient parser of rank files: every line that places a rank, and the syntax problems of the others."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

from ddlrun.machine import Core, Machine
from ddlrun.mapping.lint_findings import LintCode, LintFinding
from ddlrun.mapping.rankfile import KEYWORDS
from ddlrun.mapping.rankfile_lines import Token, TokenLine, split_lines
from ddlrun.mapping.slot_dialects import read_text
from ddlrun.mapping.slot_reading import pus_of
from ddlrun.mapping.slot_text import CoreRange, cores_of, parse_slots

_FOR_ONE_MAJOR = r"#.*, for Open MPI ([45]) alone\s"  # written by rankfile.render
_CR = r"\r(?=\n|\Z)"
_LONGEST_RANK = 9
# Tokens that end the parsing of a file, wherever they stand.
_REFUSED = ("error", "quoted", "username")
_HOST = r"[^\s=#/]+"
_HOST_KINDS = ("int", "word", "dotted", "relative")
# The tokens of most lines.
_USUAL = {("rank", "int", "equal", host, "slot", "equal", slot) for host in _HOST_KINDS for slot in ("int", "word")}


class RankEntry(NamedTuple):
    """A line that places a rank; `column` is where its slot text begins, `host_column` where its host does.

    `ranges` is None where the slot text is unreadable. `problem` is that of the slot text. In the file, the entry and
    its comment are at `span`.
    """

    line: int
    rank: int
    host: str
    host_column: int
    slot: str
    column: int
    ranges: tuple[CoreRange, ...] | None
    problem: LintCode | None
    comment: str
    span: tuple[int, int]


def read_entries(text: str) -> tuple[list[RankEntry], list[LintFinding]]:
    """Parse a rank file; return its entries, and a finding for each problem of its syntax.

    Commas in readable slot texts are left to `check_cores`.
    """
    entries: list[RankEntry] = []
    findings: list[LintFinding] = []
    for ending in re.finditer(_CR, text):
        begin = text.rfind("\n", 0, ending.start()) + 1
        findings.append(LintFinding(LintCode.CR_LF, text.count("\n", 0, begin) + 1, ending.end() - begin))
    text = re.sub(_CR, " ", text)
    for line in split_lines(text):
        if line.comment is not None and not line.comment.text.endswith("\n"):
            findings.append(LintFinding(LintCode.NO_LAST_NEWLINE, line.number, None))
        if line.tokens:
            reading = _LineReading(line, text)
            entries += reading.entries()
            findings += reading.findings
    if not entries:
        findings.append(LintFinding(LintCode.NO_RANKS, None, None))
    return entries, findings


def declared_major(text: str) -> int | None:
    """Return the major version for which alone a rank file is written, by its first line."""
    match = re.match(_FOR_ONE_MAJOR, text)
    return int(match[1]) if match else None


def count_as_declared(
    text: str, entries: Sequence[RankEntry], machine_of: Callable[[str], Machine | None]
) -> list[RankEntry]:
    """Return the entries with the cores that Open MPI 5.0 takes, where the file is written for it alone."""
    if declared_major(text) != 5:
        return [*entries]
    return [_count_by_5(entry, machine_of(entry.host)) for entry in entries]


def _count_by_5(entry: RankEntry, machine: Machine | None) -> RankEntry:
    """Return the entry with the cores that Open MPI 5.0 takes, or unchanged if it takes no whole cores."""
    pus = None if machine is None or entry.ranges is None else read_text(entry.slot, machine, 5)
    if machine is None or not pus:
        return entry
    cores = [core for core in machine.cores if pus_of([core]) <= pus]
    if pus_of(cores) != pus:
        return entry
    return entry._replace(ranges=tuple(CoreRange(None, core.logical_index, core.logical_index) for core in cores))


def parse_host_names(text: str) -> tuple[str, ...]:
    """Return the hosts of a rank file, in the order of their first ranks."""
    entries = sorted(read_entries(text)[0], key=lambda entry: entry.rank)
    return tuple(dict.fromkeys(entry.host for entry in entries))


def parse_places(text: str, machine_of: Callable[[str], Machine]) -> dict[int, tuple[str, tuple[Core, ...]]]:
    """Return each rank's host and cores, of a file in which `lint` finds no error."""
    entries = count_as_declared(text, read_entries(text)[0], machine_of)
    return {entry.rank: (entry.host, cores_of(entry.ranges or (), machine_of(entry.host))) for entry in entries}


def quote(text: str) -> str:
    """Quote a text for a message; a long one is cut."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


class _LineReading:
    """Reads the tokens of a line in turn, as Open MPI does, and collects problems."""

    def __init__(self, line: TokenLine, text: str) -> None:
        self.findings: list[LintFinding] = []
        self._line, self._text = line, text
        self._others: list[Token] = []
        self._refused = False
        if tuple([token.kind for token in line.tokens]) in _USUAL and len(line.tokens[1].text) <= _LONGEST_RANK:
            self._ranks, self._hosts, self._slots = ([line.tokens[place]] for place in (1, 3, 6))
            return
        self._ranks, self._hosts, self._slots = (list[Token]() for _ in range(3))
        self._tokens = deque(line.tokens)
        if line.tokens[0].kind != "rank":
            code = LintCode.NO_RANK if _is_host(line.tokens) else LintCode.NO_RANK_FIRST
            self._report(code, line.tokens[0], text=quote(line.tokens[0].text))
        readers = {"rank": self._read_rank, "equal": self._read_host, "slot": self._read_slot}
        while self._tokens and not self._refused:
            token = self._tokens.popleft()
            readers.get(token.kind, self._read_other)(token)

    def entries(self) -> list[RankEntry]:
        """Return the entry of the line; none if Open MPI refuses the line, or it is incomplete or ambiguous."""
        if self._refused or not self._ranks or not self._is_complete():
            return []
        rank, host, slot = self._ranks[0], self._hosts[0], reduce(_overlay, self._slots)
        name = host.text
        if "@" in name:
            name = name.strip("@").rpartition("@")[2]
            self._report(LintCode.USER, host, text=quote(host.text), name=quote(name))
        if len(self._slots) > 1:
            self._report_two_slots(slot)
        for other in self._others[:1]:
            self._report(LintCode.TRAILING_WORDS, other, text=quote(other.text))
        slots = parse_slots(slot.text)
        if slots.problem is not None and slots.ranges is None:
            self._report(slots.problem, slot, slot=slot.text, shown=quote(slot.text), term=quote(slots.term))
        line = self._line
        comment = line.comment.text.rstrip("\n") if line.comment else ""
        end = line.comment.start + len(comment) if line.comment else line.tokens[-1].end
        return [
            RankEntry(
                line=line.number,
                rank=int(rank.text),
                host=name,
                host_column=self._column(host),
                slot=slot.text,
                column=self._column(slot),
                ranges=slots.ranges,
                problem=slots.problem,
                comment=comment,
                span=(line.tokens[0].start, end),
            )
        ]

    def _is_complete(self) -> bool:
        """Return True if the line has one rank, one host and a slot text; report what it lacks or has twice."""
        first, hosts = self._line.tokens[0], [host.text for host in self._hosts]
        if not hosts:
            self._report(LintCode.NO_HOST, first, text=quote(self._words()))
        elif not self._slots:
            self._report(LintCode.NO_SLOT, first, text=quote(self._words()))
        elif len(self._ranks) > 1:
            self._report(LintCode.SEVERAL_RANKS, self._ranks[1], text=quote(self._words()))
        elif len(set(hosts)) > 1:
            self._report(LintCode.SEVERAL_HOSTS, self._hosts[-1], host=quote(hosts[0]), last=quote(hosts[-1]))
        else:
            return True
        return False

    def _report_two_slots(self, reading: Token) -> None:
        """Report a second slot text: Open MPI refuses it for rank 0, and writes it over the first one otherwise."""
        code = LintCode.SLOT_AGAIN if reading == self._slots[-1] else LintCode.SLOT_TWICE
        effect = f"reads slot={reading.text}"
        if int(self._ranks[0].text) == 0:
            code, effect = LintCode.SLOT_TWICE, '"Error, rank 0 is already assigned"'
        self._report(code, self._slots[1], effect=effect)

    def _read_rank(self, token: Token) -> None:
        if self._next("int") and len(self._tokens[0].text) <= _LONGEST_RANK:
            self._ranks.append(self._tokens.popleft())
        else:
            self._refuse(token)

    def _read_host(self, token: Token) -> None:
        """Take a host: the whole word, although Open MPI may take its beginning alone. Later words need not be one."""
        following = self._tokens[0] if self._tokens else None
        if self._ranks and self._hosts and (following is None or following.kind not in _HOST_KINDS):
            self._others.append(token)
            self._tokens = deque([*self._tokens][1:])
            return
        word = re.compile(_HOST).match(self._text, following.start) if following else None
        if not self._ranks or following is None or word is None:
            self._refuse(token)
            return
        self._hosts.append(Token("host", word[0], following.start))
        while self._tokens and self._tokens[0].start < self._hosts[-1].end:
            self._tokens.popleft()

    def _read_slot(self, token: Token) -> None:
        if not self._hosts or not self._next("equal"):
            self._refuse(token)
            return
        equal = self._tokens.popleft()
        if self._next("int") or self._next("word"):
            self._slots.append(self._tokens.popleft())
        elif self._tokens:
            self._refuse(self._tokens[0])
        else:
            self._refused = True
            self._report(LintCode.EMPTY_SLOT, equal)

    def _read_other(self, token: Token) -> None:
        if token.kind in _REFUSED:
            self._refuse(token)
        else:
            self._others.append(token)

    def _next(self, kind: str) -> bool:
        return bool(self._tokens) and self._tokens[0].kind == kind

    def _refuse(self, token: Token) -> None:
        self._refused = True
        self._report(LintCode.NOT_A_LINE, token, text=quote(self._words()))

    def _report(self, code: LintCode, token: Token, **values: object) -> None:
        self.findings.append(LintFinding(code, self._line.number, self._column(token), values))

    def _column(self, token: Token) -> int:
        return token.start - self._line.start + 1

    def _words(self) -> str:
        """Return the text of the line's tokens."""
        return self._text[self._line.tokens[0].start : self._line.tokens[-1].end]


def _is_host(tokens: Sequence[Token]) -> bool:
    """Check if Open MPI 4.1, which reads a rank file as a hostfile, too, takes a line for a host with other words."""
    kinds = tokens[0].kind, *{token.kind for token in tokens[1:]}
    is_plain = all(";" not in token.text and token.text.replace("_", "-") not in KEYWORDS for token in tokens)
    return is_plain and kinds[0] in ("int", "word", "dotted") and {*kinds[1:]} <= {"int", "word"}


def _overlay(first: Token, second: Token) -> Token:
    """Return a slot text as Open MPI writes it over an earlier one, whose end stays."""
    return second._replace(text=second.text + first.text[len(second.text) :])
