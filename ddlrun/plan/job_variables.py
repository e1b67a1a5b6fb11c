"""The variables of a job: its topology, the places of its ranks, and the threads of each rank."""

from collections.abc import Iterator, Mapping

from ddlrun.environment.placement_variables import has_all_cpus, render_rank_variables
from ddlrun.errors import InputError, PreflightError, spell_options
from ddlrun.keeper.settings import CONTAINER, DUTIES, HOOK, OPEN_MPI, SHIPPED
from ddlrun.machine.pci import CHOOSING, OF_CONTAINER
from ddlrun.managers import AUTO
from ddlrun.managers.program_mpi import find_foreign_choice
from ddlrun.plan.placed_job import Contribution, PlacedJob
from ddlrun.plan.wrappers import render_wrappers
from ddlrun.topology import JobTopology, UnequalTopology, ddl_topology, parse_topology
from ddlrun.wording import counted

# The user's own settings of thread binding, which the plan does not read.
THREAD_BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND")
# Variables with a number of threads: OpenMP's, and those of libraries that prefer their own.
THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
)  # fmt: skip
# Numbers with more digits are not numbers of threads.
MOST_DIGITS = 9
# --bind-threads, --no-bind-threads, and neither.
BIND_THREADS: Mapping[bool | None, Mapping[str, str]] = {
    True: {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}, False: {"OMP_PROC_BIND": "false"}, None: {},
}  # fmt: skip


def plan_job_variables(job: PlacedJob, mode: str) -> Contribution:
    """Return the variables of the layer "job"; `mode` is the mode of DDL's algorithm."""
    settings = job.settings
    chosen = _chosen_devices(job)
    variables = render_rank_variables(job.placement, mode, "unchanged" if chosen else _visible_gpus(job))
    if settings.job.mode is None:
        del variables["DDL_OPTIONS"]  # see `default_variables`
    variables |= BIND_THREADS[settings.placement.bind_threads]
    variables["DDLRUN_RUN_DIR"] = settings.run.run_dir.path
    variables["DDLRUN_RESTART"] = str(_restarts(job))
    variables |= {"DDLRUN_STARTED_BY": str(job.manager), "DDLRUN_PMI": job.manager.pmi}  # for keepers
    if not job.manager.keeps_path and "PATH" in job.environ:
        variables["DDLRUN_PATH"] = job.environ["PATH"]
    bind_themselves = not job.manager.binds_ranks(spawns=settings.mpi.spawn_slots > 0)
    if bind_themselves:
        variables["DDLRUN_NARROW"] = "1"
    names = " ".join(job.manager.rank_variables)
    if names != OPEN_MPI:
        variables["DDLRUN_RANK_VARIABLES"] = names
    if settings.environment.duties != DUTIES:
        variables[HOOK] = ",".join(settings.environment.duties) or "none"
    if settings.ship is not None:
        variables[SHIPPED] = settings.ship.variable(settings.run.run_id)
    if settings.container is not None:
        variables[CONTAINER] = settings.container.variable(settings.environment.names)
    variables |= render_wrappers(settings.job.wrappers)
    stdin = settings.supervision.input
    if stdin is not None and stdin.terminal and "TERM" in job.inherited:
        variables["TERM"] = job.inherited["TERM"]
    strict = settings.placement.strict_binding
    if job.manager.is_untested if strict is None else strict:
        variables["DDLRUN_STRICT_BINDING"] = "1"
    notes = [f"{name}: left as you set it" for name in chosen]
    notes += [f"{name} is set: OpenMP binds threads as it says" for name in THREAD_BINDING if name in job.inherited]
    warnings = [
        *_replaced_options(job, variables),
        *_many_threads(job),
        *_foreign_mpi(job),
        *(_unbound(job, variables) if bind_themselves else ()),
    ]
    return Contribution(variables, tuple(notes), tuple(warnings))


def _chosen_devices(job: PlacedJob) -> list[str]:
    """Return the variables that choose devices and stay as the user set them: no probe has read them."""
    settings = job.settings
    described = settings.machine is not None and settings.placement.visible_gpus is None
    names = settings.environment.names | (job.inherited.keys() if described else frozenset())
    return [name for name in CHOOSING if name in names and name != OF_CONTAINER]


def _unbound(job: PlacedJob, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if the ranks, which bind themselves, do not learn the OS indexes of their CPUs.

    Raises PreflightError in place of the warning with --strict-binding.
    """
    if has_all_cpus(variables):
        return
    invented = sorted({machine.source for machine in job.placement.machines if not machine.measured})
    reason = f"{', '.join(invented)} has no OS indexes of CPUs; leave out `--machine`, and ddlrun probes the hosts"
    if not invented:
        reason = "the CPUs of so many different hosts do not fit into a variable; use `--process-manager` openmpi"
    warning = f"ranks are not bound to cores: {reason}"
    if job.settings.placement.strict_binding:
        raise PreflightError(warning)
    yield spell_options(warning)


def _replaced_options(job: PlacedJob, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a note if --mode replaces another value of DDL_OPTIONS that was exported."""
    name = "DDL_OPTIONS"
    if name in variables and name in job.inherited and name not in job.settings.environment.variables:
        exported, replacement = job.inherited[name], variables[name]
        if exported != replacement:
            yield f"{name}: --mode {job.settings.job.mode} replaces the exported {exported!r} with {replacement!r}"


def plan_default_variables(job: PlacedJob, mode: str) -> Contribution:
    """Return the variables of the layer "defaults". Raises InputError where DDL_OPTIONS has another topology."""
    variables = {"PYTHONUNBUFFERED": "1"}
    if job.placement.overloads:
        variables |= job.manager.overload_variables
    if job.settings.job.mode is not None:
        return Contribution(variables)
    variables["DDL_OPTIONS"] = f"-mode {mode}:{ddl_topology(job.placement.topology)}"
    if "DDL_OPTIONS" not in job.inherited:
        return Contribution(variables)
    _check_ddl_options(job.inherited["DDL_OPTIONS"], job.placement.topology)
    return Contribution(variables, ("DDL_OPTIONS: left as you set it",))


def set_threads(value: str) -> int | None:
    """Return the number of threads that a variable sets; None where it sets none. Of nested regions, the outer counts.

    >>> set_threads("4"), set_threads("3,2"), set_threads(""), set_threads("0")
    (4, 3, None, None)
    """
    number = value.partition(",")[0].strip()
    return int(number) or None if number.isdecimal() and len(number) < MOST_DIGITS else None


def _many_threads(job: PlacedJob) -> Iterator[str]:
    """Yield a warning for each variable of the user's that gives ranks more threads than they have cores for."""
    fewest = min(seat.threads for _, _, seats in job.placement.groups() for seat in seats)
    for name in THREADS:
        number = set_threads(job.environ.get(name, ""))
        if number is not None and number > fewest:
            yield f"{name}={number}, as you set it: ranks have cores for {counted(fewest, 'thread')}"


def _foreign_mpi(job: PlacedJob) -> Iterator[str]:
    """Yield a warning if the user makes mpi4py load an MPI whose ranks the process manager cannot connect.

    ddlrun takes its own process manager for programs without mpi4py, too.
    """
    own = job.manager.pmi == "pmi1"
    choice = find_foreign_choice(job.environ, job.manager.pmi)
    if choice and not (own and job.settings.mpi.process_manager == AUTO):
        mpi, remedy = ("Open MPI", "openmpi") if own else ("MPICH or Intel MPI", "ddlrun")
        yield spell_options(
            f"{choice}: ranks that import mpi4py end, as {job.manager.title} cannot connect those of {mpi}; unset it, "
            f"or take `--process-manager` {remedy}"
        )


def thread_note(job: PlacedJob) -> str:
    """Return the note on the number of OpenMP threads."""
    threads = job.environ.get("OMP_NUM_THREADS")
    return "OMP_NUM_THREADS: one per core" if threads is None else f"OMP_NUM_THREADS: {threads}, as you set it"


def _visible_gpus(job: PlacedJob) -> str:
    """Return the value of --visible-gpus. A TensorFlow worker takes all GPUs that it sees, so several get their own."""
    greedy = "tensorflow" in job.settings.job.frameworks and job.placement.topology.largest > 1
    return job.settings.placement.visible_gpus or ("own" if greedy else "all")


def _restarts(job: PlacedJob) -> int:
    """Return the number of restarts so far: by the scheduler and by ddlrun."""
    allocation = job.settings.hosts.allocation
    return job.settings.run.attempt + (allocation.restarts if allocation is not None else 0)


def _check_ddl_options(options: str, topology: JobTopology) -> None:
    words = options.split()
    if "-mode" not in words[:-1]:
        return
    dims = words[words.index("-mode") + 1].partition(":")[2]
    if not dims or parse_topology(dims, "DDL_OPTIONS") == ddl_topology(topology):
        return
    shape = f", for DDL {ddl_topology(topology)}" if isinstance(topology, UnequalTopology) else ""
    raise InputError(f"DDL_OPTIONS says {dims}, but the topology is {topology}{shape}; unset one of them")
