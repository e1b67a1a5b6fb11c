"""Validation of ddlrun's JSON: with its schemas, and with what ddlrun prints."""

import functools
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema

from ddlrun.host_names import expand_names
from ddlrun.hosts import fold
from ddlrun.units import render_bytes, render_rate, render_seconds, render_size

FOLDER = Path(__file__).parents[2] / "ddlrun" / "schemas"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
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
    """Assert that all JSON in a run folder can be read and is valid; return the names of its files."""
    paths = {path.name: path for path in folder.iterdir() if path.suffix in (".json", ".jsonl")}
    for name, path in paths.items():
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for document in map(json.loads, lines):
            if name in RUN_FILES:
                validate(document, RUN_FILES[name])
    return set(paths)


RUN_FILES = {
    "plan.json": "plan", "outcome.json": "outcome", "metrics.jsonl": "metrics", "events.jsonl": "event",
}  # fmt: skip


def unsaid(document: object, text: str, *left_out: str) -> list[str]:
    """Return the values of ddlrun's JSON that its text lacks, each behind its path, such as `ranks.host`.

    Lists may be folded or quoted, numbers have any form that ddlrun has for them; null, true and false are not sought,
    nor is what stands at or below the paths of `left_out`.
    """
    words = f" {' '.join(_expand(text).split())} "
    sought = (leaf for leaf in _leaves(document, "") if not _is_at(leaf[0], ["schema", *left_out]))
    return [f"{path}: {value!r}" for path, value in sought if not any(_has(words, form) for form in _forms(value))]


def _expand(text: str) -> str:
    """Return a text, followed by the host names and the numbers in its ranges."""
    names = [name for word in re.findall(r"[\w.-]*\[[\d,-]+\]", text) for name in expand_names(word, "")]
    ranges = [range(int(first), int(last) + 1) for first, last in re.findall(r"\b(\d{1,3})-(\d{1,3})\b", text)]
    return " ".join([text, *names, *(str(number) for numbers in ranges for number in numbers)])


def _has(words: str, form: str) -> bool:
    """Return True if a form stands in a text by itself, not as part of a word or a number."""
    return re.search(rf"(?<![\w.]){re.escape(form)}(?!\w)", words) is not None


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield the values of a document each with its path; a list of words is one value."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and not (value and all(isinstance(part, str) for part in value)):
        for part in value:
            yield from _leaves(part, path)
    elif value is not None and not isinstance(value, bool):
        yield path, value


def _is_at(path: str, patterns: Iterable[str]) -> bool:
    """Return True for a path that matches one of the patterns, or is below one that does."""
    return any(fnmatch(f"{path}.", f"{pattern}.*") for pattern in patterns)


def _forms(value: object) -> Iterator[str]:
    """Yield the forms in which a text may have a value."""
    if isinstance(value, list):
        yield from (fold(value), shlex.join(value), *(render(map(_normal, value)) for render in (" ".join, ", ".join)))
    elif isinstance(value, int | float):
        renderers = (render_bytes, render_rate, render_seconds, lambda number: render_seconds(number, 4))
        yield from (render(value) for render in renderers)
        yield from (form.format(value) for form in ("{:g}", "{:.3g}", "{:.1f}", "{:.0f}", "{:,}", "{:,.0f}", "{}"))
        yield from (form.format(100 * value) for form in ("{:.3g} %", "{:.1f} %", "{:.0f} %"))
        yield f"{value:.3g}x"
        if isinstance(value, int):
            yield render_size(value)
    else:
        yield from (_normal(str(value)), str(value).replace("_", "-"))


def _normal(text: str) -> str:
    return " ".join(text.split())
