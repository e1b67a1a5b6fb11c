"""Record of binding.json: the type of its JSON, from which its schema is generated."""

from typing import TypedDict


class BindingRecord(TypedDict):
    """The cores and GPUs that a rank got."""

    rank: int
    host: str
    cpus: str
    """OS indexes of the CPUs that the rank may use, as a list with ranges."""
    planned: str
    """OS indexes of the CPUs of the plan; empty if the plan gives none."""
    gpus: str
    """GPUs that the rank sees."""
    problem: str
    """How the binding differs from the plan; empty if it does not."""


class BindingsRecord(TypedDict):
    """The bindings of a run's ranks: binding.json in its folder."""

    ranks: int
    """Number of ranks of the job."""
    reported: int
    """Number of ranks that reported their binding."""
    different: list[int]
    """Ranks whose binding differs from the plan."""
    bindings: list[BindingRecord]
