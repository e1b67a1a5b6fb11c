"""The builds of the frameworks in this Python."""

import os
import sys

from ddlrun import __version__
from ddlrun.environment.framework_builds import LIBRARIES, render_builds
from ddlrun.errors import DdlrunError
from ddlrun.managers.installation import probe_builds, start_mpirun_query
from ddlrun.managers.program_mpi import mpi4py_variables


def describe_builds() -> str:
    """Return the versions and builds of Python, MPI and the frameworks: that needs neither a script nor hosts."""
    try:
        manager = start_mpirun_query(None, os.environ).result()
        mpi, library = str(manager), mpi4py_variables(manager.find_library(), os.environ)
    except DdlrunError as error:
        mpi, library = str(error), {}
    heading = f"ddlrun {__version__}, Python {sys.version.split()[0]} ({sys.executable})\n{mpi}"
    return render_builds(probe_builds(sys.executable, list(LIBRARIES), library), heading)
