"""The script of ddlrun's own process manager, and of its agents: it imports the modules beside it."""

import gc
import os
import sys

if sys.version_info < (3, 8):  # noqa: UP036 - whatever a host has at this path
    _OWN = sys.version.split()[0]
    sys.exit(f"ddlrun: {os.uname()[1]}: {sys.executable} is Python {_OWN}, and agents need 3.8 or later")
gc.disable()  # collections while modules are imported take 1 ms; main.py enables it
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, _ROOT)
from ddlrun.agent.main import main

if __name__ == "__main__":
    main(sys.argv[1:])
