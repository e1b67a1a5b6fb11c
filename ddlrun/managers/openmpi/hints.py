"""Hints on what mpirun, its daemons and their ssh print: pattern and text."""

from ddlrun.managers.openmpi.end import ABORT

MPI_HINTS = (
    (ABORT, "rank {0} called MPI_Abort with {1}"),
    (
        r"(?:ORTE|PRTE) (?:was unable to reliably start|has lost communication)",
        "mpirun could not start its daemon on a host, or lost it: ddlrun check HOSTS shows the reason",
    ),
    (
        r"Host key verification failed",
        "the key of a host is not in known_hosts: log in once with ssh and compare the fingerprint",
    ),
    (r"Permission denied \((?:publickey|password)", "ssh to a host is refused: ssh-copy-id HOST"),
    (
        r"(?:orted|prted): (?:command not found|not found|No such file)",
        "Open MPI is not installed at the same path on that host",
    ),
    (
        r"specified\s+a non-existent CPU",
        "the rank file names cores that a host does not have: correct or leave out --machine and --rankfile",
    ),
    (r"buffer overflow detected", "a host name is too long for Open MPI 4.1's rank files"),
    (
        r"listener thread failed to start",
        "a session folder of an earlier mpirun is in the way: remove ompi.* and prte.* from the temporary folder",
    ),
)
