"""Entry point of `ddlrun` and of `python -m ddlrun`."""

import os

from ddlrun.keeper.bare_signal import signal


def _exit(_number: int, _frame: object) -> None:
    """Exit on Ctrl-C while modules are imported: nothing needs to be cleaned up yet."""
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _exit)

from ddlrun.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
