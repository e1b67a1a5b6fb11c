"""--check-build: the builds of the frameworks in this Python."""

import os
import sys

import click

from ddlrun import __version__
from ddlrun.environment.framework_builds import LIBRARIES, render_builds
from ddlrun.errors import DdlrunError
from ddlrun.managers.installation import probe_builds, start_mpirun_query
from ddlrun.managers.openmpi.installation import mpi4py_variables


def show_builds(ctx: click.Context) -> None:
    """Print the builds and exit: that needs neither a script nor hosts."""
    try:
        manager = start_mpirun_query(None, os.environ).result()
        mpi, library = str(manager), mpi4py_variables(manager.find_library(), os.environ)
    except DdlrunError as error:
        mpi, library = str(error), {}
    heading = f"ddlrun {__version__}, Python {sys.version.split()[0]} ({sys.executable})\n{mpi}"
    click.echo(render_builds(probe_builds(sys.executable, list(LIBRARIES), library), heading), nl=False)
    ctx.exit()
