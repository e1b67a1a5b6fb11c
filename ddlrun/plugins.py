"""Plug-ins: packages that add schedulers and process managers to ddlrun through entry points.

The name of such a package begins with ddlrun-. No other package is searched, as reading the metadata of every installed
package would take longer than the rest of a start.
"""

import os
import sys
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from ddlrun.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoint, PathDistribution

PREFIX, SUFFIX = "ddlrun_", ".dist-info"
T = TypeVar("T")


def plugin_names(group: str) -> list[str]:
    """Return the names of the entry points of a group, without loading them."""
    return [point.name for _, point in _entry_points(group)]


def load_plugins(group: str, kind: type[T]) -> dict[str, T]:
    """Load the entry points of a group by name. Raises InputError where one cannot be loaded, or is of another type."""

    def is_kind(value: object) -> TypeGuard[T]:
        return isinstance(value, kind)

    return {point.name: _load(package, point, kind.__name__, is_kind) for package, point in _entry_points(group)}


def load_plugin_classes(group: str, base: type[T]) -> list[type[T]]:
    """Load the entry points of a group. Raises InputError where one cannot be loaded, or is not a class of a kind."""

    def is_class(value: object) -> TypeGuard[type[T]]:
        return isinstance(value, type) and issubclass(value, base)

    return [_load(package, point, f"class of {base.__name__}", is_class) for package, point in _entry_points(group)]


def _load(package: "PathDistribution", point: "EntryPoint", kind: str, fits: "Callable[[object], TypeGuard[T]]") -> T:
    where = f"plug-in {package.name} {package.version}: {point.group}: {point.name} = {point.value}"
    remedy = f"repair the package, or: pip uninstall {package.name}"
    try:
        value = point.load()
    except Exception as error:  # any code of another package runs here
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{where} cannot be loaded ({reason}); {remedy}") from error
    if not fits(value):
        raise InputError(f"{where} is not a {kind}; {remedy}")
    return value


def _entry_points(group: str) -> "Iterator[tuple[PathDistribution, EntryPoint]]":
    """Yield the entry points of a group, each with its package."""
    folders = _metadata_folders()
    if not folders:
        return
    from importlib.metadata import Distribution  # noqa: PLC0415 - 25 ms, where there is a plug-in

    for folder in folders:
        package = Distribution.at(folder)
        for point in package.entry_points:
            if point.group == group:
                yield package, point


def _metadata_folders() -> list[str]:
    """Return the metadata folders of installed plug-ins; of two versions of one, the first on sys.path."""
    folders: dict[str, str] = {}
    for parent in sys.path:
        try:
            names = os.listdir(parent or ".")
        except OSError:  # a zip file, or a folder that does not exist
            continue
        for name in names:
            if name.startswith(PREFIX) and name.endswith(SUFFIX):
                folders.setdefault(name.partition("-")[0], os.path.join(parent, name))
    return sorted(folders.values())
