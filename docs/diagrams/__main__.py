"""Writer of the pictures in docs/diagrams/: `python -m docs.diagrams`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.diagrams import data, job, processes
from docs.diagrams.drawing import Drawing

FOLDER = Path(__file__).parent
PICTURES: Mapping[str, Callable[[], Drawing]] = {
    "job": job.draw_job,
    "rank-orders": job.draw_rank_orders,
    "pipeline": processes.draw_pipeline,
    "processes": processes.draw_processes,
    "failure": processes.draw_failure,
    "daemons": processes.draw_daemons,
    "allreduce": data.draw_allreduce,
    "links": data.draw_links,
    "reading": data.draw_reading,
}


def main() -> None:
    """Write every picture."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().render())


if __name__ == "__main__":
    main()
