"""The files of a run folder -> what a page and a trace are made of. Pure: texts in, values out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ddlrun.errors import InputError
from ddlrun.hosts import fold
from ddlrun.machine import GPU, NIC, PU, Core, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.plan.outcome import RankEnd

Fields = Mapping[str, Any]


class HostGroup(NamedTuple):
    """Hosts that look the same together: their names folded, their machine, what each local rank got."""

    names: str
    machine: Machine
    seats: tuple[LocalRankPlacement, ...]


class RankRecord(NamedTuple):
    """One rank: `planned` as in plan.json, the group of its host, `bound` as in binding.json, how it ended."""

    number: int
    planned: Fields
    group: int
    bound: Fields | None
    end: RankEnd | None


class RecordedRun(NamedTuple):
    """A run as its folder tells it.

    `plan`, `outcome` and `check` are the JSON of those files (None: not there), `dumps` and `findings` the reports of
    -dump_iter and -rebind_iter in their order, `said` what learners wrote about being slow and moving, `failure` the
    report of a failed run, `gaps` what the folder lacks, and why; `started` is False where only the plan was written.
    """

    path: str
    plan: Fields
    groups: tuple[HostGroup, ...]
    ranks: tuple[RankRecord, ...]
    environment: tuple[str, ...]
    check: Fields | None
    outcome: Fields | None
    dumps: tuple[Fields, ...]
    findings: tuple[Fields, ...]
    said: tuple[str, ...]
    failure: str
    gaps: tuple[str, ...]
    started: bool

    @property
    def hosts(self) -> str:
        """All hosts, folded."""
        return fold(host["name"] for host in self.plan["hosts"])


# What a page cannot do without, in plan.json, outcome.json and the events of ddl.jsonl.
PLAN = "topology rank_order hosts hosts_source ranks machines reasons notes mpirun command variables removed run_id"
OUTCOME = "exit_code seconds reason root ends wanted"
ITERATIONS = "first last mode seconds compute reduce jitter most_jitter dimensions"
FINDING = "rank host score"


def parse_record(path: str, texts: Mapping[str, str]) -> RecordedRun:
    """Parse the texts of a run folder's files, by name; `path` is the folder's.

    Raises InputError where plan.json, which all else hangs on, cannot be understood, or outcome.json.
    """
    plan: Any = None
    gaps: list[str] = []
    try:
        plan = _needed(json.loads(texts["plan.json"]), PLAN)
        groups = _parse_groups(plan)
        check, binding, outcome = (
            _parse_json(name, texts, gaps) for name in ("check.json", "binding.json", "outcome.json")
        )
        ranks = _parse_ranks(plan, binding, outcome and _needed(outcome, OUTCOME))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        version = f" ({plan['version']})" if isinstance(plan, dict) and "version" in plan else ""
        raise InputError(
            f"run folder {path}: its plan or outcome is not as this ddlrun writes it: {type(error).__name__} {error}; "
            f"report with the ddlrun that wrote it{version}"
        ) from error
    if "version" not in plan:
        gaps.append("an older ddlrun wrote this folder: it has no time of start and no check")
    events = _parse_journal(texts.get("ddl.jsonl", ""), gaps)
    return RecordedRun(
        path, plan, groups, ranks, tuple(texts.get("environment", "").split()), check, outcome,
        tuple(one for one in events if one["event"] == "iterations"),
        tuple(one for one in events if one["event"] != "iterations"), tuple(texts.get("stderr.log", "").splitlines()),
        texts.get("report.txt", ""), tuple(gaps), "stderr.log" in texts,
    )  # fmt: skip


def _needed(found: Any, keys: str) -> Fields:  # noqa: ANN401 - JSON
    """Return a JSON object that has all of the keys. Raises KeyError or TypeError."""
    for key in keys.split():
        found[key]
    return dict(found)


def _parse_json(name: str, texts: Mapping[str, str], gaps: list[str]) -> Fields | None:
    """Return a file's JSON; where a full disk or a kill cut it short, nothing, and a gap."""
    try:
        found = json.loads(texts[name]) if name in texts else None
    except ValueError:
        gaps.append(f"{name} was not written to its end")
        return None
    return found if isinstance(found, dict) else None


def _parse_journal(text: str, gaps: list[str]) -> list[Fields]:
    events: list[Fields] = []
    lines = text.splitlines()
    for line in lines:
        try:
            event = _needed(json.loads(line), "event time")
            events.append(_needed(event, ITERATIONS if event["event"] == "iterations" else FINDING))
        except (ValueError, KeyError, TypeError):
            continue
    if len(events) < len(lines):
        gaps.append(f"{len(lines) - len(events)} of {len(lines)} lines of ddl.jsonl cannot be read")
    return events


def _parse_groups(plan: Fields) -> tuple[HostGroup, ...]:
    by_host: dict[str, list[Fields]] = {}
    for rank in plan["ranks"]:
        by_host.setdefault(rank["host"], []).append(rank)
    found = []
    for told in plan["machines"]:
        machine = _parse_machine(told)
        found.append(HostGroup(fold(told["hosts"]), machine, _parse_seats(machine, by_host[told["hosts"][0]])))
    return tuple(found)


def _parse_machine(told: Fields) -> Machine:
    """Parse what `machine_dict` wrote."""
    cores = tuple(
        Core(core["core"], package, index, core["numa_node"], tuple(map(PU, core["pus"])), core["usable"])
        for package, inside in enumerate(told["packages"])
        for index, core in enumerate(inside)
    )
    return Machine(
        cores, tuple(GPU(**{**gpu, "nics": tuple(gpu["nics"])}) for gpu in told["gpus"]),
        None if told["nics"] is None else tuple(NIC(**nic) for nic in told["nics"]), told["source"], told["measured"],
        tuple(told["numa_nodes"]), memory=told["memory_gib"],
    )  # fmt: skip


def _parse_seats(machine: Machine, ranks: Sequence[Fields]) -> tuple[LocalRankPlacement, ...]:
    cores = {core.logical_index: core for core in machine.cores}
    gpus = {gpu.number: gpu for gpu in machine.gpus}
    return tuple(
        LocalRankPlacement(
            one["local_rank"],
            tuple(cores[index] for index in one["cores"]),
            gpus.get(one["gpu"]),
            one["threads"],
            tuple(one["nics"]),
        )
        for one in ranks
    )


def _parse_ranks(plan: Fields, binding: Fields | None, outcome: Fields | None) -> tuple[RankRecord, ...]:
    group_of = {name: number for number, told in enumerate(plan["machines"]) for name in told["hosts"]}
    bound = {one["rank"]: one for one in (binding or {}).get("bindings", ())}
    ends = {one["rank"]: RankEnd(**one) for one in (outcome or {}).get("ends", ())}
    return tuple(
        RankRecord(one["rank"], one, group_of[one["host"]], bound.get(one["rank"]), ends.get(one["rank"]))
        for one in sorted(plan["ranks"], key=lambda one: int(one["rank"]))
    )
