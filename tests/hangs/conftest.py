"""The programs of hanging and healthy jobs are not modules with doctests: their import begins MPI."""

collect_ignore = ["hang.py", "healthy.py"]
