"""Types from which msgspec generates the schemas of ddlrun's records: TypedDicts, dataclasses and NamedTuples."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

import msgspec

# The attributes that TypedDicts, dataclasses and NamedTuples have.
RECORD_MARKS = ("__optional_keys__", "__dataclass_fields__", "_fields", "UNRECORDED")
SCHEMA_KEY = "Name and version of this schema, which is its $id."


class RecordTypes:
    """Converts types to types for msgspec, in which each record is a TypedDict with described fields.

    - A dataclass or a NamedTuple stands for the object of its fields.
    - Annotated[dict[str, Any], A, B] is the object with the fields of all these records; B wins over A.
    - Annotated[str, E] is the value of an Enum.

    Attributes:
        optional: the optional keys of each TypedDict, by its name.
    """

    def __init__(self) -> None:
        self.optional: dict[str, set[str]] = {}
        self._converted: dict[tuple[type, ...], Any] = {}

    def convert(self, kind: Any) -> Any:  # noqa: ANN401 - a type
        """Return the type for msgspec."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._convert_annotated(kind, arguments)
        if is_record(kind):
            return self._convert_records(kind)
        if origin in (Union, UnionType):
            return Union[tuple(map(self.convert, arguments))]  # noqa: UP007 - of a computed tuple
        if origin is Literal or not arguments:
            return kind
        return origin[tuple(argument if argument is ... else self.convert(argument) for argument in arguments)]

    def _convert_annotated(self, kind: Any, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a type
        classes = [argument for argument in arguments[1:] if isinstance(argument, type)]
        if not classes:
            return kind
        if issubclass(classes[0], Enum):
            return Literal[tuple(member.value for member in classes[0])]
        return self._convert_records(*classes)

    def _convert_records(self, *classes: type) -> Any:  # noqa: ANN401 - a type
        if classes not in self._converted:
            name = classes[0].__name__
            hints, descriptions = dict[str, Any](), dict[str, str]()
            for cls in classes:
                unrecorded = getattr(cls, "UNRECORDED", ())
                hints |= {
                    key: hint for key, hint in get_type_hints(cls, include_extras=True).items() if key not in unrecorded
                }
                descriptions |= dict(field_docstrings(cls))
            fields = {key: self._convert_field(key, hint, descriptions.get(key)) for key, hint in hints.items()}
            self.optional[name] = {key for cls in classes for key in getattr(cls, "__optional_keys__", ())}
            record = TypedDict(name, fields)  # type: ignore[misc]  # a computed type
            record.__doc__ = json_words(classes[0].__doc__ or "")
            self._converted[classes] = record
        return self._converted[classes]

    def _convert_field(self, key: str, hint: Any, description: str | None) -> Any:  # noqa: ANN401 - types
        description = SCHEMA_KEY if key == "schema" else description
        converted = self.convert(hint)
        return Annotated[converted, msgspec.Meta(description=description)] if description else converted


def is_record(kind: Any) -> bool:  # noqa: ANN401 - a type
    """Return True for a TypedDict, a dataclass or a NamedTuple."""
    return isinstance(kind, type) and any(hasattr(kind, name) for name in RECORD_MARKS)


def field_docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class and its bases that a docstring follows, with that docstring."""
    module = sys.modules[cls.__module__]
    classes = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]
    definition = next((node for node in classes if node.name == cls.__name__), None)
    if definition is None:
        return
    for base in definition.bases:
        if isinstance(base, ast.Name) and is_record(vars(module).get(base.id)):
            yield from field_docstrings(vars(module)[base.id])
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield field.target.id, json_words(str(text.value.value))


def json_words(text: str) -> str:
    """Return a docstring in one line, with the words of JSON in place of those of Python."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))
