"""YAML text with the lines of its keys: a key that is given twice is an error."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml
from yaml import MappingNode

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from yaml import Node


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A YAML document, and where its keys are."""

    content: object
    lines: dict[str, int]
    """Number of the line of each key, by its dotted name."""


def parse_yaml(text: str, where: str) -> YamlDocument:
    """Parse a YAML document. Raises InputError with line and column, and for each key that is given twice."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        keys = list(_keys(root)) if root is not None else []
        content = loader.construct_document(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        remedy = "; indent with spaces" if mark is not None and text[mark.index : mark.index + 1] == "\t" else ""
        raise InputError(f"{where}{place}: {_describe(error)}{remedy}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    lines: dict[str, int] = {}
    problems: list[str] = []
    for key, line in keys:
        if key in lines:
            problems.append(f"{where}, line {line}: {key} is given twice, first on line {lines[key]}; leave one out")
        lines.setdefault(key, line)
    if problems:
        raise InputError(*problems)
    return YamlDocument(content, lines)


def _describe(error: Exception) -> str:
    """Return the problem of a syntax error in one line."""
    return " ".join(str(getattr(error, "problem", None) or error).split())


def _keys(node: "Node", above: str = "") -> Iterator[tuple[str, int]]:
    """Yield the dotted name and the line of each key, in the order of the text."""
    if not isinstance(node, MappingNode):
        return
    for key, value in node.value:
        name = f"{above}{key.value}"
        yield name, key.start_mark.line + 1
        yield from _keys(value, f"{name}.")
