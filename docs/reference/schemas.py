"""Generator of ddlrun/schemas: a JSON Schema for each kind of JSON and YAML, by `make reference`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddlrun.ddl.monitor.event_records import IterationsRecord, StragglerRecord
from ddlrun.doctor.diagnosis import DiagnosisRecord
from ddlrun.machine.preset import MachineDescription
from ddlrun.mapping.lint_record import LintRecord
from ddlrun.monitor.records import TopRecord
from ddlrun.monitor.samples import HostSample, RankSample
from ddlrun.network.description import NetworkDescription
from ddlrun.network.measurements import BenchRecord, TuneRecord
from ddlrun.plan.outcome import OutcomeRecord
from ddlrun.plan.records import ProbeRecord, ShownPlacement, WrittenPlan
from ddlrun.plan.tuning_profile import ProfilesRecord
from ddlrun.preflight.records import CheckRecord, RunCheckRecord
from ddlrun.report.records import ForecastRecord, HierarchyRecord
from ddlrun.report.view_records import (
    CommandRecord,
    ConfigRecord,
    EnvironmentRecord,
    HostsRecord,
    RankfileRecord,
    SchemasRecord,
    TopologyRecord,
)
from ddlrun.runs.binding_record import BindingsRecord
from ddlrun.runs.events import EventRecord
from ddlrun.runs.records import RunsRecord, StartRecord
from docs.reference.config_schema import config_schema
from docs.reference.record_types import RecordTypes, field_docstrings

FOLDER = Path(__file__).parents[2] / "ddlrun" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


class PublishedSchema(NamedTuple):
    """A schema to generate: of one of several types.

    Attributes:
        title: the output or the file.
        types: the types of the document.
        version: raised when a document of the old version is no longer valid, or no longer means the same.
        closed: unknown keys are errors, as they are for ddlrun.
    """

    title: str
    types: tuple[Any, ...]
    version: int = 1
    closed: bool = False


SCHEMAS = {
    "bench": PublishedSchema("Output of ddlrun network bench --json", (BenchRecord,)),
    "check": PublishedSchema("Output of ddlrun check --json", (CheckRecord,)),
    "config-show": PublishedSchema("Output of ddlrun config show --json", (ConfigRecord,)),
    "doctor": PublishedSchema("Output of ddlrun doctor --json, and doctor.json of a run folder", (DiagnosisRecord,)),
    "event": PublishedSchema("What the command or URL of ddlrun launch --on-event gets", (EventRecord,)),
    "lint": PublishedSchema("Output of ddlrun lint --json", (list[LintRecord],)),
    "plan": PublishedSchema("Output of ddlrun network plan --json", (ForecastRecord,)),
    "probe": PublishedSchema("Output of ddlrun probe --json", (ProbeRecord,)),
    "racks": PublishedSchema("Output of ddlrun network racks --json", (HierarchyRecord,)),
    "runs": PublishedSchema("Output of ddlrun runs --json", (RunsRecord,)),
    "show-command": PublishedSchema("Output of ddlrun show command --json", (CommandRecord,)),
    "show-env": PublishedSchema("Output of ddlrun show env --json", (EnvironmentRecord,)),
    "show-hosts": PublishedSchema("Output of ddlrun show hosts --json", (HostsRecord,)),
    "show-placement": PublishedSchema("Output of ddlrun show placement --json", (ShownPlacement,)),
    "show-rankfile": PublishedSchema("Output of ddlrun show rankfile --json", (RankfileRecord,)),
    "show-schema": PublishedSchema("Output of ddlrun show schema --json", (SchemasRecord,)),
    "show-topology": PublishedSchema("Output of ddlrun show topology --json", (TopologyRecord,)),
    "top": PublishedSchema("Output of ddlrun top --json", (TopRecord,)),
    "tune": PublishedSchema("Output of ddlrun network tune --json", (TuneRecord,)),
    "run-binding": PublishedSchema("binding.json of a run folder", (BindingsRecord,)),
    "run-check": PublishedSchema("check.json of a run folder", (RunCheckRecord,)),
    "run-event": PublishedSchema("A line of ddl.jsonl of a run folder", (IterationsRecord, StragglerRecord)),
    "run-metrics": PublishedSchema("A line of metrics.jsonl of a run folder", (RankSample, HostSample)),
    "run-outcome": PublishedSchema("outcome.json of a run folder", (OutcomeRecord,)),
    "run-start": PublishedSchema("run.json of a run folder", (StartRecord,)),
    "run-plan": PublishedSchema(
        "plan.json of a run folder, and the output of ddlrun launch --dry-run --json", (WrittenPlan,)
    ),
    "profile": PublishedSchema("Tuning profile of ddlrun network tune", (ProfilesRecord,)),
    "machine": PublishedSchema("Description of a machine (YAML)", (MachineDescription,), closed=True),
    "network": PublishedSchema("Description of a network (YAML)", (NetworkDescription,), closed=True),
}
CONFIG = PublishedSchema("Config file (YAML)", ())


def render_schemas() -> dict[str, str]:
    """Return the text of every schema by its name."""
    schemas = {name: _schema(name, published) for name, published in SCHEMAS.items()}
    schemas["config"] = {**_head("config", CONFIG), **config_schema()}
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in sorted(schemas.items())}


def _head(name: str, published: PublishedSchema) -> Schema:
    return {"$schema": DIALECT, "$id": f"urn:ddlrun:{name}:{published.version}", "title": published.title}


def _schema(name: str, published: PublishedSchema) -> Schema:
    records = RecordTypes()
    types = [records.convert(kind) for kind in published.types]
    roots, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    for definition, optional in records.optional.items():
        required = definitions[definition].get("required", [])
        definitions[definition]["required"] = [key for key in required if key not in optional]
    root: Mapping[str, Any] = roots[0] if len(roots) == 1 else {"anyOf": list(roots)}
    if "$ref" in root:
        root = definitions.pop(root["$ref"].rpartition("/")[2])
    if published.types == (MachineDescription,):  # a Struct, which msgspec has no descriptions for
        texts = dict(field_docstrings(MachineDescription))
        root = {
            **root,
            "properties": {key: {"description": texts[key], **part} for key, part in root["properties"].items()},
        }
    head = _head(name, published)
    body = {key: value for key, value in root.items() if key not in head}
    schema = {**head, **body, **({"$defs": definitions} if definitions else {})}
    if published.closed:
        _visit_objects(schema, _close)
    return schema


def _close(schema: Schema) -> None:
    schema["additionalProperties"] = False


def _visit_objects(schema: Any, visit: Callable[[Schema], None]) -> None:  # noqa: ANN401 - JSON
    """Call a function with each part of a schema that lists the keys of an object."""
    if isinstance(schema, dict):
        if "properties" in schema:
            visit(schema)
        for part in schema.values():
            _visit_objects(part, visit)
    elif isinstance(schema, list):
        for part in schema:
            _visit_objects(part, visit)


def write_schemas() -> None:
    """Write every schema to its file, and remove the files of others."""
    FOLDER.mkdir(exist_ok=True)
    texts = render_schemas()
    for path in FOLDER.glob("*.json"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
