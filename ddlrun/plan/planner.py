"""The planner: from settings, survey and placement to the Plan, without looking anything up."""

import os
import re
import sys
from collections.abc import Mapping, Sequence

from ddlrun.errors import InputError, PreflightError
from ddlrun.keeper.command_line import WRAPPERS
from ddlrun.managers import ManagerJob, TransportChoice, TransportRequest
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.placement_notes import placement_notes, unchecked_notes
from ddlrun.plan.job_placement import JobPlacement, place_job, rankfile_warnings
from ddlrun.plan.job_variables import set_threads
from ddlrun.plan.placed_job import PlacedJob
from ddlrun.plan.plan import START, Plan, pack_word
from ddlrun.plan.rank_environment import plan_environment
from ddlrun.plan.settings import Settings
from ddlrun.plan.supervision import InputMode, reads_script
from ddlrun.plan.survey import Survey
from ddlrun.plan.wrappers import highest_rank
from ddlrun.wording import counted

# Linux's limit for a variable or an argument, with the byte at its end.
MOST_BYTES = 1 << 17
# Programs and modules that start the processes of a job, and those that do so with a command.
LAUNCHERS = frozenset(
    "mpirun mpiexec mpiexec.hydra orterun prterun srun jsrun aprun horovodrun torchrun deepspeed torch.distributed.run "
    "torch.distributed.launch accelerate.commands.launch horovod.runner.launch".split()
)
LAUNCHER_COMMANDS = frozenset((("accelerate", "launch"), ("ddlrun", "launch"), ("flux", "run")))


def place_surveyed(settings: Settings, survey: Survey) -> JobPlacement:
    """Place every rank on the surveyed machines. Raises InputError, PlacementError or PreflightError."""
    manager = survey.installation.manager
    placed = place_job(settings, survey.machines, manager)
    _check_ranks(settings, placed.placement.topology.size)
    for name, machine in survey.machines.items():
        obstacle = manager.find_obstacle(machine)
        if obstacle is not None:
            raise PreflightError(f"host {name}: {obstacle}")
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
    if settings.mpi.spawn_slots and not job.manager.spawns:
        raise InputError(f"`--spawn-slots`: {job.manager.title} has no such option; see `--mpi-args`")
    manager, rankfile = job.manager, settings.placement.rankfile
    warnings = rankfile_warnings(rankfile, survey.machines, manager.rankfile_dialect) if rankfile else []
    spawns = settings.mpi.spawn_slots and len(placed.placement.hosts) > 1
    about_manager = (manager.warning,) if manager.warning else ()
    about_program = (
        *([manager.spawn_warning] if spawns and manager.spawn_warning else []),
        *_nested_launchers(settings, placed.placement),
        *_terminal_note(settings),
        *_script_of_one_rank(settings, placed.placement),
    )
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
        notes=(
            *about_manager,
            *settings.hosts.notes,
            *placement_notes(placed.placement),
            *warnings,
            *environment.notes,
            *about_program,
        ),
        warnings=(
            *about_manager,
            *unchecked_notes(survey.machines),
            *environment.warnings,
            *about_program,
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
    words = [re.sub(r"\.(openmpi|mpich)$", "", os.path.basename(program[0])), *program[1:4]]
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
    return (f"{started}: leave {name} out, or start it once per host: --ranks-per-host 1",)


def _terminal_note(settings: Settings) -> tuple[str, ...]:
    stdin = settings.supervision.input
    if stdin is None or not stdin.terminal:
        return ()
    return (f"rank {stdin.rank} has this terminal; Ctrl-C is its own, Ctrl-\\ ends the job",)


def _script_of_one_rank(settings: Settings, placement: Placement) -> tuple[str, ...]:
    """Return a warning where every rank would read a script from standard input, which one rank has."""
    stdin, program = settings.supervision.input, settings.job.program
    if placement.topology.size == 1 or not reads_script(program) or (stdin is not None and stdin.terminal):
        return ()
    name, rank = os.path.basename(program[0]), 0 if stdin is None else stdin.rank
    return (f"{name} reads its script from standard input, which rank {rank} alone has; for all ranks, name a file",)


def _choose_transport(job: PlacedJob) -> TransportChoice:
    settings = job.settings
    request = TransportRequest(
        hosts=settings.hosts.hosts,
        machines=job.placement.machines,
        tcp=settings.mpi.tcp,
        arguments=settings.mpi.args,
        environ=job.environ,
        files=job.survey.installation.mca_files,
    )
    return job.manager.choose_transport(request)


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
        rank_hosts=job.placement.rank_hosts(),
        cpus=job.placement.common_cpus(),
        step=launcher.words if launcher.launcher == "srun" else (),
    )


def _keeper_command(settings: Settings) -> tuple[str, ...]:
    """Return the command line of a keeper, without the program: where they travel, its Python and script do."""
    words = (sys.executable, "-I", "-S", START)
    ship = settings.ship
    return words if ship is None else tuple(ship.place(word, settings.run.run_id) for word in words)
