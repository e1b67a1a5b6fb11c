"""Entry point of a ddlrun that another program has started, whose pid is its first argument."""

import sys

from ddlrun.cli import main
from ddlrun.remote.streamed_process import depend_on

if __name__ == "__main__":
    depend_on(int(sys.argv.pop(1)))
    main()
