"""ddlrun network: what the network of some hosts does for a job."""

import click

from ddlrun.cli.groups import LazyGroup

SECTIONS = {
    "Measurements": {
        "racks": "Find the racks of HOSTS by measurement.",
        "bench": "Measure links and collectives on HOSTS.",
        "tune": "Find the fastest settings for HOSTS.",
    },
    "Predictions": {
        "plan": "Predict the step time of every topology.",
    },
}
SYNONYMS = {
    "benchmark": "bench", "measure": "bench", "links": "bench", "rack": "racks", "topology": "racks", "predict": "plan",
    "forecast": "plan", "autotune": "tune",
}  # fmt: skip


@click.group(cls=LazyGroup, sections=SECTIONS, package=__name__, synonyms=SYNONYMS)
def command() -> None:
    """Measure the network of HOSTS, tune for it, or predict a job on it.

    racks, bench and tune start a job on HOSTS. tune saves what it finds, and ddlrun launch uses it on the same hosts.
    plan only computes, so HOSTS need not exist: its links are presets, a description, or bench's output file.
    """
