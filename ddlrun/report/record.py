"""Record of a run, parsed from the files of its folder. Pure: texts in, values out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlrun.errors import InputError
from ddlrun.hosts import fold
from ddlrun.machine import GPU, NIC, PU, Core, Machine
from ddlrun.mapping.local_ranks import LocalRankPlacement
from ddlrun.plan.outcome import RankEnd

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Equal hosts: their names folded, their machine, and the placement of each local rank."""

    names: str
    machine: Machine
    local_ranks: tuple[LocalRankPlacement, ...]


@dataclass(frozen=True, slots=True)
class RankRecord:
    """A rank: `planned` as in plan.json, the number of its host's group, `bound` as in binding.json, and its end."""

    number: int
    planned: Fields
    group: int
    bound: Fields | None
    end: RankEnd | None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run as recorded in its folder.

    Attributes:
        path: the run folder.
        plan: the JSON of plan.json; `check` and `outcome` likewise (None: no such file).
        groups: equal hosts.
        ranks: all ranks in order.
        environment: names of the variables that are passed on.
        dumps: the reports of -dump_iter in order.
        findings: the findings of -rebind_iter in order.
        messages: what learners printed on their slowness and moves.
        failure: the report of a failed run, else empty.
        gaps: what the folder lacks, and why.
        started: False where only the plan was written.
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
    messages: tuple[str, ...]
    failure: str
    gaps: tuple[str, ...]
    started: bool

    @property
    def hosts(self) -> str:
        """All hosts, folded."""
        return fold(host["name"] for host in self.plan["hosts"])


# The keys that a page needs of plan.json, outcome.json and the events of ddl.jsonl.
PLAN = "topology rank_order hosts hosts_source ranks machines reasons notes mpirun command variables removed run_id"
OUTCOME = "exit_code seconds reason root ends requested"
ITERATIONS = "first last mode seconds compute reduce jitter most_jitter dimensions"
FINDING = "rank host score"


def parse_record(path: str, texts: Mapping[str, str]) -> RecordedRun:
    """Parse the files of the run folder `path`, given as name -> text.

    Raises InputError where plan.json or outcome.json is malformed; damage to other files is a gap.
    """
    plan: Any = None
    gaps: list[str] = []
    try:
        plan = _require(json.loads(texts["plan.json"]), PLAN)
        groups = _parse_groups(plan)
        check, binding, outcome = (
            _parse_json(name, texts, gaps) for name in ("check.json", "binding.json", "outcome.json")
        )
        ranks = _parse_ranks(plan, binding, outcome and _require(outcome, OUTCOME))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        version = f" ({plan['version']})" if isinstance(plan, dict) and "version" in plan else ""
        raise InputError(
            f"run folder {path}: its plan or outcome is not as this ddlrun writes it: {type(error).__name__} {error}; "
            f"report with the ddlrun that wrote it{version}"
        ) from error
    if "version" not in plan:
        gaps.append("an older ddlrun wrote this folder: it has no time of start and no check")
    events = _parse_events(texts.get("ddl.jsonl", ""), gaps)
    return RecordedRun(
        path=path,
        plan=plan,
        groups=groups,
        ranks=ranks,
        environment=tuple(texts.get("environment", "").split()),
        check=check,
        outcome=outcome,
        dumps=tuple(event for event in events if event["event"] == "iterations"),
        findings=tuple(event for event in events if event["event"] != "iterations"),
        messages=tuple(texts.get("output.order", "").splitlines()),
        failure=texts.get("report.txt", ""),
        gaps=tuple(gaps),
        started="output.order" in texts,
    )


def _require(value: Any, keys: str) -> Fields:  # noqa: ANN401 - JSON
    """Return a JSON object if it has all of the keys. Raises KeyError or TypeError."""
    fields = dict(value)
    missing = [key for key in keys.split() if key not in fields]
    if missing:
        raise KeyError(missing[0])
    return fields


def _parse_json(name: str, texts: Mapping[str, str], gaps: list[str]) -> Fields | None:
    """Return the JSON object of a file; None, with a gap, where a full disk or a kill cut the file short."""
    try:
        value = json.loads(texts[name]) if name in texts else None
    except ValueError:
        gaps.append(f"{name} was not written to its end")
        return None
    return value if isinstance(value, dict) else None


def _parse_events(text: str, gaps: list[str]) -> list[Fields]:
    events: list[Fields] = []
    lines = text.splitlines()
    for line in lines:
        try:
            event = _require(json.loads(line), "event time")
            events.append(_require(event, ITERATIONS if event["event"] == "iterations" else FINDING))
        except (ValueError, KeyError, TypeError):
            continue
    if len(events) < len(lines):
        gaps.append(f"{len(lines) - len(events)} of {len(lines)} lines of ddl.jsonl cannot be read")
    return events


def _parse_groups(plan: Fields) -> tuple[HostGroup, ...]:
    by_host: dict[str, list[Fields]] = {}
    for rank in plan["ranks"]:
        by_host.setdefault(rank["host"], []).append(rank)
    groups = []
    for fields in plan["machines"]:
        machine = _parse_machine(fields)
        local_ranks = _parse_local_ranks(machine, by_host[fields["hosts"][0]])
        groups.append(HostGroup(fold(fields["hosts"]), machine, local_ranks))
    return tuple(groups)


def _parse_machine(fields: Fields) -> Machine:
    """Parse the JSON of `machine_dict`."""
    cores = tuple(
        Core(
            logical_index=core["core"],
            package=package,
            index_in_package=index,
            numa_node=core["numa_node"],
            pus=tuple(map(PU, core["pus"])),
            usable=core["usable"],
            l3=core.get("l3"),
            kind=core.get("kind", 0),
        )
        for package, members in enumerate(fields["packages"])
        for index, core in enumerate(members)
    )
    return Machine(
        cores=cores,
        gpus=tuple(GPU(**{**gpu, "nics": tuple(gpu["nics"])}) for gpu in fields["gpus"]),
        nics=None if fields["nics"] is None else tuple(NIC(**nic) for nic in fields["nics"]),
        source=fields["source"],
        measured=fields["measured"],
        numa_nodes=tuple(fields["numa_nodes"]),
        memory=fields["memory_gib"],
        numa_distances=tuple(map(tuple, fields.get("numa_distances", ()))),
    )


def _parse_local_ranks(machine: Machine, ranks: Sequence[Fields]) -> tuple[LocalRankPlacement, ...]:
    cores = {core.logical_index: core for core in machine.cores}
    gpus = {gpu.number: gpu for gpu in machine.gpus}
    return tuple(
        LocalRankPlacement(
            rank["local_rank"],
            cores=tuple(cores[index] for index in rank["cores"]),
            gpu=gpus.get(rank["gpu"]),
            threads=rank["threads"],
            nics=tuple(rank["nics"]),
            memory_nodes=tuple(rank.get("memory_nodes", ())),
        )
        for rank in ranks
    )


def _parse_ranks(plan: Fields, binding: Fields | None, outcome: Fields | None) -> tuple[RankRecord, ...]:
    group_of = {host: number for number, group in enumerate(plan["machines"]) for host in group["hosts"]}
    bound = {fields["rank"]: fields for fields in (binding or {}).get("bindings", ())}
    ends = {fields["rank"]: RankEnd(**fields) for fields in (outcome or {}).get("ends", ())}
    return tuple(
        RankRecord(
            number=planned["rank"],
            planned=planned,
            group=group_of[planned["host"]],
            bound=bound.get(planned["rank"]),
            end=ends.get(planned["rank"]),
        )
        for planned in sorted(plan["ranks"], key=lambda planned: int(planned["rank"]))
    )
