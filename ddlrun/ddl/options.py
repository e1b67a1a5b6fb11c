"""The DDL string, such as "-mode r:4x2x3 -dump_iter 100": parse and render."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from ddlrun.errors import InputError
from ddlrun.topology import Topology, parse_topology

MODES = {
    "b": "NCCL, pipelined by us, else ring",
    "n": "NCCL, else ring",
    "r": "ring",
    "m": "MPI's own reduce_scatter and allgatherv",
    "c": "recursive halving and doubling",
    "p": "explore: the best for each dimension",
}
# Option -> its field, the values allowed (None: any), its meaning.
NUMBERS = {
    "-dump_iter": ("dump_iter", None, "report every N iterations, 0: never"),
    "-dev_sync": ("dev_sync", (0, 1, 2), "synchronise the device never, at the start, at start and end"),
    "-rebind_iter": ("rebind_iter", None, "look for slow learners every N iterations, 0: never"),
    "-dbg_level": ("dbg_level", (0, 1, 2), "say nothing, check and say what is chosen, say all"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a DDL string. `topology` None: the launcher's, else one ring of all learners."""

    mode: str = "r"
    topology: Topology | None = None
    dump_iter: int = 0
    dev_sync: int = 0
    rebind_iter: int = 0
    dbg_level: int = 0


def parse_options(text: str, where: str = "DDL_OPTIONS") -> Options:
    """Parse a DDL string; an option that is given twice has its last value. `where` names the source in errors.

    Raises InputError with all problems: an unknown option or letter, a value that is missing or wrong.

    >>> parse_options("-mode r:4x2x3 -dump_iter 100").topology
    Topology(dims=(4, 2, 3))
    """
    words = text.split()
    options, problems = Options(), list[str]()
    while words:
        name = words.pop(0)
        reader = _reader(name)
        if reader is None:
            problems.append(f"{where} {text!r}: unknown option {name!r}; {_allowed()}")
        elif not words or _reader(words[0]) is not None:
            problems.append(f"{where} {text!r}: {name} has no value; {_allowed()}")
        else:
            try:
                options = reader(options, name, words.pop(0), where)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(*problems)
    return options


def check_size(topology: Topology, size: int, where: str) -> None:
    """Raise InputError unless the product of the dimensions is the number of ranks."""
    if topology.size != size:
        raise InputError(
            f"{where} {str(topology)!r}: invalid dim size: {' x '.join(map(str, topology.dims))} = {topology.size} "
            f"learners, but {size} {'rank runs' if size == 1 else 'ranks run'}; the product must be {size}"
        )


_Reader = Callable[[Options, str, str, str], Options]


def _reader(name: str) -> _Reader | None:
    return _mode if name == "-mode" else _number if name in NUMBERS else None


def _mode(options: Options, _name: str, value: str, where: str) -> Options:
    letter, colon, shape = value.partition(":")
    if letter not in MODES:
        letters = ", ".join(f"{key} ({meaning})" for key, meaning in MODES.items())
        raise InputError(f"{where}: -mode {value!r}: unknown letter {letter!r}; one of {letters}, then :XxYxZ")
    return replace(options, mode=letter, topology=parse_topology(shape, f"{where}: -mode") if colon else None)


def _number(options: Options, name: str, value: str, where: str) -> Options:
    field, values, meaning = NUMBERS[name]
    if not value.isascii() or not value.isdigit() or (values is not None and int(value) not in values):
        allowed = "a number from 0 on" if values is None else ", ".join(map(str, values))
        raise InputError(f"{where}: {name} {value!r} is not {'' if values is None else 'one of '}{allowed}: {meaning}")
    return Options(**{**asdict(options), field: int(value)})


def _allowed() -> str:
    numbers = (f"{name} {'|'.join(map(str, values)) if values else 'N'}" for name, (_, values, _) in NUMBERS.items())
    return f"known are -mode {'|'.join(MODES)}:XxYxZ, {', '.join(numbers)}"
