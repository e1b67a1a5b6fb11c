"""Check of a rank's world: a library that sees fewer processes than the job has ends the rank before it trains.

The start-up hook loads this module when a rank imports a library that connects ranks. Where mpi4py or Horovod use
another MPI than the process manager's, each rank becomes rank 0 of 1 without any message.

A script may make a smaller world on purpose. It then gives the number of processes itself, and if that is 1, it gets
a note.
"""

# ruff: noqa: ANN401, INP001 - modules of any library; it imports nothing from the package
# mypy: disable-error-code="import-not-found"

import os
import sys
from functools import wraps

import ddlrun_flight_recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

EXIT_CODE = 5  # of a failed check, as in ddlrun.errors
# Where a process manager says how many processes it has started, and the number of one of them.
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
RANKS = ("DDLRUN_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK")
LIBRARIES = ("libmpi.so", "libmpi_cray", "libmpi_abi", "libmpich")
# The libraries that no Open MPI has: MPICH's, Intel's and Cray's.
MPICH_LIBRARIES = ("libmpi.so.12", "libmpi_cray", "libmpich")
UPGRADE = "pip install --force-reinstall 'mpi4py>=4.1', which loads the MPI that started it"
_own_pid = os.getpid()


def watch(name: str, loader: "Any", leave: "Callable[[int], None]") -> None:
    """Let a loader watch a module from its import on. `leave` ends the process with an exit code."""
    plain = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        del loader.exec_module
        if name == "mpi4py.MPI" and getattr(sys.modules["mpi4py"].rc, "initialize", False):
            _check_library(leave)  # the import initializes MPI
        plain(module)
        try:
            WATCHERS[name](module, leave)
        except AttributeError:  # another version of the library, which is not checked
            return

    loader.exec_module = exec_module


def _watch_mpi4py(mpi: "Any", leave: "Callable[[int], None]") -> None:
    """Check MPI's world now, and after each function that initializes MPI."""

    def check(*_: object) -> None:
        size = mpi.COMM_WORLD.Get_size()
        if _is_short(size) and not _is_started_with(size):
            libraries = _mapped_libraries()
            _end(f"{_sees('MPI', size)}: mpi4py uses {_describe(libraries)}, {_starter()}; {_remedy(libraries)}", leave)

    mpi.Init, mpi.Init_thread = (
        _between(lambda: _check_library(leave), function, check) for function in (mpi.Init, mpi.Init_thread)
    )
    if mpi.Is_initialized() and not mpi.Is_finalized():
        check()


def _check_library(leave: "Callable[[int], None]") -> None:
    """Check the MPI library before it is initialized: MPICH, for one, would end this process with other words."""
    libraries, pmi = _mapped_libraries(), _srun_type() or os.environ.get("DDLRUN_PMI", "")
    by_pmi = any(name in os.environ for name in ("PMI_RANK", "PMI_FD"))  # the rank may have started it by mpiexec
    if not libraries or by_pmi or not pmi.startswith("pmix") or not _is_short(1):
        return
    rank = f"rank {_rank()}: mpi4py uses"
    if all(os.path.basename(path).startswith(MPICH_LIBRARIES) for path in libraries):
        text = f"{_describe(libraries)}, {_starter()}: it would be alone, the job has {_job_size()} ranks"
        _end(f"{rank} {text}; {_remedy(libraries)}", leave)
    elif pmi == "pmix5" and _maps("/libopen-rte.so"):
        _note(f"{rank} Open MPI 4 ({libraries[0]}), {_starter()}: MPI_Init may fail; {_remedy(libraries)}")


def _watch_torch(module: "Any", leave: "Callable[[int], None]") -> None:
    plain = module.init_process_group

    def check(arguments: "tuple[object, ...]", words: "dict[str, object]") -> None:
        ddlrun_flight_recorder.offer()
        size = module.get_world_size()
        if not _is_short(size) or "TORCHELASTIC_USE_AGENT_STORE" in os.environ:  # torchrun has made worlds of its own
            return
        if module.get_backend() == "mpi":
            remedy = "build PyTorch with the MPI that starts the ranks, or take another backend"
            _end(f"{_sees('PyTorch', size)}: it uses {_describe(_mapped_libraries())}, {_starter()}; {remedy}", leave)
        elif size == 1:
            given = words.get("world_size", arguments[3] if len(arguments) > 3 else -1)
            source = "WORLD_SIZE" if given in (-1, None) else "the script"
            _note(f"{_sees('PyTorch', size)}: {source} says so")

    module.init_process_group = _between(None, plain, check)


def _watch_horovod(module: "Any", leave: "Callable[[int], None]") -> None:
    basics = module.HorovodBasics

    def check(arguments: "tuple[Any, ...]", words: "dict[str, Any]") -> None:
        size = arguments[0].size()
        by_script = words.get("comm", arguments[1] if len(arguments) > 1 else None)
        if not _is_short(size) or _is_started_with(size) or by_script not in (None, []):
            return
        if arguments[0].mpi_enabled():
            remedy = "build Horovod with the MPI that starts the ranks"
            _end(f"{_sees('Horovod', size)}: it uses {_describe(_mapped_libraries())}, {_starter()}; {remedy}", leave)
        elif "HOROVOD_SIZE" not in os.environ:
            remedy = "build Horovod with MPI, or set HOROVOD_RANK, HOROVOD_SIZE and Gloo's other variables"
            _end(f"{_sees('Horovod', size)}: it uses Gloo, for which no variable is set; {remedy}", leave)

    basics.init = _between(None, basics.init, check)


def _watch_jax(module: "Any", leave: "Callable[[int], None]") -> None:
    state = module.State

    def check(arguments: "tuple[Any, ...]", words: "dict[str, Any]") -> None:
        size = arguments[0].num_processes
        if not _is_short(size):
            return
        given = words.get("num_processes", arguments[2] if len(arguments) > 2 else None)
        if given is None and os.environ.get("JAX_NUM_PROCESSES") != str(size):
            remedy = "give jax.distributed.initialize() the numbers JAX_NUM_PROCESSES and JAX_PROCESS_ID"
            _end(f"{_sees('JAX', size)}: it took another launcher's number; {remedy}", leave)
        elif size == 1:
            source = "JAX_NUM_PROCESSES" if given is None else "the script"
            _note(f"{_sees('JAX', size)}: {source} says so")

    state.initialize = _between(None, state.initialize, check)


def _watch_tensorflow(module: "Any", leave: "Callable[[int], None]") -> None:  # noqa: ARG001 - it never ends a rank
    strategy = module.CollectiveAllReduceStrategy

    def check(arguments: "tuple[Any, ...]", _words: "dict[str, Any]") -> None:
        size = arguments[0].extended._num_workers  # noqa: SLF001 - the public number is that of GPUs
        if size == 1 and _is_short(size):
            source = "TF_CONFIG or the script says so" if "TF_CONFIG" in os.environ else "TF_CONFIG is not set"
            _note(f"{_sees('TensorFlow', size)}: {source}; see --framework tensorflow")

    strategy.__init__ = _between(None, strategy.__init__, check)


WATCHERS = {
    "mpi4py.MPI": _watch_mpi4py,
    "torch.distributed.distributed_c10d": _watch_torch,
    "horovod.common.basics": _watch_horovod,
    "jax._src.distributed": _watch_jax,
    "tensorflow.python.distribute.collective_all_reduce_strategy": _watch_tensorflow,
}


def _between(
    before: "Callable[[], None] | None",
    function: "Callable[..., Any]",
    after: "Callable[[tuple[Any, ...], dict[str, Any]], None]",
) -> "Callable[..., Any]":
    """Return a function with a check before it and one after it, which gets the arguments."""

    @wraps(function)
    def checked(*arguments: "Any", **words: "Any") -> "Any":
        if before is not None:
            before()
        result = function(*arguments, **words)
        after(arguments, words)
        return result

    return checked


def _job_size() -> int:
    return int(os.environ.get("DDLRUN_SIZE", "1"))


def _is_short(size: int) -> bool:
    """Return True if this is the rank's own process, and the job has more processes than a library sees."""
    checked = os.environ.get("DDLRUN_CHECK_WORLD", "1") != "0"
    return checked and os.getpid() == _own_pid and size < _job_size()


def _is_started_with(size: int) -> bool:
    """Return True if a process manager has started that many: an mpirun that the rank itself has started, say."""
    return str(size) in (os.environ.get(name) for name in SIZES)


def _rank() -> str:
    return next((os.environ[name] for name in RANKS if name in os.environ), "?")


def _sees(title: str, size: int) -> str:
    processes = "process" if size == 1 else "processes"
    return f"rank {_rank()}: {title} sees {size} {processes}, the job has {_job_size()}"


def _starter() -> str:
    mpi_type = _srun_type()
    how = f" with --mpi={mpi_type}" if mpi_type else ""
    return f"but {os.environ.get('DDLRUN_STARTED_BY', 'another MPI')} started it{how}"


def _srun_type() -> str:
    """Return the PMI by which Slurm connects the ranks; empty if it did not start this one."""
    by_srun = os.environ.get("DDLRUN_PMI") == "slurm"
    return os.environ.get("SLURM_MPI_TYPE", "none") if by_srun else ""


def _maps(part: str) -> "list[str]":
    """Return the files of this process that contain a part of a path."""
    with open("/proc/self/maps") as file:
        return list(dict.fromkeys(line.split(maxsplit=5)[-1].rstrip("\n") for line in file if part in line))


def _mapped_libraries() -> "list[str]":
    """Return the paths of the MPI libraries in this process."""
    return [path for path in _maps("/libmpi") if os.path.basename(path).startswith(LIBRARIES)]


def _describe(libraries: "list[str]") -> str:
    """Return the name, the version and the path of the first MPI library that this process has loaded."""
    import ctypes  # noqa: PLC0415 - where a rank fails alone

    if not libraries:
        return "an unknown MPI"
    library = libraries[0]

    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    ctypes.CDLL(library).MPI_Get_library_version(text, ctypes.byref(length))
    return f"{first_words(text.value.decode(errors='replace'))} ({library})"


def first_words(version: str) -> str:
    r"""Return the name and the number from what an MPI library says about itself.

    >>> first_words("MPICH Version:      4.3.0\nMPICH Release date: ..."), first_words("Open MPI v5.0.11, package: x")
    ('MPICH 4.3.0', 'Open MPI 5.0.11')
    >>> first_words("Intel(R) MPI Library 2021.18 for Linux* OS\n")
    'Intel(R) MPI Library 2021.18'
    """
    line = version.strip("\0\n ").splitlines()[0].split(",")[0].split(" for ")[0].replace("Version:", "")
    return " ".join(word[1:] if word[:1] == "v" and word[1:2].isdigit() else word for word in line.split())


def _remedy(libraries: "list[str]") -> str:
    """Return the remedy, from the libraries that mpi4py has loaded and the variables that choose one."""
    library = libraries[0] if libraries else ""
    mpich = os.path.basename(library).startswith(MPICH_LIBRARIES)
    if _srun_type():
        return f"use --mpi-args --mpi={'pmi2' if mpich else 'pmix'}"
    if not mpich and os.environ.get("DDLRUN_PMI") == "pmi1":
        return "use --process-manager openmpi"
    prefix = os.path.dirname(os.path.dirname(library))
    paths = [f"{folder}/bin/mpirun" for folder in (prefix, os.path.dirname(prefix)) if "libmpi.so.40" in library]
    other = ", or use --process-manager ddlrun" if mpich else ""
    own = next((f", or --mpirun {path}" for path in paths if os.path.exists(path)), other)
    if "MPI4PY_MPIABI" in os.environ:
        return f"unset MPI4PY_MPIABI{own}"
    chosen = os.environ.get("MPI4PY_LIBMPI", "")
    if chosen and os.path.realpath(chosen) == os.path.realpath(library):
        return f"unset MPI4PY_LIBMPI{own}"
    return UPGRADE + own


def _note(text: str) -> None:
    sys.stderr.write(f"ddlrun: {text}\n")
    sys.stderr.flush()


def _end(text: str, leave: "Callable[[int], None]") -> None:
    _note(text)
    leave(EXIT_CODE)
