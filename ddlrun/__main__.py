"""Entry point of `ddlrun` and of `python -m ddlrun`."""

import _signal  # signal itself takes 4 ms to import
import os


def _leave(_number: int, _frame: object) -> None:
    """End at once: Ctrl-C while modules are imported leaves nothing behind."""
    os._exit(130)


if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _leave)

from ddlrun.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
