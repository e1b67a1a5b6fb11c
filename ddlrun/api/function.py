"""The launch of a Python function on every rank."""

import io
import linecache
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, ClassVar, TypeVar

from ddlrun.api.call import FUNCTION, find_pickler, result_name
from ddlrun.api.launch import LaunchedJob, launch_job
from ddlrun.api.options import OptionValue
from ddlrun.errors import InputError
from ddlrun.remote.temporary_folder import temporary_folder
from ddlrun.runs.store import state_folder
from ddlrun.wording import signal_name

T = TypeVar("T")
# The file of each function that cloudpickle pickles.
NO_FILE = "<dynamic-code>"


class JobError(Exception):
    """A job whose ranks did not all return a result.

    Attributes:
        outcome: How the job ended.
        rank: The rank that failed first; None if the job failed as a whole, for example because of a time limit.
        host: Its host.
        error: The exception that the function raised there; None if it was another failure, or if the exception cannot
            be pickled.
        run_dir: The folder of the run, which has its logs.
    """

    def __init__(self, text: str, job: LaunchedJob, error: BaseException | None = None) -> None:
        super().__init__(text)
        self.outcome = job.outcome
        root = job.outcome.root
        self.rank = None if root is None else root.rank
        self.host = None if root is None else root.host
        self.error = error
        self.run_dir = job.run_dir.path


def run(function: Callable[..., T], /, *args: Any, **options: OptionValue) -> list[T]:  # noqa: ANN401 - the function's
    """Call a function on every rank of a job, and return the results in the order of the ranks.

    The function and its arguments are pickled: by cloudpickle if it is installed, which also pickles functions of
    notebooks and scripts, and lambdas. All hosts need the same Python and modules, and the folder of ddlrun's state
    (`~/.local/state/ddlrun`) or `run_dir` on a file system that they share.

    Output, interrupts and options are as for `ddlrun.launch`.

    Args:
        function: The function. For keyword arguments, use functools.partial.
        args: Its arguments.
        options: Options of `ddlrun launch`, as for `ddlrun.launch`.

    Raises:
        JobError: A rank raised an exception, whose traceback is the text, or the job failed in another way.
        DdlrunError: The job was not started, as for `ddlrun.launch`.

    Examples:
        >>> import ddlrun
        >>> def train(rate):
        ...     from ddlrun import ddl
        ...     ddl.init()
        ...     return ddl.rank() * rate
        >>> ddlrun.run(train, 0.5, np=2)  # doctest: +SKIP
        [0.0, 0.5]
    """
    for name in {"args", "kwargs"}.intersection(options):
        raise InputError(f"{name}: give the arguments of the function after it: run(train, 0.5)")
    with _call_folder(options.get("run_dir"), _pickle(function, args)) as folder:
        inner = function.func if isinstance(function, partial) else function
        name = getattr(inner, "__qualname__", type(inner).__qualname__)  # for ddlrun runs --processes and the like
        job = launch_job(("ddlrun.api.call", name, folder), {**options, "m": True}, raises=True)
        return _read_results(job, folder)


def _pickle(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Return the call, the paths of modules that it needs, and the source of notebook cells. Raises InputError."""
    if not callable(function):
        script = f", or launch a script: ddlrun.launch({function!r})" if isinstance(function, str) else ""
        raise InputError(f"{function!r} is not a function; give a function and arguments: run(train, 0.5){script}")
    pickler = find_pickler()
    if pickler is pickle and getattr(function, "__module__", None) == "__main__":
        raise InputError(
            f"{function!r} is defined in a script or a notebook, which needs cloudpickle: "
            f"{sys.executable} -m pip install cloudpickle"
        )
    try:
        call = pickle.dumps((function, args)) if pickler is pickle else _pickle_code((function, args), pickler)
    except Exception as error:
        raise InputError(f"{function!r} and its arguments cannot be pickled: {error}") from error
    cells = {name: entry for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None}
    return pickle.dumps((sys.path, cells, call))


def _pickle_code(value: object, cloudpickle: Any) -> bytes:  # noqa: ANN401 - a module
    """Pickle a value so that its functions keep the names of their files, which tracebacks show."""
    reduce_code = cloudpickle.CloudPickler.dispatch_table[CodeType]

    def reduce(code: CodeType) -> tuple[object, tuple[object, ...]]:
        create, arguments = reduce_code(code)
        return create, tuple(code.co_filename if argument == NO_FILE else argument for argument in arguments)

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # Any
        dispatch_table: ClassVar = ChainMap({CodeType: reduce}, cloudpickle.CloudPickler.dispatch_table)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


@contextmanager
def _call_folder(run_dir: OptionValue, pickled: bytes) -> Iterator[str]:
    """Provide a folder with the function and for its results, which all hosts should see. Raises InputError."""
    above = os.path.abspath(str(run_dir)) if run_dir else state_folder({"HOME": os.path.expanduser("~"), **os.environ})
    with ExitStack() as stack:
        try:
            os.makedirs(above, mode=0o700, exist_ok=True)
            folder = stack.enter_context(temporary_folder("call-", above))
            with open(f"{folder}/{FUNCTION}", "wb") as file:
                file.write(pickled)
        except OSError as error:
            raise InputError(f"{above}: {error.strerror}; name a folder that all hosts share with run_dir") from error
        yield folder


@dataclass(frozen=True, slots=True)
class _RankResult:
    """The file of a rank: its pickled result, or else the text of its traceback and the pickled exception."""

    result: bytes | None = None
    traceback: str = ""
    error: bytes | None = None


def _read_results(job: LaunchedJob, folder: str) -> list[Any]:
    """Return the results of all ranks. Raises JobError."""
    if job.outcome.exit_code:
        raise _failure(job, folder)
    ranks = sorted(end.rank for end in job.outcome.ends)
    results = [_read_result(job, folder, rank).result for rank in ranks]
    if None in results:
        raise JobError(f"rank {ranks[results.index(None)]} exited before the function had returned", job)
    return [pickle.loads(result or b"") for result in results]  # noqa: S301 - written by the user's own rank


def _read_result(job: LaunchedJob, folder: str, rank: int) -> _RankResult:
    """Return the file of a rank in the last attempt, an empty result if it has written none."""
    try:
        with open(f"{folder}/{result_name(job.restarts, rank)}", "rb") as file:
            return _RankResult(*pickle.load(file))  # noqa: S301 - as above
    except FileNotFoundError:
        return _RankResult()


def _failure(job: LaunchedJob, folder: str) -> JobError:
    """Return the error of a job that failed."""
    root = job.outcome.root
    if root is None:
        return JobError(job.outcome.reason or f"the job ended with exit code {job.outcome.exit_code}", job)
    result = _read_result(job, folder, root.rank)
    place = f"rank {root.rank} on {root.host}"
    if result.traceback:
        return JobError(f"{place} failed:\n\n{result.traceback.rstrip()}", job, _unpickle_error(result.error))
    end = signal_name(root.signal) if root.signal else f"exit code {root.exit_code}"
    last_lines = f"\n\n{root.tail.rstrip()}" if root.tail else ""
    return JobError(f"{place} failed: {root.reason or end}{last_lines}", job)


def _unpickle_error(data: bytes | None) -> BaseException | None:
    """Return an exception of a rank; None if there is none, or if its class cannot be built again."""
    try:
        error = pickle.loads(data or b"")  # noqa: S301 - as above
    except Exception:  # noqa: BLE001 - the classes of exceptions are the user's
        return None
    return error if isinstance(error, BaseException) else None
