"""Entry point of `python -m ddlrun`."""

from ddlrun.cli import main

main()
