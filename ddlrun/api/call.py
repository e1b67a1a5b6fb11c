"""The program of each rank of `ddlrun.run`, given the name of the function, for people, and the folder of the call."""

import importlib
import linecache
import os
import pickle
import sys
import traceback
from typing import Any, NoReturn

from ddlrun.environment.open_mpi import RANK_VARIABLES

# The file of the function and its arguments.
FUNCTION = "function"
EXIT_NO_FUNCTION = 2
# Variables of process managers with the number of a rank; the first that is set counts.
RANKS = ("DDLRUN_RANK", RANK_VARIABLES[0], "SLURM_PROCID")


def find_pickler() -> Any:  # noqa: ANN401 - a module with the functions of pickle
    """Return the module cloudpickle, or pickle if that is not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def result_name(restarts: int, rank: int) -> str:
    """Return the name of the file with a rank's result."""
    return f"result.{restarts}.{rank}"


def main(folder: str) -> None:
    """Call the function, and write its result or its exception; exit with 1 after an exception."""
    rank = next(int(os.environ[name]) for name in RANKS if name in os.environ)
    path = f"{folder}/{result_name(int(os.environ.get('DDLRUN_RESTART', '0')), rank)}"
    paths, cells, call = _read_function(folder)
    linecache.cache.update(cells)
    sys.path.extend(entry for entry in paths if entry not in sys.path)
    try:
        function, args = pickle.loads(call)  # noqa: S301 - as below
        result = function(*args)
    except Exception as error:  # noqa: BLE001 - the function's
        _fail(path, "".join(traceback.format_exception(type(error), error, _own_frames_left_out(error))), error)
    try:
        pickled = find_pickler().dumps(result)
    except Exception as error:  # noqa: BLE001 - the classes of results are the user's
        kind = type(result).__qualname__
        _fail(path, f"the return value of rank {rank} (type {kind}) cannot be pickled: {error}\n", error)
    _write(path, (pickled,))


def _fail(path: str, text: str, error: Exception) -> NoReturn:
    """Write an exception as the result, and exit."""
    _write(path, (None, text, _pickle_error(error)))
    sys.stderr.write(text)
    sys.exit(1)


def _read_function(folder: str) -> tuple[list[str], dict[str, Any], bytes]:
    """Return the paths of modules, the source of cells and the pickled function; exit if this host has none."""
    try:
        with open(f"{folder}/{FUNCTION}", "rb") as file:
            paths, cells, call = pickle.load(file)  # noqa: S301 - written by the user's own process
    except OSError as error:
        host = os.uname().nodename
        sys.stderr.write(
            f"ddlrun: {folder} on {host}: {error.strerror}; ddlrun.run passes the function in a folder that all hosts "
            "share: name one with run_dir=..., and call ddlrun.run again in place of ddlrun rerun\n"
        )
        sys.exit(EXIT_NO_FUNCTION)
    return paths, cells, call


def _own_frames_left_out(error: BaseException) -> Any:  # noqa: ANN401 - a traceback or None
    """Return the traceback of an exception from the user's function on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames


def _pickle_error(error: BaseException) -> bytes | None:
    """Return an exception; None if it cannot be pickled."""
    try:
        pickled: bytes = find_pickler().dumps(error)
    except Exception:  # noqa: BLE001 - the classes of exceptions are the user's
        return None
    return pickled


def _write(path: str, value: tuple[object, ...]) -> None:
    """Write a file that is complete as soon as it has its name."""
    with open(f"{path}.new", "wb") as file:
        pickle.dump(value, file)
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    main(sys.argv[2])
