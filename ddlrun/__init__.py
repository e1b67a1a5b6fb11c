"""ddlrun: the launcher for distributed training that knows where every rank is."""

__version__ = "0.1.0"

# The functions and classes that a program imports from here, and their modules. They are imported at their first use,
# as the process beside each rank imports this module, too.
PUBLIC = {
    "DdlrunError": "ddlrun.errors",
    "JobError": "ddlrun.api.function",
    "Outcome": "ddlrun.plan.outcome",
    "RankEnd": "ddlrun.plan.outcome",
    "launch": "ddlrun.api.launch",
    "run": "ddlrun.api.function",
}


def __getattr__(name: str) -> object:
    """Import a public function or class."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - 0.3 ms, in the process beside each rank, too

    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> "list[str]":  # quoted for Python 3.8, which may run the agent
    return [*globals(), *PUBLIC]
