"""Options of a launch as keyword arguments, and their words on the command line."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ddlrun.errors import InputError

OptionValue = str | int | float | bool | None | Sequence[str | int] | Mapping[str, str]

# Options that are repeated for each of several values; all others take a list separated by commas.
REPEATED = frozenset({"mpiarg", "x"})
# Options that start no job; the command line has them.
WITHOUT_JOB = ("check_build", "dry_run", "json")


def render_options(options: Mapping[str, OptionValue]) -> list[str]:
    """Return the words for options, in which a dash is an underscore. Raises InputError.

    >>> render_options({"np": 2, "hosts": ["a", "b"], "share_gpus": True, "autotune": False, "timeout": None})
    ['-np', '2', '--hosts=a,b', '--share-gpus', '--no-autotune']
    >>> render_options({"env": {"SEED": "1"}, "m": True})
    ['-x', 'SEED', '-m']
    """
    return [word for name, value in options.items() for word in _words(name, value)]


def render_environment(options: Mapping[str, OptionValue]) -> dict[str, str]:
    """Return the variables of the option `env`, whose values stay out of the command line. Raises InputError."""
    variables = options.get("env") or {}
    if not isinstance(variables, Mapping):
        raise InputError(f"env={variables!r}: give a mapping of names to values, such as env={{'SEED': '1'}}")
    unset = [name for name, value in variables.items() if value is None]
    if unset:
        raise InputError(f"env: {unset[0]} is None; give a string, or leave the variable out")
    return {name: str(value) for name, value in variables.items()}


def _words(name: str, value: OptionValue) -> Iterator[str]:
    if name in WITHOUT_JOB:
        raise InputError(f"{name}: this option starts no job; use it on the command line")
    if name == "env":
        name, value = "x", list(render_environment({name: value}))
    option = ("-" if len(name) <= 2 else "--") + name.replace("_", "-")  # one dash for a short one, as in -m and -np
    if value is False:
        yield f"--no-{name.replace('_', '-')}"
    elif value is True:
        yield option
    elif isinstance(value, bytes | AbstractSet | Mapping):
        raise InputError(f"{name}={value!r}: give a string, a number, or a list of them")
    elif value is not None:
        parts = [str(value)] if isinstance(value, str | int | float) else list(map(str, value))
        for part in parts if name in REPEATED else [",".join(parts)]:
            # A switch that got a value by mistake must not leave it to the script's place.
            yield from (f"{option}={part}",) if option.startswith("--") else (option, part)
