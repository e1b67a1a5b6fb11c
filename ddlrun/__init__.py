"""ddlrun: the launcher for distributed training on MPI clusters that knows where every rank is."""

__version__ = "0.1.0"
