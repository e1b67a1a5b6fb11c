"""The frames of a stack: those of the user's program, and those in which a library communicates."""

import re
from collections.abc import Sequence

from ddlrun.hangs.snapshot import Frame

# Part of a path -> the library that communicates in it.
COMMUNICATION = (
    (r"/torch/(distributed|futures)/|/torch/nn/parallel/distributed\.py$", "torch.distributed"),
    (r"/jax/experimental/multihost_utils\.py$", "JAX"),
    (r"mpi4py/|(^|/)libmpi[^/]*\.so|(^|/)MPI\.[^/]*\.so$", "MPI"),
    (r"/horovod/", "Horovod"),
    (r"/ddlrun/ddl/", "ddlrun.ddl"),
)
LOADER = r"/torch/utils/data/"
# What multihost_utils calls.
JAX_ITSELF = r"/(jax|jaxlib)/(?!experimental/multihost_utils)"
STANDARD = r"(^|/)lib(64)?/(python|pypy)3?[^/]*/(?!site-packages|dist-packages)|^<frozen|^<attrs"
INSTALLED = r"/(site|dist)-packages/"
# ddlrun's own, among it the start-up hook.
OWN = r"/ddlrun/(ddl|keeper)/"
# Frameworks in folders of their own: a program that is installed itself is not one of them.
FRAMEWORKS = r"/(torch|mpi4py|horovod|numpy|tensorflow|jax|jaxlib|keras|lightning|accelerate|transformers)/"
# Functions that only call another one of the same library.
WRAPPERS = frozenset(("wrapper", "wrapped", "inner", "_fn", "decorate_context", "__call__", "decorate", "checked"))
# Functions that communicate, without underscores and in small letters.
COLLECTIVES = frozenset(
    """
    allreduce barrier broadcast bcast reduce allgather gather scatter alltoall reducescatter scan exscan
    allgatherv gatherv scatterv alltoallv alltoallw allgatherobject gatherobject broadcastobjectlist
    scatterobjectlist allgatherintotensor reducescattertensor alltoallsingle monitoredbarrier
    allreducecoalesced allgathercoalesced reducescatterblock broadcastparameters broadcastobject
    initprocessgroup newgroup processgroupgloo processgroupnccl destroyprocessgroup
    synchronize dup split create spawn shutdown init finalize
    """.split()
)
# Functions that return at once; programs call them in loops.
POLLS = frozenset("test testall testany testsome iprobe improbe iscompleted".split())
POINT_TO_POINT = POLLS | frozenset(
    """
    send recv isend irecv ssend bsend rsend sendrecv probe mprobe wait waitall waitany waitsome sendobjectlist
    recvobjectlist batchisendirecv
    """.split()
)
# Names of these that other functions have, too.
COMMON = frozenset("split create dup init scan spawn finalize test probe shutdown synchronize reduce".split())
# The method of a request of mpi4py, unlike other functions of that name.
MPI_TEST = "Test"
# The calls of a line of source: `comm.allreduce(`, `dist.all_reduce(`.
CALL = r"\b(\w+)\s*\("
# A wait for a key that another rank sets.
STORE_CALL = r"store\w*\.(get)\("
NATIVE_MPI = r"P?MPI_(\w+)"
# Before the name of an operation of Horovod.
OF = " of "


def is_native(frame: Frame) -> bool:
    """Return True for a function that was not written in Python."""
    return not frame.line and not frame.file.endswith(".py")


def without_native(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames of Python."""
    return tuple(frame for frame in frames if not is_native(frame))


def find_own_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's program; None if there is no frame of Python."""
    python = without_native(frames)
    installed = (frame for frame in python if not re.search(f"{STANDARD}|{FRAMEWORKS}|{OWN}", frame.file))
    return find_program_frame(python) or next(installed, None) or next(iter(python), None)


def find_program_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's program; None if only libraries have frames of Python."""
    return next((frame for frame in without_native(frames) if not _in_library(frame)), None)


def _in_library(frame: Frame) -> bool:
    return bool(re.search(f"{STANDARD}|{INSTALLED}|{OWN}", frame.file))


def above(frames: Sequence[Frame], own: Frame | None) -> tuple[Frame, ...]:
    """Return the frames that the user's innermost frame has called, the innermost first."""
    frames = tuple(frames)
    return frames[: frames.index(own)] if own in frames else frames


def name_function(python: Sequence[Frame]) -> str:
    """Return the function of a library that the program has called, with its module; empty if there is none."""
    if not python:
        return ""
    module = python[-1].file.rpartition("/")[2].removesuffix(".py")
    return f"{module}.{python[-1].function}"


def normalize(name: str) -> str:
    """Return the name of a function as COLLECTIVES has it.

    >>> normalize("all_reduce"), normalize("Allreduce")
    ('allreduce', 'allreduce')
    """
    return name.replace("_", "").lower()


def find_communication(frames: Sequence[Frame]) -> str | None:
    """Return the function of a library in which frames above the user's communicate; None if they do not.

    The innermost frame counts, apart from the standard library's, JAX's own and native code of other libraries: a model
    computes inside DistributedDataParallel.
    """
    counting = [frame for frame in frames if not re.search(f"{STANDARD}|{JAX_ITSELF}", frame.file)]
    libraries = [_library(frame) for frame in counting]
    known = [(frame, library) for frame, library in zip(counting, libraries, strict=True) if _counts(frame, library)]
    if not known or known[0][1] is None:
        return None
    library = known[0][1]
    return _entry([frame for frame, other in known if other == library])


def _counts(frame: Frame, library: str | None) -> bool:
    return library is not None or not is_native(frame)


def _library(frame: Frame) -> str | None:
    """Return the library that communicates in a frame; None if none does."""
    return next((library for pattern, library in COMMUNICATION if re.search(pattern, frame.file)), None)


def _entry(inside: Sequence[Frame]) -> str:
    """Return the function by which a program has entered a library; the frames are the innermost first."""
    known = [frame for frame in inside if normalize(_plain(frame)) in COLLECTIVES | POINT_TO_POINT]
    public = [frame for frame in inside if _plain(frame) not in WRAPPERS and not _plain(frame).startswith("_")]
    frame = (known or public or inside)[-1]
    return "".join([_plain(frame), *frame.function.partition(OF)[1:]])


def _plain(frame: Frame) -> str:
    """Return the name of a function without its class, of MPI's without the prefix."""
    name = frame.function.partition(OF)[0].rpartition(".")[2]
    match = re.fullmatch(NATIVE_MPI, name)
    return match[1] if match else name


def find_named_call(source: str) -> str | None:
    """Return the function that communicates among the calls of a line of source; None if there is none.

    >>> find_named_call("total = comm.allreduce(len(batch))")
    'allreduce'
    """
    names = (COLLECTIVES | POINT_TO_POINT) - COMMON
    calls = re.findall(CALL, source)
    named = next((name for name in calls if normalize(name) in names or name == MPI_TEST), None)
    return named or next(iter(re.findall(STORE_CALL, source)), None)
