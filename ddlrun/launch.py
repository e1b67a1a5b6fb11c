"""The edge that turns settings into a Plan, and a Plan into a run."""

import json
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import NamedTuple

from ddlrun import rankfile
from ddlrun.environment import REDACTED, exported, rank_variables, redacted
from ddlrun.errors import InputError, PlacementError, PreflightError
from ddlrun.hosts import Host, HostList, render_hostfile
from ddlrun.machine import THREADS_ALONE, Machine
from ddlrun.mpirun import (
    OVERRULING,
    REMEDY,
    Job,
    Mpirun,
    Transport,
    choose_transport,
    command,
    parse_version,
    site_excludes,
    transport_chosen,
)
from ddlrun.network import Network, decide, tcp_variables
from ddlrun.placement import Placement, Policy, place, place_cores, placement_notes
from ddlrun.plan import Outcome, Plan, RunDir
from ddlrun.probe import check_distinct, is_local
from ddlrun.rank import wire
from ddlrun.rankfile import check_names
from ddlrun.shape import Wish, check_wish, choose_topology
from ddlrun.shell import Finished, begin, copied_stdin
from ddlrun.spares import Crew
from ddlrun.supervise.run import run_job
from ddlrun.topology import RankOrder, Topology, parse_topology
from ddlrun.watch import LOOPBACK, Watch

# With these at 1 root has told any Open MPI that it may start.
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# What mpirun starts for each rank.
START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank", "start.py")


class Settings(NamedTuple):
    """What a launch was asked for, read once at the edge."""

    wish: Wish
    hosts: HostList
    rank_order: str
    mode: str | None
    program: tuple[str, ...]
    run_dir: RunDir
    run_id: str = ""
    mpirun: str | None = None
    mpi_args: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    named: tuple[str, ...] = ()
    policy: Policy = Policy()
    visible_gpus: str = "all"
    bind_threads: bool | None = None
    strict_binding: bool = False
    rankfile: tuple[str, str] | None = None
    """The user's own rank file: its name and text."""
    watch: Watch = Watch(0)
    """How the job is watched; the number of ranks is the plan's."""
    tcp: bool = False
    as_root: bool = False


def again(settings: Settings, attempt: int) -> Settings:
    """Return the settings of a restart: the same job with an id and a run folder of its own."""
    base = settings.run_dir.path.removesuffix(f"/restart-{attempt - 1}")
    run_id = f"{settings.run_id[:-8]}{os.urandom(4).hex()}"
    variables = {**settings.variables, "DDLRUN_RESTART": str(attempt)}
    watch = settings.watch
    if watch.style.folder is not None:
        files = watch.style.folder.removesuffix(f"/restart-{attempt - 1}")
        watch = watch._replace(style=watch.style._replace(folder=f"{files}/restart-{attempt}"))
    run_dir = RunDir(f"{base}/restart-{attempt}")
    return settings._replace(run_dir=run_dir, run_id=run_id, variables=variables, watch=watch)


def adapt(settings: Settings, crew: Crew) -> Settings:
    """Return the settings for a crew: where there are fewer hosts than before, Y and Z shrink."""
    wish = settings.wish
    if len(crew.hosts) != len(settings.hosts):
        each = wish.processes // len(settings.hosts) if wish.processes else wish.accelerators
        if wish.topology is not None:
            dims = (wish.topology.accelerators, crew.per_rack, crew.racks)
            wish = Wish(topology=Topology(dims[: len(wish.topology.dims)] if crew.racks == 1 else dims))
        else:
            wish = Wish(accelerators=each, nodes=crew.per_rack, racks=crew.racks)
    return settings._replace(hosts=crew.hosts, wish=wish)


def check(settings: Settings, environ: Mapping[str, str]) -> Callable[[], Mpirun]:
    """Find whatever is wrong before any host is asked; return what waits for mpirun's version.

    Raises InputError, PlacementError or PreflightError, and so does what it returns.
    """
    mpirun = find_mpirun(settings.mpirun, environ)
    check_names(settings.hosts.names)
    check_distinct(settings.hosts, os.uname().nodename)
    check_wish(settings.wish, settings.hosts)
    return mpirun


def check_root(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise PreflightError where root starts a job without having said that it is meant."""
    if os.geteuid() == 0 and not (settings.as_root or all(environ.get(name) == "1" for name in ROOT)):
        raise PreflightError(
            "you are root, and what goes wrong in a job then can harm the whole machine; be another user, or say "
            "--allow-run-as-root (in a container, where root is usual, set OMPI_ALLOW_RUN_AS_ROOT=1 and "
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)"
        )


def place_job(
    settings: Settings, machines: Mapping[str, Machine], major: int | None = None
) -> tuple[Placement, str, str]:
    """Return where every rank goes, why this topology, and why this order of ranks.

    Raises InputError or PlacementError; of a user's own rank file all that Open MPI `major` (None: either)
    would not do as it says.
    """
    if settings.rankfile is not None:
        return _place_as_told(settings, settings.rankfile, machines, major)
    topology, reason = choose_topology(settings.wish, settings.hosts, machines)
    order, order_reason = choose_order(settings.rank_order, settings.mode)
    return place(topology, settings.hosts, machines, order, settings.policy), reason, order_reason


def _place_as_told(
    settings: Settings, rankfile: tuple[str, str], machines: Mapping[str, Machine], major: int | None
) -> tuple[Placement, str, str]:
    from ddlrun.lint import lint, places  # noqa: PLC0415 - for the user's own rank file alone

    name, text = rankfile
    findings = lint(text, machines.get, None, settings.hosts.names)
    wrong = [one for one in findings if one.error and one.matters(major)]
    if settings.policy.overload:
        wrong = [one for one in wrong if ", as rank " not in one.what]
    if wrong:
        raise PlacementError(*(f"{name}{one.place}: {one.what}; {one.really(major)}; {one.remedy}" for one in wrong))
    told = places(text, lambda host: machines[host])
    share, left = divmod(len(told), len(settings.hosts))
    if left:
        raise PlacementError(f"{name}: {len(told)} ranks on {len(settings.hosts)} hosts are no topology XxYxZ")
    wish = settings.wish
    if (wish.topology, wish.accelerators, wish.nodes, wish.racks, wish.aisles, wish.processes) == (None,) * 6:
        wish = Wish(topology=Topology((share, len(settings.hosts))))
    topology, _ = choose_topology(wish, settings.hosts, machines)
    if topology.size != len(told):
        raise PlacementError(
            f"{name} places {len(told)} ranks, topology {topology} has {topology.size}; make them agree"
        )
    order = _order_of(topology, settings.hosts, {rank: host for rank, (host, _) in told.items()})
    if order is None:
        raise PlacementError(
            f"{name}: its ranks are neither contiguous on each host nor round robin over {settings.hosts} as "
            f"{topology}; name the hosts in their order (-H) and the --topology"
        )
    cores = {rank: chosen for rank, (_, chosen) in told.items()}
    placement = place_cores(topology, settings.hosts, machines, order, cores, settings.policy)
    return placement, f"--rankfile {name}", f"the order of {name}"


def _order_of(topology: Topology, hosts: HostList, host_of: Mapping[int, str]) -> RankOrder | None:
    """Return the order of ranks that puts each on the host that it has; None: neither does."""
    for order in RankOrder:
        if all(
            host_of[topology.rank(index, local_rank, order)] == name
            for index, name in enumerate(hosts.names)
            for local_rank in range(topology.accelerators)
        ):
            return order
    return None


def make_plan(
    settings: Settings,
    mpirun: Mpirun,
    machines: Mapping[str, Machine],
    environ: Mapping[str, str],
    network: Network | None = None,
) -> Plan:
    """Return the complete Plan; nothing is written or started.

    `network` is what the hosts share, None where they were not asked.

    Raises InputError, PlacementError or PreflightError.
    """
    placement, reason, order_reason = place_job(settings, machines, mpirun.major)
    shown = settings.watch.style.ranks
    if shown is not None and max(shown) >= placement.topology.size:
        raise InputError(f"--ranks: there is no rank {max(shown)}; the job has 0 to {placement.topology.size - 1}")
    bare = [name for name, machine in machines.items() if THREADS_ALONE in machine.notes]
    if bare and mpirun.major == 5:
        raise PreflightError(f"host {bare[0]}: {THREADS_ALONE}; take Open MPI 4.1 (--mpirun)")
    files = _mca_files(mpirun.path, environ)
    chosen = transport_chosen(settings.mpi_args, {**environ, **settings.variables}, files)
    transport = choose_transport(settings.hosts, placement.machines, chosen, site_excludes(files))
    if settings.tcp:
        transport = Transport(
            tuple(tcp_variables(mpirun.major).items()), "--tcp: TCP, and shared memory inside of hosts"
        )
    variables, notes = _variables(settings, mpirun, placement, environ)
    rdma = any(machine.rdma_devices for machine in machines.values()) and not settings.tcp
    taken = {**environ, **settings.variables}
    over, more = decide(network, mpirun.major, taken, (*settings.mpi_args, *files.values()), rdma=rdma)
    variables, notes = over | variables, notes + more
    variables |= _library(mpirun.path, ranks_environ := {**environ, **variables}) | dict(transport.variables)
    ranks_environ |= variables
    exports = exported(ranks_environ, (*settings.named, *settings.variables))
    notes += [f"-x {name}: it is not set" for name in settings.named if name not in ranks_environ]
    removed = tuple(name for name in OVERRULING if name in ranks_environ)
    notes += [f"{name}: left out, as it contradicts the rank file" for name in removed]
    job = Job(
        ranks=placement.topology.size,
        hosts=settings.hosts,
        rankfile=settings.run_dir.rankfile,
        hostfile=settings.run_dir.hostfile,
        root=os.geteuid() == 0,  # `check_root` has seen that this is wanted
        ssh=settings.ssh,
        exports=tuple(name for name in exports if name in ranks_environ),
        extra=settings.mpi_args,
        program=(sys.executable, "-I", "-S", START, *settings.program),
        overload=placement.shares_cores,
    )
    argv = command(mpirun, job)
    return Plan(
        placement, reason, order_reason, mpirun, transport, argv,
        tuple(sorted(variables.items())), removed, job.exports, settings.run_dir,
        (*placement_notes(placement), *_warnings(settings, machines, mpirun.major), *notes),
        settings.rankfile[1] if settings.rankfile else None, settings.run_id,
        "left to MPI" if network is None else network.said + ("" if over else "; left to MPI"),
    )  # fmt: skip


def _warnings(settings: Settings, machines: Mapping[str, Machine], major: int) -> Iterator[str]:
    if settings.rankfile is not None:
        from ddlrun.lint import lint  # noqa: PLC0415 - for the user's own rank file alone

        name, text = settings.rankfile
        for one in lint(text, machines.get):
            if not one.error and one.matters(major) and "has a dot" not in one.what:
                yield f"{name}{one.place}: {one.what}; {one.really(major)}"


def choose_order(wanted: str, mode: str | None) -> tuple[RankOrder, str]:
    """Return the rank order and why: `auto` is contiguous on a host, unless DDL is asked for."""
    if wanted != "auto":
        return RankOrder(wanted), f"--rank-order {wanted}"
    if mode is not None:
        return RankOrder.DDL, f"--mode {mode} asks for DDL, whose grid numbers X slowest"
    return RankOrder.HOST, "contiguous on a host: flat collectives and device meshes expect it"


def find_mpirun(named: str | None, environ: Mapping[str, str]) -> Callable[[], Mpirun]:
    """Find mpirun and ask for its version: --mpirun, else beside this Python, else on PATH.

    What it returns waits for the answer, so that the hosts can be asked meanwhile.

    The one beside this Python comes first: mpi4py loads the MPI of its own environment, and ranks
    started by another one would not find each other. Raises PreflightError with the remedy.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpirun")
    if named is not None:
        path, reason = _which(named, environ), "--mpirun"
    elif os.access(beside, os.X_OK):
        path, reason = beside, "beside this Python, whose mpi4py loads the same MPI"
    else:
        path, reason = _which("mpirun", environ), "first on PATH"
    if path is None:
        raise PreflightError(f"{named or 'mpirun'} is not there or cannot be run; {REMEDY}")
    return cache(partial(_version, os.path.abspath(path), reason, begin([path, "--version"])))


def _version(path: str, reason: str, answered: Callable[[], Finished]) -> Mpirun:
    answer = answered()
    if answer.code != 0:
        said = (answer.err or answer.out).strip().splitlines()[:1]
        raise PreflightError(f"{path} --version fails ({said[0] if said else answer.code}); {REMEDY}")
    return parse_version(answer.out, path, reason)


# The user's own ways to bind threads, which the plan knows nothing of.
BINDING_THREADS = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND")


def _variables(
    settings: Settings, mpirun: Mpirun, placement: Placement, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return what ddlrun sets for the ranks, and notes on what the user had set already."""
    own = {*settings.variables, *settings.named}
    chosen = own & {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
    variables = rank_variables(placement, settings.mode or "p", "unchanged" if chosen else settings.visible_gpus)
    notes = [f"{name}: left as you set it" for name in sorted(chosen)]
    notes += [f"{name} is set: OpenMP binds threads as it says" for name in BINDING_THREADS if name in environ]
    if settings.bind_threads is not None:
        variables |= (
            {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"} if settings.bind_threads else {"OMP_PROC_BIND": "false"}
        )
    # `run` fills these in: without them, as for those who paste the command, ranks have no keeper.
    variables |= dict.fromkeys((wire.ADDRESSES, "DDLRUN_GRACE", "DDLRUN_HEARTBEAT", "DDLRUN_RUN"), "")
    variables["DDLRUN_RESTART"] = "0"
    if mpirun.major == 5:  # its own TERM leads to a KILL after 1 s; 4.1 would sleep that long in any case
        variables["PRTE_MCA_odls_base_sigkill_timeout"] = str(min(int(settings.watch.grace + 5), 1 << 30))
    if settings.strict_binding:
        variables["DDLRUN_STRICT_BINDING"] = "1"
    if settings.mode is None and "DDL_OPTIONS" in environ:
        _check_ddl_options(environ["DDL_OPTIONS"], placement.topology)
        notes.append("DDL_OPTIONS: left as you set it")
        del variables["DDL_OPTIONS"]
    if mpirun.major != 4 or is_local(settings.hosts.names[0], os.uname().nodename):
        variables["DDLRUN_STDIN"] = os.devnull  # `run` puts our own there; see rank.py
    if "PYTHONUNBUFFERED" not in environ:
        variables["PYTHONUNBUFFERED"] = "1"
    variables |= settings.variables
    path = variables.get("PATH", environ.get("PATH"))
    if path is not None and mpirun.major == 4:  # it puts its own folder before the user's
        variables["DDLRUN_PATH"] = path
    set_by_user = variables.get("OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS"))
    notes.append(
        "OMP_NUM_THREADS: one a core" if set_by_user is None else f"OMP_NUM_THREADS: {set_by_user}, as you set it"
    )
    return variables, notes


def _check_ddl_options(options: str, topology: Topology) -> None:
    words = options.split()
    if "-mode" not in words[:-1]:
        return
    said = words[words.index("-mode") + 1].partition(":")[2]
    if said and parse_topology(said, "DDL_OPTIONS").dims != topology.dims:
        raise InputError(f"DDL_OPTIONS says {said}, but the topology is {topology}; unset one of them")


def _which(name: str, environ: Mapping[str, str]) -> str | None:
    import shutil  # noqa: PLC0415 - 2 ms that an mpirun beside this Python spares

    return shutil.which(name, path=environ.get("PATH"))


def _prefix(mpirun: str) -> str:
    return os.path.dirname(os.path.dirname(os.path.realpath(mpirun)))


def _mca_files(mpirun: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the text of the files in which a user or a site sets MCA parameters."""
    prefix = _prefix(mpirun)
    system = "/etc/openmpi" if prefix == "/usr" else f"{prefix}/etc"
    user = f"{environ.get('HOME', '')}/.openmpi"
    names = ("mca-params.conf", "openmpi-mca-params.conf", "openmpi-mca-params-override.conf")
    found: dict[str, str] = {}
    for path in [f"{folder}/{name}" for folder in (user, system) for name in names]:
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found[path] = file.read()
    return found


def _library(mpirun: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Tell mpi4py to load the library of this mpirun: another one would make each rank a job of its own."""
    if "MPI4PY_LIBMPI" in environ or "MPI4PY_MPIABI" in environ:
        return {}
    architecture = os.uname().machine.replace("ppc64le", "powerpc64le")
    folders = ("lib", "lib64", f"lib/{architecture}-linux-gnu")  # the last is Debian's
    paths = [f"{_prefix(mpirun)}/{folder}/libmpi.so.40" for folder in folders]
    found = [path for path in paths if os.path.exists(path)]
    return {"MPI4PY_LIBMPI": found[0]} if found else {}


def state_folder(environ: Mapping[str, str]) -> str:
    """Return where ddlrun keeps what it must remember: $XDG_STATE_HOME/ddlrun (~/.local/state without that)."""
    return (environ.get("XDG_STATE_HOME") or f"{environ['HOME']}/.local/state") + "/ddlrun"


def default_run_dir(environ: Mapping[str, str]) -> RunDir:
    """Return a new folder's name under the state folder; where that cannot be written, under $TMPDIR."""
    state = state_folder(environ)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    above = state
    while not os.path.exists(above) and above not in ("", "/"):
        above = os.path.dirname(above)
    if os.path.isdir(above) and os.access(above, os.W_OK):
        return RunDir(f"{state}/runs/{name}")
    return RunDir(f"{environ.get('TMPDIR') or '/tmp'}/ddlrun-{name}-{os.urandom(4).hex()}")  # noqa: S108


def born(pid: int) -> str | None:
    """Return what tells a process from a later one of the same number: the boot, and when it was started in it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file, open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            fields = file.read().rpartition(b")")[2].decode().split()
            return None if fields[0] == "Z" else f"{boot.read().strip()} {fields[19]}"
    except OSError:
        return None


@contextmanager
def _known(plan: Plan, environ: Mapping[str, str]) -> Iterator[None]:
    """While the run lasts, keep a note of it where `ddlrun ps` looks."""
    folder = f"{state_folder(environ)}/active"
    path = f"{folder}/{plan.run_id}"
    note = {
        "run": plan.run_id, "run_dir": plan.run_dir.path, "hosts": list(plan.placement.hosts.names),
        "ranks": plan.placement.topology.size, "pid": os.getpid(), "host": os.uname().nodename,
        "born": born(os.getpid()), "started": time.time(), "program": list(plan.argv[plan.argv.index(START) + 1 :]),
    }  # fmt: skip
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _write(path, [json.dumps(note), "\n"])
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)


def write_run_dir(plan: Plan) -> None:
    """Write the run folder: rank file, hostfile, plan, command, names of variables.

    Raises InputError where the folder holds an earlier run or cannot be written.
    """
    files = plan.run_dir
    if os.path.exists(files.plan):
        raise InputError(f"run folder {files.path} holds an earlier run; name another with --run-dir")
    slots = plan.placement.topology.accelerators
    hosts = (Host(host.name, slots) for host in plan.placement.hosts)
    try:
        os.makedirs(files.path, mode=0o700, exist_ok=True)  # what a job prints is its user's business
        rendered = rankfile.render(plan.placement, f"by ddlrun: {plan.placement.topology}")
        _write(files.rankfile, rendered if plan.rankfile is None else [plan.rankfile])
        _write(files.hostfile, [render_hostfile(hosts)])
        _write(files.command, [shown_command(plan), "\n"])
        _write(files.environment, (f"{name}\n" for name in plan.exports))
        _write(files.plan, [json.dumps(plan.as_dict()), "\n"])
    except OSError as error:
        raise InputError(f"run folder {files.path}: {error.strerror}; name another with --run-dir") from error


def make_output_folder(watch: Watch) -> None:
    """Make the folder for ranks' output. Raises InputError where that cannot be."""
    folder = watch.style.folder
    try:
        if folder is not None:
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output-filename {folder}: {error.strerror}; name another folder") from error


def write_report(plan: Plan, report: str) -> None:
    """Keep the report of a failed run in its folder, if there is room."""
    with suppress(OSError):
        _write(plan.run_dir.report, [report])


def _write(path: str, blocks: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.writelines(blocks)


def shown_command(plan: Plan) -> str:
    """Return the command as a shell would take it, with the variables that ddlrun sets but those that are secret."""
    shown = redacted(dict(plan.variables))
    variables = [f"{name}={value}" for name, value in shown.items() if value != REDACTED]
    removed = [word for name in plan.removed for word in ("-u", name)]
    secret = ", ".join(name for name, value in shown.items() if value == REDACTED)
    return shlex.join(["env", *removed, *variables, *plan.argv]) + (f"  # set {secret} yourself" if secret else "")


def run(plan: Plan, watch: Watch, environ: Mapping[str, str], sweep: Callable[[Sequence[str]], object]) -> Outcome:
    """Start the job, stay with it to its end, and leave its output and outcome in the run folder.

    `sweep` ends what is left of the run on hosts where nobody else can.
    """
    files = plan.run_dir
    environ = {name: value for name, value in {**environ, **dict(plan.variables)}.items() if name not in plan.removed}
    local = is_local(plan.placement.hosts.names[0], os.uname().nodename)
    if local and not os.isatty(0):
        environ["DDLRUN_STDIN"] = _own_stdin()
    through_mpirun = "DDLRUN_STDIN" not in environ and not os.isatty(0)
    known = () if watch.addresses == LOOPBACK else watch.addresses
    addresses = tuple(dict.fromkeys((*known, *_own_addresses(plan.placement.hosts))))
    watch = watch._replace(ranks=plan.placement.topology.size, addresses=addresses, host_of=_hosts_by_rank(plan))
    environ["DDLRUN_RUN"] = plan.run_id
    with _session_folder(plan, environ) as session, _known(plan, environ):
        done = run_job(plan.argv, {**environ, **session}, watch, files, stdin=through_mpirun)
    if done.unswept:
        sweep(sorted(done.unswept))
    with suppress(OSError):  # a full disk changes nothing about how the job ended
        _write(files.binding, [json.dumps(bindings(done.bound, watch.ranks)), "\n"])
        _write(files.outcome, [json.dumps(done.outcome.as_dict()), "\n"])
    return done.outcome


def _hosts_by_rank(plan: Plan) -> Callable[[int], str]:
    @cache
    def hosts() -> dict[int, str]:
        return {placed.rank: placed.host.name for placed in plan.placement.by_host()}

    return lambda rank: hosts()[rank]


BOUND_FIELDS = ("rank", "host", "cpus", "planned", "gpus", "problem")


def bindings(reports: Iterable[str], ranks: int) -> dict[str, object]:
    """Return what ranks said of their binding as JSON can carry it: how many there are, said so, and differ."""
    records = [dict(zip(BOUND_FIELDS, report.split("\t"), strict=True)) for report in reports]
    records.sort(key=lambda record: int(record["rank"]))
    different = [int(record["rank"]) for record in records if record["problem"]]
    known = [{**record, "rank": int(record["rank"])} for record in records]
    return {"ranks": ranks, "reported": len(records), "different": different, "bindings": known}


def _own_addresses(hosts: HostList) -> tuple[str, ...]:
    """Return this machine's addresses that the job's hosts reach: those from which it would talk to them."""
    own_name = os.uname().nodename
    others = [name for name in hosts.names if not is_local(name, own_name)]
    if not others:
        return LOOPBACK
    import socket  # noqa: PLC0415 - 6 ms, for jobs over several hosts alone

    found: dict[str, None] = {}
    for name in others[:8]:
        try:
            candidates = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, _, _, address in candidates:
            with suppress(OSError), socket.socket(family, kind) as probe_socket:
                probe_socket.connect(address)  # sends nothing: it only asks the routes
                found[str(probe_socket.getsockname()[0])] = None
    return tuple(found) or (own_name,)


@contextmanager
def _session_folder(plan: Plan, environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Give mpirun a new folder for its session, where all ranks are on this host, and remove it afterwards.

    Its own in /tmp has the process's number: an mpirun that was killed leaves it behind, and one of Open
    MPI 5 that later gets the same number stops ("listener thread failed to start").
    """
    names = ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")
    alone = all(is_local(name, os.uname().nodename) for name in plan.placement.hosts.names)
    if not alone or any(name in environ for name in names):
        yield {}
        return
    path = f"{environ.get('TMPDIR') or '/tmp'}/ddlrun-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108
    try:
        os.mkdir(path, 0o700)
    except OSError:  # mpirun then says what is wrong with its temporary folder
        yield {}
        return
    try:
        yield dict.fromkeys(names, path)
    finally:
        import shutil  # noqa: PLC0415 - 2 ms that can wait to the end

        shutil.rmtree(path, ignore_errors=True)


def _own_stdin() -> str:
    """Return where rank 0 finds our standard input, as its keeper reads it: a path, and a file's offset."""
    path = f"/proc/{os.getpid()}/fd/0"
    mode = os.fstat(0).st_mode
    if stat.S_ISREG(mode):
        return f"{path}@{os.lseek(0, 0, os.SEEK_CUR)}"
    return path if os.access(path, os.R_OK) and not stat.S_ISSOCK(mode) else f"/proc/{os.getpid()}/fd/{copied_stdin()}"
