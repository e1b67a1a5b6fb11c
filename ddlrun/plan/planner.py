"""The planner: from settings, survey and placement to the Plan, without looking anything up."""

import os
import re
import sys
from collections.abc import Mapping, Sequence

from ddlrun.errors import InputError, PreflightError
from ddlrun.machine import MachineNoteCode
from ddlrun.managers import ManagerJob
from ddlrun.managers.openmpi import (
    ChosenManager,
    TransportChoice,
    choose_transport,
    find_transport_choice,
    parse_site_excludes,
)
from ddlrun.managers.own import is_own
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.placement_notes import placement_notes, unchecked_notes
from ddlrun.network.variables import tcp_variables
from ddlrun.plan import START, Plan, pack_word
from ddlrun.plan.job_placement import JobPlacement, place_job, rankfile_warnings
from ddlrun.plan.job_variables import set_threads
from ddlrun.plan.placed_job import PlacedJob
from ddlrun.plan.rank_environment import plan_environment
from ddlrun.plan.settings import Settings
from ddlrun.plan.supervision import InputMode
from ddlrun.plan.survey import Survey
from ddlrun.plan.wrappers import highest_rank
from ddlrun.rank.command_line import WRAPPERS
from ddlrun.wording import counted

# Linux's limit for a variable or an argument, with the byte at its end.
MOST_BYTES = 1 << 17
# Programs and modules that start the processes of a job, and those that do so with a command.
LAUNCHERS = frozenset(
    "mpirun mpiexec mpiexec.hydra orterun prterun srun jsrun aprun horovodrun torchrun deepspeed torch.distributed.run "
    "torch.distributed.launch accelerate.commands.launch".split()
)
LAUNCHER_COMMANDS = frozenset((("accelerate", "launch"), ("ddlrun", "launch"), ("flux", "run")))
# https://github.com/open-mpi/ompi/issues/13521; measured with 5.0.11
UNSAFE_SPAWNS = (
    "MPI_Comm_spawn over several hosts sometimes crashes the mpirun of Open MPI 5.0: take Open MPI 4.1 (--mpirun), or "
    "one host"
)


def place_surveyed(settings: Settings, survey: Survey) -> JobPlacement:
    """Place every rank on the surveyed machines. Raises InputError, PlacementError or PreflightError."""
    major = survey.installation.manager.major
    placed = place_job(settings, survey.machines, major)
    _check_ranks(settings, placed.placement.topology.size)
    uncounted = [name for name, machine in survey.machines.items() if machine.cores_uncounted]
    if uncounted and major is not None:
        note = MachineNoteCode.CORES_UNCOUNTED.value
        raise PreflightError(f"host {uncounted[0]}: {note}; take --process-manager ddlrun")
    without_cores = [name for name, machine in survey.machines.items() if machine.cores_are_threads]
    if without_cores and major == 5:
        note = MachineNoteCode.CORES_ARE_THREADS.value
        raise PreflightError(f"host {without_cores[0]}: {note}; take Open MPI 4.1 (--mpirun)")
    threads = set_threads(PlacedJob(settings, survey, placed.placement).environ.get("OMP_NUM_THREADS", ""))
    return placed._replace(placement=placed.placement._replace(threads=threads))


def _check_ranks(settings: Settings, size: int) -> None:
    """Raise InputError for an option that names a rank which the job does not have."""
    shown, stdin = settings.supervision.style.ranks, settings.supervision.input
    named = [
        ("--ranks", -1 if shown is None else max(shown)),
        ("--debug-rank", stdin.rank if stdin is not None and stdin.mode is InputMode.DEBUGGER else -1),
        ("--stdin-rank", -1 if stdin is None else stdin.rank),
        ("--wrap", highest_rank(settings.job.wrappers)),
    ]
    for option, rank in named:
        if rank >= size:
            raise InputError(f"{option}: there is no rank {rank}; the job has {counted(size, 'rank')}, numbered from 0")


def make_plan(settings: Settings, survey: Survey, placed: JobPlacement, ports: range) -> Plan:
    """Return the complete Plan; `ports` are free where ranks meet. Raises InputError or PreflightError."""
    job = PlacedJob(settings, survey, placed.placement)
    transport = _choose_transport(job)
    environment = plan_environment(job, transport, ports)
    _check_lengths(environment.variables)
    if settings.mpi.spawn_slots and job.major is None:
        raise InputError(
            f"--spawn-slots: {survey.installation.manager.manager.title} has no such option; see --mpi-args"
        )
    manager, rankfile = survey.installation.manager, settings.placement.rankfile
    warnings = rankfile_warnings(rankfile, survey.machines, manager.major) if rankfile else []
    unsafe_spawns = settings.mpi.spawn_slots and manager.major == 5 and len(placed.placement.hosts) > 1
    return Plan(
        placement=placed.placement,
        reason=placed.reason,
        order_reason=placed.order_reason,
        manager=manager,
        transport=transport,
        argv=manager.command(_manager_job(job, environment.exports)),
        variables=tuple(sorted(environment.variables.items())),
        unsupervised=tuple(sorted(environment.unsupervised.items())),
        removed=environment.removed,
        exports=environment.exports,
        run_dir=settings.run.run_dir,
        run_id=settings.run.run_id,
        notes=(*settings.hosts.notes, *placement_notes(placed.placement), *warnings, *environment.notes),
        warnings=(
            *filter(None, [manager.warning]),
            *unchecked_notes(survey.machines),
            *environment.warnings,
            *([UNSAFE_SPAWNS] if unsafe_spawns else []),
            *_nested_launchers(settings, placed.placement),
            *_terminal_note(settings),
        ),
        rankfile=rankfile.text if rankfile else None,
        network=environment.network,
        launcher=settings.hosts.launcher.reason,
        local_hosts=settings.hosts.local,
        own_address=survey.own_address,
        spawn_slots=settings.mpi.spawn_slots,
    )


def _check_lengths(variables: Mapping[str, str]) -> None:
    """Raise InputError for a variable that is too long for Linux."""
    for name, value in variables.items():
        size = len(f"{name}={value}".encode(errors="surrogateescape"))
        if size >= MOST_BYTES:
            what = "the arguments of --wrap, and of programs after ':'" if name == WRAPPERS else name
            raise InputError(
                f"{what}: {size} characters are too long, Linux allows {MOST_BYTES - 1} for a variable with its name; "
                "write them into a file, and pass its name"
            )


def nested_launcher(program: Sequence[str]) -> str | None:
    """Return the launcher, such as mpirun or torchrun, that a command line starts; None where it starts none.

    >>> nested_launcher(("mpirun", "-np", "2", "a.out")), nested_launcher(("python3", "-m", "http.server"))
    ('mpirun', None)
    """
    words = [os.path.basename(program[0]), *program[1:4]]
    if re.fullmatch(r"python[0-9.]*", words[0]):
        words = [os.path.basename(word) for word in words[1:] if word != "-m"]
    is_launcher = words[:1] and (words[0] in LAUNCHERS or tuple(words[:2]) in LAUNCHER_COMMANDS)
    return words[0] if is_launcher else None


def _nested_launchers(settings: Settings, placement: Placement) -> tuple[str, ...]:
    """Return a warning where several ranks of a host each start a launcher; one per host is a usual way to use it."""
    name, ranks = nested_launcher(settings.job.program), placement.topology.largest
    if name is None or ranks == 1:
        return ()
    started = f"{counted(ranks, 'rank')} per host start {name}, which starts processes of its own for each"
    return (f"{started}: leave {name} out, or start it once per host: --accelerators 1",)


def _terminal_note(settings: Settings) -> tuple[str, ...]:
    stdin = settings.supervision.input
    if stdin is None or not stdin.terminal:
        return ()
    return (f"rank {stdin.rank} has this terminal; Ctrl-C is its own, Ctrl-\\ ends the job",)


def _choose_transport(job: PlacedJob) -> TransportChoice:
    settings, files = job.settings, job.survey.installation.mca_files
    if job.major is None:
        return TransportChoice((), f"left to {_transport_owner(job.survey.installation.manager)}")
    if settings.mpi.tcp:
        variables = tuple(tcp_variables(job.major).items())
        return TransportChoice(variables, "--tcp: TCP, and shared memory inside of hosts")
    chosen = find_transport_choice(settings.mpi.args, job.environ, files)
    return choose_transport(settings.hosts.hosts, job.placement.machines, chosen, parse_site_excludes(files))


def _transport_owner(manager: ChosenManager) -> str:
    return "the program" if is_own(manager) else manager.manager.title


def _manager_job(job: PlacedJob, exports: tuple[str, ...]) -> ManagerJob:
    settings, installation = job.settings, job.survey.installation
    launcher = settings.hosts.launcher
    return ManagerJob(
        ranks=job.placement.topology.size,
        hosts=settings.hosts.hosts,
        rankfile=settings.run.run_dir.rankfile,
        hostfile=settings.run.run_dir.hostfile,
        root=installation.root,
        ssh=launcher.words if launcher.launcher == "ssh" else (),
        exports=exports,
        extra=settings.mpi.args,
        program=(*_keeper_command(settings), *map(pack_word, settings.job.program)),
        overload=job.placement.shares_cores,
        spawns=settings.mpi.spawn_slots > 0,
        local=settings.hosts.local,
        launcher=launcher.shell,
        works_everywhere=launcher.works_everywhere,
        rank_hosts=job.placement.rank_hosts(),
        cpus=job.placement.common_cpus(),
        step=launcher.words if launcher.launcher == "srun" else (),
    )


def _keeper_command(settings: Settings) -> tuple[str, ...]:
    """Return the command line of a keeper, without the program: where they travel, its Python and script do."""
    words = (sys.executable, "-I", "-S", START)
    ship = settings.ship
    return words if ship is None else tuple(ship.place(word, settings.run.run_id) for word in words)
