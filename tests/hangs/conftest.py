"""The programs of jobs are not modules with doctests: their import begins MPI, or needs a framework."""

collect_ignore = ["hang.py", "healthy.py", "kinds"]
