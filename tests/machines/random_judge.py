"""Judgement of plans and of lint by real mpiruns that read the same tree of /proc and /sys."""

import random
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ddlrun.errors import DdlrunError, HostError, PlacementError
from ddlrun.hosts import Host, HostList
from ddlrun.machine import Core, Machine
from ddlrun.machine.hwloc_2_0 import count_cores
from ddlrun.machine.sysfs import parse_sysfs
from ddlrun.mapping.lint_findings import LintCode
from ddlrun.mapping.placement import Placement, place
from ddlrun.mapping.rankfile import parse, render
from ddlrun.mapping.rankfile_entries import read_entries
from ddlrun.mapping.rankfile_lint import lint
from ddlrun.mapping.slot_text import cores_of
from ddlrun.ranges import parse_ranges, render_ranges
from ddlrun.topology import RankOrder, Topology
from tests.machines.facts import Facts
from tests.machines.probes import probe_output
from tests.machines.random_requests import Request, random_lines, random_requests
from tests.support.oracle import OracleError, map_pus

Pus = frozenset[int]
MOST_RANKS = 1000  # that mpirun is given at once


class Result(Enum):
    """Outcomes of a comparison."""

    AGREES = "agrees"
    REFUSED = "refused"
    NOTED = "builds of hwloc differ, which lint notes"
    OTHER_CORES = "mpirun takes other cores"
    OTHER_THREADS = "mpirun takes other threads of the same cores"
    FAILS = "mpirun fails"
    NOT_JUDGED = "mpirun fails whatever the rank file, or does not read /sys"
    LINT_SILENT = "lint is silent"
    GPU_ELSEWHERE = "a GPU is elsewhere"
    FALSE_ALARM = "lint reports what mpirun does as meant"


class ChosenManager(NamedTuple):
    """An mpirun.

    `old_hwloc`: its hwloc is 2.0, which counts cores that a cgroup of version 2 hides, and reads no topology in /sys
    where CPU 0 is offline.
    """

    path: str
    major: int
    old_hwloc: bool = False


class Judgement(NamedTuple):
    """The outcome of one comparison: what was compared (a plan, or a line for lint), and the details."""

    result: Result
    mpirun: ChosenManager
    subject: Request | str
    detail: str

    @property
    def agrees(self) -> bool:
        """Whether mpirun does what is planned, or ddlrun refuses, or notes that it may not."""
        return self.result in (Result.AGREES, Result.REFUSED, Result.NOTED, Result.NOT_JUDGED)


class _Plan(NamedTuple):
    request: Request
    placement: Placement
    text: str


class Judge:
    """An mpirun that reads a tree or a file of hwloc's XML, and the machine that ddlrun makes of it for this mpirun."""

    def __init__(self, source: Path, machine: Machine, mpirun: ChosenManager) -> None:
        self.source = source
        self.mpirun = mpirun
        self.machine = count_cores({"a": machine}, hwloc_2_0=mpirun.old_hwloc)["a"]
        self.allowed = frozenset(pu.os_index for core in machine.cores for pu in core.pus)

    def _pus(self, text: str, *, overload: bool = False) -> dict[int, Pus]:
        mapped = map_pus(self.mpirun.major, text, self.source, mpirun=self.mpirun.path, overload=overload)
        pus = {rank: parse_ranges(pus) for rank, (_, pus) in mapped.items()}
        if not self.mpirun.old_hwloc:
            return pus
        return {rank: cpus & self.allowed or cpus for rank, cpus in pus.items()}

    @cached_property
    def cannot_start(self) -> bool:
        """Whether mpirun fails on this machine whatever the rank file: hwloc 2.0 does on a few."""
        try:
            self._pus("rank 0=a slot=0\n")
        except OracleError as error:
            return error.returncode == -signal.SIGSEGV or "topology discovery failed" in error.output
        return False

    @cached_property
    def reads_rank_files(self) -> bool:
        """Whether mpirun reads any rank file for this machine."""
        try:
            self._pus("rank 0=a slot=0\n")
        except OracleError:
            return False
        return True

    def judge_plans(self, requests: Sequence[Request]) -> Iterator[Judgement]:
        """Compare plans with what mpirun does: all at once, and one by one if any of them differs."""
        plans = []
        for request in requests:
            try:
                plans.append(self._plan(request))
            except PlacementError as error:
                yield Judgement(Result.REFUSED, self.mpirun, request, reason_of(error))
        together = [plan for plan in plans if not plan.placement.shares_cores and not self._is_reported(plan)]
        if len(together) > 1 and self._all_agree([(plan.text, self._planned(plan)) for plan in together]):
            yield from (Judgement(Result.AGREES, self.mpirun, plan.request, "") for plan in together)
            plans = [plan for plan in plans if plan not in together]
        yield from (self._judge_plan(plan) for plan in plans)

    def _plan(self, request: Request) -> _Plan:
        hosts = HostList((Host("a"),), "test")
        placed = place(Topology((request.ranks,)), hosts, {"a": self.machine}, RankOrder.DDL, request.policy)
        return _Plan(request, placed, "".join(render(placed, "test", (self.mpirun.major,))))

    def _is_reported(self, plan: _Plan) -> bool:
        """Check if lint finds an error in a file that ddlrun wrote, besides cores that ranks are to share."""
        return not plan.placement.shares_cores and bool(self._problems(plan.text))

    def _planned(self, plan: _Plan) -> dict[int, Pus]:
        whole = self.machine.cores  # a rank with some threads of a core has the whole core in the rank file
        return {
            rank.rank: self._pus_of(whole[core.logical_index] for core in rank.binding.cores)
            for rank in plan.placement.by_host()
        }

    def _pus_of(self, cores: Iterable[Core]) -> Pus:
        """Return the PUs of cores, as far as the kernel lets a process run on them, or all if it does on none."""
        pus = frozenset(pu.os_index for core in cores for pu in core.pus)
        return pus & self.allowed or pus

    def _all_agree(self, expected: Sequence[tuple[str, Mapping[int, Pus]]]) -> bool:
        """Give mpirun several rank files as one, each for a host of its own, and compare the PUs of their ranks."""
        lines: list[str] = []
        pus: dict[int, Pus] = {}
        for host, (text, ranks) in enumerate(expected):
            for line in parse(text):
                pus[len(lines)] = ranks[line.rank]
                lines.append(f"rank {len(lines)}=h{host} slot={line.slot}\n")
        try:
            return self._pus("".join(lines)) == pus
        except OracleError:
            return False

    def _judge_plan(self, plan: _Plan) -> Judgement:
        planned = self._planned(plan)
        detail = f"{_without_comments(plan.text)}planned {_shown(planned)}"
        if self._is_reported(plan):
            problems = "; ".join(self._problems(plan.text))
            return Judgement(Result.FALSE_ALARM, self.mpirun, plan.request, f"{detail}\nlint: {problems}")
        try:
            mapped = self._pus(plan.text, overload=plan.placement.shares_cores)
        except OracleError as error:
            result = Result.NOT_JUDGED if self.cannot_start else Result.FAILS
            return Judgement(result, self.mpirun, plan.request, f"{detail}\n{error_of(error)}")
        return Judgement(
            self._compare(planned, mapped), self.mpirun, plan.request, f"{detail}\nmapped  {_shown(mapped)}"
        )

    def _compare(self, planned: Mapping[int, Pus], mapped: Mapping[int, Pus]) -> Result:
        if planned == mapped:
            return Result.AGREES
        core_of = {pu.os_index: core.logical_index for core in self.machine.cores for pu in core.pus}
        cores = [[{core_of.get(pu) for pu in pus} for _, pus in sorted(ranks.items())] for ranks in (planned, mapped)]
        return Result.OTHER_THREADS if cores[0] == cores[1] else Result.OTHER_CORES

    def judge_lines(self, texts: Sequence[str]) -> Iterator[Judgement]:
        """Compare lint's verdicts on rank files of one line with what mpirun does."""
        noted = [text for text in texts if self._is_noted(text)]
        yield from (Judgement(Result.NOTED, self.mpirun, text, "") for text in noted)
        texts = [text for text in texts if text not in noted]
        good = [text for text in texts if not self._problems(text)]
        if len(good) > 1 and self._all_agree([(text, {0: self._meant(text)}) for text in good]):
            yield from (Judgement(Result.AGREES, self.mpirun, text, "") for text in good)
            texts = [text for text in texts if text not in good]
        yield from (self._judge_line(text) for text in texts)

    def _problems(self, text: str) -> list[str]:
        """Return what mpirun does otherwise than it is meant, by lint."""
        major = self.mpirun.major
        findings = lint(text, lambda _: self.machine)
        return [finding.effect(major) for finding in findings if finding.error and finding.concerns(major)]

    def _is_noted(self, text: str) -> bool:
        return any(finding.code is LintCode.PACKAGES_UNCERTAIN for finding in lint(text, lambda _: self.machine))

    def _judge_line(self, text: str) -> Judgement:
        problems, meant = self._problems(text), self._meant(text)
        try:
            mapped = self._pus(text).get(0, frozenset())
            as_meant = bool(meant) and mapped == meant
            effect = f"takes {render_ranges(mapped)}, meant are {render_ranges(meant) or 'cores that do not exist'}"
        except OracleError as error:
            if self.cannot_start:
                return Judgement(Result.NOT_JUDGED, self.mpirun, text, "")
            as_meant, effect = False, error_of(error)
        detail = f"{text}lint: {'; '.join(problems) or 'no error'}\nmpirun: {effect}"
        if as_meant != bool(problems):
            return Judgement(Result.AGREES, self.mpirun, text, detail)
        return Judgement(Result.FALSE_ALARM if problems else Result.LINT_SILENT, self.mpirun, text, detail)

    def _meant(self, text: str) -> Pus:
        """Return the PUs that a line means; none if one of its cores does not exist, or a package of it has none."""
        entries, _ = read_entries(text)
        ranges = [cores for entry in entries for cores in entry.ranges or ()]
        packages = self.machine.packages
        for package, high in ((cores.package, cores.high) for cores in ranges):
            if package is not None and (not self.machine.packaged or not any(packages[package : package + 1])):
                return frozenset()
            size = len(self.machine.cores if package is None else packages[package])
            if high is not None and high >= size:
                return frozenset()
        return self._pus_of(cores_of(ranges, self.machine))


def probe(root: Path) -> Machine:
    """Return the machine of a tree. Raises HostError if ddlrun refuses it."""
    return parse_sysfs(probe_output(str(root)), "a")


def judge_tree(root: Path, mpirun: ChosenManager, seed: int, lines: int = 3) -> Iterator[Judgement]:
    """Compare plans and lint with mpirun on the machine of a tree; the same seed gives the same plans and lines."""
    rng = random.Random(seed)  # noqa: S311 - reproducible
    try:
        judge = Judge(root, probe(root), mpirun)
    except HostError as error:
        yield Judgement(Result.REFUSED, mpirun, "", reason_of(error))
        return
    if judge.machine.cores_uncounted:
        yield Judgement(Result.REFUSED, mpirun, "", "no rank file")
        return
    if mpirun.old_hwloc and not _has_cpu_0(root):
        yield Judgement(Result.NOT_JUDGED, mpirun, "", "")
        return
    if judge.machine.cores_are_threads and mpirun.major == 5 and judge.reads_rank_files:
        yield Judgement(Result.FALSE_ALARM, mpirun, "", "it has cores that can be counted")
    yield from judge.judge_plans([*random_requests(rng, judge.machine)])
    texts = random_lines(rng, judge.machine)
    yield from judge.judge_lines([next(texts) for _ in range(lines)])


def judge_gpus(root: Path, mpirun: ChosenManager, facts: Facts) -> Iterator[Judgement]:
    """Find GPUs of which ddlrun reports another package or NUMA node than that of the CPUs near them."""
    try:
        machine = probe(root)
    except HostError:
        return
    near = {gpu.address: gpu.near for gpu in facts.gpus if gpu.near < facts.cpus}
    for gpu in machine.gpus:
        cpus = near.get(gpu.pci_address or "", frozenset())
        cores = [core for core in machine.cores if cpus & {pu.os_index for pu in core.pus}]
        packages, nodes = {core.package for core in cores}, {core.numa_node for core in cores}
        if nodes == {None}:  # a cpuset hides the GPU's node, and old kernels list no CPUs near a device
            continue
        if (len(packages) == 1 and gpu.package not in packages) or (len(nodes) == 1 and gpu.numa_node not in nodes):
            detail = f"{gpu}\nnear are packages {packages}, nodes {nodes}"
            yield Judgement(Result.GPU_ELSEWHERE, mpirun, f"gpu {gpu.pci_address}", detail)


def _has_cpu_0(root: Path) -> bool:
    return 0 in parse_ranges((root / "sys/devices/system/cpu/online").read_text())


def judge_divisions(judge: Judge, ranks: Iterable[int]) -> Iterator[Judgement]:
    """Compare plans for these numbers of ranks with what mpirun does."""
    requests: list[Request] = []
    for number in ranks:
        requests.append(Request(number))
        if sum(request.ranks for request in requests) > MOST_RANKS:
            yield from judge.judge_plans(requests)
            requests = []
    yield from judge.judge_plans(requests)


def judge_again(root: Path, judgement: Judgement) -> Judgement | None:
    """Repeat a comparison on another tree; None: ddlrun refuses it there."""
    try:
        judge = Judge(root, probe(root), judgement.mpirun)
    except HostError:
        return None
    if isinstance(judgement.subject, str):
        return next(judge.judge_lines([judgement.subject]))
    return next(judge.judge_plans([judgement.subject]))


def reason_of(error: DdlrunError) -> str:
    """Return an error's text without numbers, names and the description of the machine."""
    text = re.sub(r"\(.*\)", "", str(error)).partition(", but ")
    return re.sub(r"slot=\S+", "slot=...", re.sub(r"\d+", "N", text[2] or text[0]))


def error_of(error: OracleError) -> str:
    """Return the lines of mpirun's output that contain an error."""
    lines = [line.strip(" -*") for line in error.output.splitlines()]
    found = [
        line for line in lines if re.search(r"rror:|not|invalid|overflow|Not found|overload|specified|signal", line)
    ]
    return f"fails with {error.returncode}: {' '.join(found)[:300]}"


def _without_comments(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if not line.startswith("#"))


def _shown(ranks: Mapping[int, Pus]) -> str:
    return " ".join(f"{rank}:{render_ranges(pus)}" for rank, pus in sorted(ranks.items()))
