"""The module json without its regular expressions, which take 5 ms to import.

It calls the C code that json calls. Where a Python has none, or one with other arguments, json itself is imported.
"""

from __future__ import annotations

try:
    import _json
except ImportError:  # not CPython
    _json = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Reader:
    """The settings of json.JSONDecoder, which the C code reads."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float


def parse_json(text: str) -> Any:  # noqa: ANN401 - whatever it is
    """Return the value of a text without white space around it. Raises ValueError.

    >>> parse_json('{"a": [1, 2.5, "x", null]}')
    {'a': [1, 2.5, 'x', None]}
    """
    try:
        scan = _json.make_scanner(_Reader())  # type: ignore[arg-type]
    except (AttributeError, TypeError):
        import json  # noqa: PLC0415 - for such Pythons alone

        return json.loads(text)
    try:
        value, end = scan(text, 0)
    except (StopIteration, SystemError) as error:  # the latter stands for the one of json.decoder, which is not loaded
        raise ValueError(f"{text[:100]!r} is not JSON") from error
    if end != len(text):
        raise ValueError(f"{text[end : end + 100]!r} follows the JSON")
    return value


def render_json(value: object) -> str:
    r"""Return a value as JSON, in ASCII. Raises TypeError.

    >>> render_json({"a": [1, 2.5, "é", None]})
    '{"a": [1, 2.5, "\\u00e9", null]}'
    """
    try:
        encode = _json.make_encoder({}, _refuse, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)
    except (AttributeError, TypeError):
        import json  # noqa: PLC0415 - for such Pythons alone

        return json.dumps(value)
    return "".join(encode(value, 0))


def _refuse(value: object) -> None:
    raise TypeError(f"{value!r} is not a JSON value")
