"""A Python script under a debugger: ipdb where it is installed, otherwise pdb.

Unlike `python -m pdb`, it does not run the script again after its end: the other ranks do not start again either.
The debugged rank's own Python runs this file, by its path, with the script or `-m MODULE` and the arguments.
"""

# ruff: noqa: PLC0415 - a debugger is imported after sys.path is that of the script

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pdb import Pdb
    from types import CodeType

QUIT_CODE = 1


def main(words: "list[str]") -> None:
    """Run a script or a module, stopped before its first line; exit with its exit code, or 1 after `quit`."""
    import types
    from bdb import BdbQuit

    code, names = load_module(words[1], words[2:]) if words[0] == "-m" else load_script(words[0], words[1:])
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__dict__.update(names)
    debugger = create_debugger()
    debugger.reset()
    sys.settrace(debugger.trace_dispatch)  # Bdb.run does the same, but hides that the user quit
    try:
        exec(code, module.__dict__)  # noqa: S102 - the user's own script
    except BdbQuit:
        sys.exit(QUIT_CODE)  # not SystemExit, which the start-up hook does not notice before Python 3.12
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as Python itself does
        sys.settrace(None)
        report(error, module.__dict__)
        debugger.reset()
        debugger.interaction(None, error.__traceback__)
        sys.exit(QUIT_CODE)


def load_script(path: str, args: "list[str]") -> "tuple[CodeType, dict[str, object]]":
    """Return the code of a script and the names of its module; set sys.argv and sys.path for it."""
    import io

    with io.open_code(os.path.abspath(path)) as file:
        code = compile(file.read(), path, "exec")
    sys.argv[:] = [path, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    return code, {"__file__": path, "__package__": None, "__spec__": None, "__cached__": None}


def load_module(name: str, args: "list[str]") -> "tuple[CodeType, dict[str, object]]":
    """Return the code of a module, or of a package's __main__, and its names; set sys.argv and sys.path for it."""
    import importlib.util

    sys.path[0] = os.getcwd()
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(name + ".__main__")
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    code = None if spec is None or get_code is None else get_code(spec.name)
    if spec is None or code is None:
        raise SystemExit("No module named " + name)
    sys.argv[:] = [spec.origin or name, *args]
    names: dict[str, object] = {
        "__file__": spec.origin, "__package__": spec.parent, "__spec__": spec, "__loader__": spec.loader,
    }  # fmt: skip
    return code, names


def create_debugger() -> "Pdb":
    """Return a debugger of ipdb's kind where ipdb is installed, otherwise of pdb's."""
    import importlib.util
    import pdb  # noqa: T100 - this is the debugger

    if importlib.util.find_spec("ipdb") is not None:
        debugger: Pdb = importlib.import_module("IPython.terminal.debugger").TerminalPdb()
        return debugger
    return pdb.Pdb()


def report(error: BaseException, names: "dict[str, object]") -> None:
    """Print an uncaught exception as Python does, without the frames of the debugger."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is not names:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    sys.stderr.write("Uncaught exception: the debugger stands where it was raised; quit ends the job.\n")


if __name__ == "__main__":
    main(sys.argv[1:])
