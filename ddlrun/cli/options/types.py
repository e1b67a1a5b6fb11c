"""Types of the values of options, with messages that name the remedy."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from ddlrun.errors import InputError
from ddlrun.mapping.topology_request import UNITS
from ddlrun.units import parse_seconds
from ddlrun.wording import did_you_mean

# Words of other launchers and tools -> value of an option here.
SYNONYMS = {
    "socket": "package", "sockets": "package", "cpu": "core", "cores": "core", "thread": "core", "hwthread": "core",
    "no": "none", "off": "none", "ram": "local", "torque": "pbs", "gridengine": "sge", "k8s": "kubernetes",
}  # fmt: skip
MOST_SECONDS = 1e9
LOOPBACK = "127.0.0.1"


class Choice(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2
    """One of several words; the message about another word suggests the nearest one."""

    def __init__(self, choices: Sequence[str], synonyms: Mapping[str, str] = SYNONYMS) -> None:
        """Set the choices, and what words of other tools stand for."""
        super().__init__(choices)
        self._synonyms = {word: name for word, name in synonyms.items() if name in choices}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        """Convert a word; fail where it is none of the choices."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            hint = did_you_mean(str(value), self.choices, self._synonyms)
            return self.fail(f"{value!r} is none of {', '.join(self.choices)}{hint}", param, ctx)


class _Range:
    """A range of values that the help does not show."""

    def _describe_range(self) -> str:
        return ""


class WholeNumber(_Range, click.IntRange):
    """A whole number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's own
        """Convert a value; fail where it is no such number."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            return self.fail(f"{value!r} is not a whole number{_range(self.min, self.max)}", param, ctx)


class Number(_Range, click.FloatRange):
    """A number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's own
        """Convert a value; fail where it is no such number."""
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            number = float("nan")
        if not abs(number) < float("inf"):
            self.fail(f"{value!r} is not a number{_range(self.min, self.max)}", param, ctx)
        return number


def _range(least: float | None, most: float | None) -> str:
    if most is not None:
        return f" from {least or 0:g} to {most:g}"
    return "" if least is None else f" of at least {least:g}"


class Time(_Range, click.FloatRange):
    """A time in seconds, or with its unit: 90, 90s, 1.5m, 2h or 7d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's own
        """Convert a value to seconds; fail where it is no such time."""
        seconds = self._parse(str(value))
        if not (self.min or 0) <= seconds < MOST_SECONDS:
            least = f" of at least {self.min:g}s" if self.min else ""
            self.fail(f"{value!r} is not a time{least}, such as 90, 90s or 5m", param, ctx)
        return seconds

    def _parse(self, text: str) -> float:
        """Return seconds; -1 where the text is not a time."""
        with suppress(ValueError):
            return float(text)
        with suppress(InputError):
            return parse_seconds(text, self.name)
        return -1.0


class RanksPerHostType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A number of ranks per host, or the unit that each rank stands for."""

    name = "N|gpu|package|numa|core|gpu-or-core"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ANN401
        """Convert a value to a positive number or a unit; fail where it is neither."""
        if value in UNITS:
            return str(value)
        if str(value).isascii() and str(value).isdigit() and int(value):
            return int(value)
        hint = did_you_mean(str(value), UNITS, SYNONYMS)
        return self.fail(f"{value!r} is neither a positive number nor one of {', '.join(UNITS)}{hint}", param, ctx)


class AddressType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A port, or an address of this computer and a port."""

    name = "[ADDRESS:]PORT"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Convert a value to an address and a port; fail where it is none."""
        address, _, port = value.rpartition(":")
        return address.strip("[]") or LOOPBACK, PORT.convert(port, param, ctx)


COUNT = WholeNumber(min=1)
SECONDS = Time()
PORT = WholeNumber(0, 65535)
