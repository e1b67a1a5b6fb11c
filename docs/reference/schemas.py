"""Generator of ddlrun/schemas: the JSON Schemas that programs and editors build on, by `make reference`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ddlrun.machine.preset import MachineDescription
from ddlrun.metrics.samples import HostSample, RankSample
from ddlrun.plan.outcome import OutcomeRecord
from ddlrun.plan.records import ShownPlacement, WrittenPlan
from ddlrun.preflight.records import CheckRecord
from ddlrun.runs.events import EventRecord
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
    "check": PublishedSchema("Output of ddlrun check --json", (CheckRecord,)),
    "event": PublishedSchema(
        "A line of events.jsonl of a run folder, and what the command or URL of ddlrun launch --on-event gets",
        (EventRecord,),
    ),
    "machine": PublishedSchema("Description of a machine (YAML)", (MachineDescription,), closed=True),
    "metrics": PublishedSchema("A line of metrics.jsonl of a run folder", (RankSample, HostSample)),
    "outcome": PublishedSchema("outcome.json of a run folder", (OutcomeRecord,)),
    "placement": PublishedSchema("Output of ddlrun show placement --json", (ShownPlacement,)),
    "plan": PublishedSchema(
        "plan.json of a run folder, and the output of ddlrun launch --dry-run --json", (WrittenPlan,)
    ),
}
CONFIG = PublishedSchema("Config file (YAML)", ())


def render_schemas() -> dict[str, str]:
    """Return the text of every schema by its name."""
    schemas = {name: build_schema(name, published) for name, published in SCHEMAS.items()}
    schemas["config"] = {**_head("config", CONFIG), **config_schema()}
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in sorted(schemas.items())}


def _head(name: str, published: PublishedSchema) -> Schema:
    return {"$schema": DIALECT, "$id": f"urn:ddlrun:{name}:{published.version}", "title": published.title}


def build_schema(name: str, published: PublishedSchema) -> Schema:
    """Return the schema of the types of a document."""
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
