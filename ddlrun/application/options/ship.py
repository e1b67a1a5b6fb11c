"""The files of --ship: the code around the script, its Python environment or that of a lock file, and named paths."""

import os
import sys

from ddlrun.application.options.hosts import Options
from ddlrun.application.reporter import Reporter
from ddlrun.errors import InputError
from ddlrun.ship.request import ShipRequest, ShipSource, SourceKind, arrange_sources, is_inside, parse_fetch, parse_ship
from ddlrun.wording import did_you_mean

# The element of --ship that names a lock file.
LOCK = "env="


def read_ship(options: Options, program: tuple[str, ...]) -> ShipRequest | None:
    """Return the files that travel to the hosts; None without --ship.

    Raises InputError for what does not exist, cannot travel or must not travel in plain text.
    """
    if not options.get("ship"):
        alone = next((option for option in ("ship-dir", "fetch") if options.get(option.replace("-", "_"))), None)
        if alone:
            raise InputError(f"`--{alone}` has no effect without `--ship`; add `--ship` code")
        return None

    if options.get("encrypt"):
        raise InputError("`--ship` does not encrypt the files on their way; leave out `--encrypt` or `--ship`")
    code, environment, paths = parse_ship(options["ship"])
    if options.get("fetch") and not code:
        raise InputError("`--fetch`: without `--ship` code, ranks write into the current folder of each host itself")
    if options.get("fetch") and not os.access(os.getcwd(), os.W_OK | os.X_OK):
        raise InputError(f"`--fetch`: {os.getcwd()} is not writable, where results come back; start in another folder")
    sources = _data_sources(paths)
    imports: list[str] = []
    if code:
        sources.append(_code_source(program))
    if environment:
        own_sources, imports = _environment_sources(program)
        sources += own_sources
    return ShipRequest(
        sources=arrange_sources(sources),
        folder=read_folder(options.get("ship_dir")),
        working_folder=os.getcwd(),
        import_folders=tuple(imports),
        fetched=parse_fetch(options["fetch"], os.getcwd()) if options.get("fetch") else (),
        locked=bool(options.get("locked_environment")),
    )


def read_folder(folder: str | None) -> str:
    """Return the folder of shipped files on each host. Raises InputError for a relative path."""
    if folder is None:
        return f"/tmp/ddlrun-ship-{os.geteuid()}"  # noqa: S108 - it is made so that this user alone can write there
    if not os.path.isabs(folder):
        raise InputError(f"`--ship-dir` {folder}: write the whole path, such as /local/scratch/ddlrun")
    return os.path.normpath(folder)


def _data_sources(paths: tuple[str, ...]) -> list[ShipSource]:
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise InputError(*(f"`--ship`: {path} does not exist{did_you_mean(path, ('code', 'env'))}" for path in missing))
    above = [path for path in paths if is_inside(os.getcwd(), os.path.abspath(path))]
    if above:
        raise InputError(
            f"`--ship`: {above[0]} contains the current folder; write code for its files, and name data in it"
        )
    return [ShipSource(SourceKind.DATA, os.path.abspath(path)) for path in paths]


def _code_source(program: tuple[str, ...]) -> ShipSource:
    """Return the folder of the code: the repository around the script, or else its folder. Raises InputError."""
    from ddlrun.ship.files import find_repository  # noqa: PLC0415 - 3 ms, for --ship code alone

    folder = _script_folder(program)
    barred = (os.path.expanduser("~"), "/")
    repository = find_repository(folder)
    if repository is not None and repository not in barred:
        folder = repository
    if folder in barred:
        raise InputError(
            f"`--ship` code: the script is directly in {folder}, all of which would travel; put it into a folder of "
            "its own, or name what travels: `--ship` PATH,..."
        )
    return ShipSource(SourceKind.CODE, folder)


def _script_folder(program: tuple[str, ...]) -> str:
    """Return the folder of a program's script, or of the program itself; the current folder for any other program."""
    if program[1:2] == ("-m",):
        return os.getcwd()
    own_file = "/" in program[0] and not os.path.basename(program[0]).startswith("python")
    words = (*program[1:2], program[0]) if not own_file else program[:1]
    script = next((word for word in words if os.path.isfile(word) and (own_file or word.endswith(".py"))), None)
    return os.getcwd() if script is None else os.path.dirname(os.path.abspath(script))


def _environment_sources(program: tuple[str, ...]) -> tuple[list[ShipSource], list[str]]:
    """Return the environment of the program's Python with its editable packages, and the folders of these."""
    from ddlrun.ship.environment import find_editable, find_environment  # noqa: PLC0415 - 12 ms, for --ship env alone

    own = os.path.basename(program[0]).startswith("python") and "/" in program[0]
    folder = find_environment(program[0] if own else sys.executable)
    imports = find_editable(folder)
    packages = [ShipSource(SourceKind.PACKAGE, path) for path in imports]
    return [ShipSource(SourceKind.ENVIRONMENT, folder), *packages], imports


def use_locked_environment(
    options: Options, program: tuple[str, ...], reporter: Reporter
) -> tuple[Options, tuple[str, ...]]:
    """Return options and program with the environment of a lock file, where --ship names one.

    The environment is made here if this was not done before. Raises InputError where it cannot be made.
    """
    words = (options.get("ship") or "").split(",")
    files = [word.removeprefix(LOCK) for word in words if word.startswith(LOCK)]
    if not files:
        return options, program
    if len(files) > 1 or "env" in words:
        raise InputError(f"`--ship` {options['ship']!r}: several environments; name one")
    if options.get("container"):
        raise InputError(f"`--ship` env={files[0]}: ranks in a container have the Python of its image; leave it out")
    if program[0] != sys.executable:
        raise InputError(
            f"`--ship` env={files[0]}: {program[0]} is not a Python script; start a .py file, or a module with `-m`"
        )
    from ddlrun.ship.lock_file import make_environment, read_lock  # noqa: PLC0415 - 8 ms, for --ship env alone

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = make_environment(read_lock(files[0]), f"{cache}/ddlrun/environments", reporter.line)
    shipped = ",".join("env" if word.startswith(LOCK) else word for word in words)
    return {**options, "ship": shipped, "locked_environment": True}, (f"{folder}/bin/python", *program[1:])
