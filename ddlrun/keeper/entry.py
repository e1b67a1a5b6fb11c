"""The start of a rank: its variables and its binding. Then it becomes the program, or the keeper of the program."""

from __future__ import annotations

import os

from ddlrun.errors import PreflightError
from ddlrun.keeper import protocol
from ddlrun.keeper.bare_signal import signal
from ddlrun.keeper.binding import bind_rank
from ddlrun.keeper.command_line import add_arguments, wrap
from ddlrun.keeper.forks import PR_SET_PDEATHSIG, become, complain, load_prctl
from ddlrun.keeper.framework_environment import in_use, set_framework_variables
from ddlrun.keeper.program_streams import read_request
from ddlrun.keeper.settings import CONTAINER, MPIRUN, OPEN_MPI, OTHER_MANAGER, RELAYS, SHIPPED, KeeperSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ddlrun.keeper.container import Container
    from ddlrun.keeper.shipped import Places

# The program that Open MPI 4 starts in place of ssh.
AGENT = "OMPI_MCA_plm_rsh_agent"


def main(argv: list[str], link: int | None = None, manager: str = "", orders: int | None = None) -> None:
    """Set up this rank and run the program; exit with its code, or with 127 or 126 if it cannot be started.

    Args:
        argv: The command line of the program.
        link: A descriptor that the program inherits, and this process closes; None: there is none.
        manager: The process that started this one, for messages; empty: a process manager or its daemon.
        orders: See KeeperSettings.
    """
    prctl = load_prctl()
    parent = os.getppid()
    names = os.environ.pop("DDLRUN_RANK_VARIABLES", OPEN_MPI)
    rank, local_rank, size = map(_number, names.split())
    _set_up_variables(rank, size)
    report, problems = bind_rank(rank, local_rank, size)
    strict = bool(problems) and "DDLRUN_STRICT_BINDING" in os.environ
    label = f"rank {rank} on {os.uname().nodename}"
    ports = set_framework_variables(rank, local_rank, size)
    taken = ((port, name) for port, name in ports.items() if in_use(port))
    problems += [f"{label}: port {port} ({name}) was free, and now another process has it" for port, name in taken]
    argv = wrap(add_arguments(argv), rank, local_rank)
    places = _enter_shipped()
    argv = argv if places is None else [places.place(word) for word in argv]
    request = read_request(rank)
    container, argv = _enter_container(argv, rank, places, terminal=request is not None and request.terminal)
    channel = os.environ.pop(protocol.ADDRESSES, "")
    if link is not None:
        os.set_inheritable(link, True)
    grace, heartbeat = (float(os.environ.pop(f"DDLRUN_{name}", "") or "10") for name in ("GRACE", "HEARTBEAT"))
    settings = KeeperSettings(
        argv=argv, label=label, local_rank=local_rank, parent=parent, grace=grace, heartbeat=heartbeat, rank=rank,
        size=size, manager=manager or (MPIRUN if names == OPEN_MPI else OTHER_MANAGER), orders=orders, link=link,
        container=container, ports=tuple(ports), report=report, problems=tuple(problems), strict=strict,
        request=request, places=places,
    )  # fmt: skip
    if not channel:
        _run_by_hand(settings, prctl)
    from ddlrun.keeper.kept_rank import keep  # noqa: PLC0415 - not for ranks by hand

    keep(channel, settings, prctl)


def _set_up_variables(rank: int, size: int) -> None:
    """Give the rank its size, PATH and standard input, and remove the variables of the process manager alone."""
    if size > 0:
        os.environ["DDLRUN_SIZE"] = str(size)
    # Open MPI 4 puts the folder of its mpirun before the user's.
    os.environ["PATH"] = os.environ.pop("DDLRUN_PATH", os.environ.get("PATH", os.defpath))
    # This one is for mpirun. Open MPI 4 accepts only one of it and the folder that the daemon has set.
    os.environ.pop("OMPI_MCA_orte_local_tmpdir_base", None)
    # An mpirun that the rank starts is not served by ddlrun (see supervise/ssh_relay.sh).
    os.environ.pop(RELAYS, None)
    if RELAYS in os.environ.get(AGENT, ""):
        del os.environ[AGENT]
    if rank == 0 and "DDLRUN_STDIN" in os.environ:
        _replace_stdin(os.environ["DDLRUN_STDIN"])


def _enter_shipped() -> Places | None:
    """Go to the files that were shipped to this host; return None if none were."""
    text = os.environ.get(SHIPPED, "")
    if not text:
        return None
    from ddlrun.keeper.shipped import Places  # noqa: PLC0415 - for such jobs alone

    places = Places(text)
    try:
        places.enter()
    except OSError as error:
        complain(f"shipped files on {os.uname().nodename}: {error.filename}: {error.strerror}")
        os._exit(PreflightError.exit_code)
    return places


def _enter_container(
    argv: list[str], rank: int, places: Places | None, *, terminal: bool
) -> tuple[Container | None, list[str]]:
    """Return the container of a program, None if it has none, and the command line that runs the program there."""
    text = os.environ.pop(CONTAINER, "")
    if not text:
        return None, argv
    from ddlrun.keeper.container import Container  # noqa: PLC0415 - for such jobs alone

    container = Container(text, rank=rank, shipped="" if places is None else places.cache, terminal=terminal)
    if places is not None:
        container.image = places.place(container.image)
    return container, container.command(argv)


def _run_by_hand(settings: KeeperSettings, prctl: Callable[[int, int], object]) -> None:
    """Become the program without a keeper, where no ddlrun waits for one: the command was started by hand."""
    for problem in settings.problems:
        complain(problem)
    if settings.strict:
        os._exit(PreflightError.exit_code)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it outlasts exec
    become(settings.argv, settings.label)


def _replace_stdin(source: str) -> None:
    """Make `PATH@OFFSET` the standard input: Open MPI 5's mpirun never passes on the end of its own."""
    path, _, offset = source.partition("@")
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        file = os.open(os.devnull, os.O_RDONLY)
    if offset:
        os.lseek(file, int(offset), os.SEEK_SET)
    os.dup2(file, 0)


def _number(name: str) -> int:
    return int(os.environ.get(name, "-1"))
