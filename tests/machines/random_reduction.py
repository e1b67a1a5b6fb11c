"""Reduction of random machines to the smallest that shows a disagreement."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tests.machines.random_shapes import CoreShape, Shape, State, is_valid


def reduce_shape(shape: Shape, fails: Callable[[Shape], bool]) -> Shape:
    """Return the smallest shape found for which `fails` is true, beginning with one for which it is."""
    while True:
        smaller = (other for other in _smaller_shapes(shape) if is_valid(other) and _size(other) < _size(shape))
        failing = next((other for other in smaller if fails(other)), None)
        if failing is None:
            return shape
        shape = failing


def _size(shape: Shape) -> int:
    """Return a number that is smaller for a simpler shape."""
    changed = sum(getattr(shape, field) != value for field, value in Shape._field_defaults.items())
    threads = [state for core in shape.cores for state in core.threads]
    groups = sum(len({getattr(core, field) for core in shape.cores}) for field in ("package", "node", "die", "l3"))
    special = sum(state is not State.FREE for state in threads)
    others = groups + len(shape.gpus) + len(shape.nics) + len(shape.forbidden_nodes)
    others += sum(core.l1 for core in shape.cores)
    size: int = 20 * changed + 10 * len(threads) + 3 * special + others
    return size


def _smaller_shapes(shape: Shape) -> Iterator[Shape]:
    """Yield shapes that are simpler than `shape`, the simplest first."""
    for field, value in Shape._field_defaults.items():
        yield shape._replace(**{field: value})
    for package in sorted({core.package for core in shape.cores}):
        yield _with_cores(shape, [core for core in shape.cores if core.package != package])
    for change in _changes_of_all():
        yield _with_cores(shape, map(change, shape.cores))
    for index, core in enumerate(shape.cores):
        before, after = shape.cores[:index], shape.cores[index + 1 :]
        yield _with_cores(shape, [*before, *after])
        yield from (_with_cores(shape, [*before, other, *after]) for other in _smaller_cores(core))
    for index in range(len(shape.gpus)):
        yield shape._replace(gpus=shape.gpus[:index] + shape.gpus[index + 1 :])
    for index in range(len(shape.nics)):
        yield shape._replace(nics=shape.nics[:index] + shape.nics[index + 1 :])
    for node in shape.forbidden_nodes:
        yield shape._replace(forbidden_nodes=shape.forbidden_nodes - {node})


def _changes_of_all() -> Iterator[Callable[[CoreShape], CoreShape]]:
    """Yield changes that make every core simpler."""
    yield from (partial(_freed, state=state) for state in list(State)[1:])
    for field in ("node", "l3", "die"):
        yield lambda core, field=field: core._replace(**{field: core.package})  # type: ignore[misc]
        yield lambda core, field=field: core._replace(**{field: 0})  # type: ignore[misc]
    yield lambda core: core._replace(l1=0)
    yield lambda core: core._replace(threads=core.threads[:1])
    yield lambda core: core._replace(threads=core.threads[:-1])


def _smaller_cores(core: CoreShape) -> Iterator[CoreShape]:
    yield core._replace(threads=core.threads[:-1])
    yield core._replace(l1=0)
    for thread in range(len(core.threads)):
        yield core._replace(threads=(*core.threads[:thread], State.FREE, *core.threads[thread + 1 :]))


def _freed(core: CoreShape, state: State) -> CoreShape:
    return core._replace(threads=tuple(State.FREE if before is state else before for before in core.threads))


def _with_cores(shape: Shape, cores: Iterable[CoreShape]) -> Shape:
    cores = tuple(cores)
    nodes = {core.node for core in cores}
    gpus, nics = (tuple(node if node in nodes else None for node in near) for near in (shape.gpus, shape.nics))
    return shape._replace(cores=cores, gpus=gpus, nics=nics, forbidden_nodes=shape.forbidden_nodes & nodes)
