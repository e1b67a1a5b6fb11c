"""The element env=FILE of --ship: an environment that is made from a lock file, and runs the script."""

import os
import sys

from ddlrun.application.job_hosts import Options
from ddlrun.application.reporter import Reporter
from ddlrun.errors import InputError

PREFIX = "env="


def use_locked_environment(
    options: Options, program: tuple[str, ...], reporter: Reporter
) -> tuple[Options, tuple[str, ...]]:
    """Return options and program with the environment of a lock file, where --ship names one.

    The environment is made here if this was not done before. Raises InputError where it cannot be made.
    """
    words = (options.get("ship") or "").split(",")
    files = [word.removeprefix(PREFIX) for word in words if word.startswith(PREFIX)]
    if not files:
        return options, program
    if len(files) > 1 or "env" in words:
        raise InputError(f"`--ship` {options['ship']!r}: several environments; name one")
    if options.get("container"):
        raise InputError(f"`--ship` env={files[0]}: ranks in a container have the Python of its image; leave it out")
    if program[0] != sys.executable:
        raise InputError(
            f"`--ship` env={files[0]}: {program[0]} is no script of Python; start a .py file, or a module with `-m`"
        )
    from ddlrun.ship.lock_file import make_environment, read_lock  # noqa: PLC0415 - 8 ms, for --ship env alone

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = make_environment(read_lock(files[0]), f"{cache}/ddlrun/environments", reporter.line)
    shipped = ",".join("env" if word.startswith(PREFIX) else word for word in words)
    return {**options, "ship": shipped, "locked_environment": True}, (f"{folder}/bin/python", *program[1:])
