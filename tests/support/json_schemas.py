"""Validation of ddlrun's output and files with its published schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[2] / "ddlrun" / "schemas"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def read_schema(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))


def close(schema: object) -> object:
    """Return a schema with which keys that it does not list are errors, in the object itself and in all below."""
    if isinstance(schema, list):
        return [close(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(part) for key, part in schema.items()}
    return {"additionalProperties": False, **closed} if "properties" in schema else closed


def errors(document: object, name: str) -> list[str]:
    """Return the paths and messages of what a schema rejects, unknown keys included."""
    validator = jsonschema.Draft202012Validator(close(read_schema(name)))  # type: ignore[arg-type]  # a schema too
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def validate(document: object, name: str) -> None:
    """Assert that a document is valid."""
    assert errors(document, name) == []


def validate_run_folder(folder: Path) -> set[str]:
    """Assert that all JSON in a run folder is valid; return the names of its files."""
    paths = {path.name: path for path in folder.iterdir() if path.suffix in (".json", ".jsonl")}
    for name, path in paths.items():
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for line in lines:
            validate(json.loads(line), RUN_FILES[name])
    return set(paths)


RUN_FILES = {
    "plan.json": "run-plan", "outcome.json": "run-outcome", "check.json": "run-check", "binding.json": "run-binding",
    "ddl.jsonl": "run-event", "metrics.jsonl": "run-metrics", "run.json": "run-start", "doctor.json": "doctor",
    "events.jsonl": "event",
}  # fmt: skip
