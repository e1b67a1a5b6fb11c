"""Schema of the config file, from its table of keys and the options of `ddlrun launch`."""

from typing import Any

import click

from ddlrun.cli.launch import command as launch
from ddlrun.cli.options.types import RanksPerHostType, Time
from ddlrun.environment.library_settings import KINDS, LEVELS, SETTINGS, LibrarySetting
from ddlrun.mapping.topology_request import UNITS
from ddlrun.plan.config_file import CONTROLLERS, LAUNCH_KEYS, LISTS, SWITCHES

Schema = dict[str, Any]
DESCRIPTION = (
    "Options of `ddlrun launch` and `ddlrun show`, for --config-file. All keys are optional. A config file of Horovod "
    "is valid too."
)


def config_schema() -> Schema:
    """Return the schema of the config file, without its head."""
    root: Schema = {"description": DESCRIPTION, "type": ["object", "null"], "properties": {}}
    root["additionalProperties"] = False
    root["properties"]["env"] = {
        "description": "Variables of the ranks: --env NAME=VALUE.",
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    }
    root["properties"]["controller"] = {
        "description": "Horovod's controller; ddlrun starts Horovod over MPI.",
        "enum": list(CONTROLLERS),
    }
    parameters = {str(parameter.name): parameter for parameter in launch.params}
    for key, name in LAUNCH_KEYS.items():
        _insert(root, key, _key_schema(key, parameters[name]))
    for setting in SETTINGS:
        _insert(root, setting.yaml, _setting_schema(setting))
    return root


def _insert(schema: Schema, key: str, part: Schema) -> None:
    """Insert the schema of a dotted key."""
    *sections, last = key.split(".")
    for section in sections:
        empty: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
        schema = schema["properties"].setdefault(section, empty)
    schema["properties"][last] = part


def _key_schema(key: str, parameter: click.Parameter) -> Schema:
    text = f"{_help(parameter)} Same as {max(parameter.opts, key=len)} of ddlrun launch.".lstrip()
    if key in SWITCHES:
        return _described({"type": ["boolean", "null"]}, text)
    if key in LISTS:
        items = {"type": ["string", "integer"]}
        return _described({"type": ["array", "string", "integer", "null"], "items": items}, text)
    return _described(_option_schema(parameter), text)


def _setting_schema(setting: LibrarySetting) -> Schema:
    """Return the schema of a setting of a library."""
    text = f"{setting.variable} of the ranks"
    if setting.is_switch:
        return _described({"type": ["boolean", "null"]}, f"{text}.")
    kinds: dict[str, Schema] = {
        "count": {"type": ["integer", "null"], "minimum": 0},
        "share": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "level": {"enum": [*LEVELS, *map(str.lower, LEVELS), None]},
        "number": {"type": ["number", "null"], "minimum": 0},
        "megabytes": {"type": ["number", "null"], "minimum": 0},
    }
    return _described(
        kinds.get(setting.kind, {"type": ["string", "number", "null"]}), f"{text}: {KINDS[setting.kind][0]}."
    )


def _help(parameter: click.Parameter) -> str:
    return (parameter.help or "") if isinstance(parameter, click.Option) else ""


def _described(schema: Schema, text: str) -> Schema:
    return {"description": text, **schema}


def _option_schema(parameter: click.Parameter) -> Schema:
    """Return the schema of an option's values; null stands for an option that is not given."""
    kind = parameter.type
    if isinstance(kind, RanksPerHostType):
        return {"anyOf": [{"type": ["integer", "null"], "minimum": 1}, {"enum": list(UNITS)}]}
    if isinstance(kind, click.Choice):
        spellings = [] if kind.case_sensitive else [choice.lower() for choice in kind.choices]
        return {"enum": [*kind.choices, *spellings, None]}
    if isinstance(kind, click.IntRange | click.FloatRange) and not isinstance(kind, Time):
        limits = {"minimum": kind.min, "maximum": kind.max}
        number = "integer" if isinstance(kind, click.IntRange) else "number"
        return {"type": [number, "null"]} | {name: limit for name, limit in limits.items() if limit is not None}
    if kind is click.BOOL:
        return {"type": ["boolean", "null"]}
    return {"type": ["string", "number", "null"]}
