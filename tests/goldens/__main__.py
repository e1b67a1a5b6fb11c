"""Generator of the golden rank files, pictures and job scripts: `make goldens`. Check the difference."""

from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any

from ddlrun.machine.hwloc import parse_hwloc
from ddlrun.mapping.placement import Placement
from ddlrun.mapping.policy import PlacementPolicy
from ddlrun.mapping.rankfile import render
from ddlrun.report.picture import Canvas, render_placement
from ddlrun.schedulers.submit import BatchJob
from ddlrun.schedulers.submit.registry import SCHEDULERS
from ddlrun.schedulers.submit.render import render as render_job
from ddlrun.topology import RankOrder, Topology
from tests.machines.facts import load
from tests.machines.render_hwloc import render_hwloc
from tests.support.shapes import machine, placement

FOLDER = Path(__file__).parent
TEMPLATES = FOLDER.parents[1] / "configs" / "jobs"
JOBS = [name for scheduler in SCHEDULERS for name in (scheduler, f"{scheduler}-all")]

# File -> (topology, hosts, machine, order)
GOLDENS: dict[str, tuple[str, list[str], str, RankOrder]] = {
    "4x2x3-minsky-ddl.rf": ("4x2x3", [f"n{i}" for i in range(1, 7)], "minsky", RankOrder.DDL),
    "4x2x3-minsky-host.rf": ("4x2x3", [f"n{i}" for i in range(1, 7)], "minsky", RankOrder.HOST),
    "2x2x2x2-2x22-ddl.rf": ("2x2x2x2", [f"n{i}" for i in range(1, 9)], "2x22", RankOrder.DDL),
    "1x2-4x6.rf": ("1x2", ["a", "b"], "4x6", RankOrder.DDL),
    "3x1-4x6.rf": ("3", ["a"], "4x6", RankOrder.DDL),
    "3x1-8+10.rf": ("3", ["a"], "8+10", RankOrder.DDL),
    "2x1-1x2.rf": ("2", ["10.0.0.1"], "1x2", RankOrder.DDL),
}

# Name -> (machine of tests/machines, topology, policy)
PLACEMENTS: dict[str, tuple[str, str, PlacementPolicy]] = {
    "minsky": ("minsky", "4x2", PlacementPolicy()),
    "minsky-8+10-cores": ("minsky-8+10-cores", "4", PlacementPolicy()),
    "ac922-22-cores": ("ac922-22-cores", "4x2", PlacementPolicy()),
    "ac922-22-cores-2-ranks-spread": ("ac922-22-cores", "2", PlacementPolicy(packing="spread")),
    "ac922-22-cores-2-ranks-pack": ("ac922-22-cores", "2", PlacementPolicy(packing="pack")),
    "ac922-20-cores": ("power9-lassen", "4", PlacementPolicy(reserve_cores=4)),
    "pascal-one-package-has-the-gpus": ("pascal", "2", PlacementPolicy()),
    "corona-gpus-far-from-numa-0": ("corona-4-gpus", "4", PlacementPolicy()),
    "corona-bound-to-numa-nodes": ("corona-4-gpus", "4", PlacementPolicy(bind="numa")),
    "corona-8-gpus": ("corona-8-gpus", "8", PlacementPolicy(cores_per_rank=4)),
    "g4dn": ("g4dn", "8", PlacementPolicy()),
    "dgx2-4-cores-visible": ("dgx2-cpuset", "4", PlacementPolicy(packing="spread")),
    "knl-snc4": ("knl-snc4", "5", PlacementPolicy()),
    "power7-4-packages": ("power-4-packages", "3", PlacementPolicy()),
    "cpuset-2+2+1+1+2+2": ("cpuset-6-of-8-packages", "4", PlacementPolicy()),
    "24-packages": ("24-packages", "8", PlacementPolicy()),
    "12-packages": ("12-packages", "5", PlacementPolicy()),
    "genoa": ("zen4-96", "6", PlacementPolicy()),
    "turin-gpus-on-nodes-1-2-6-7": ("turin-4-gpus", "4", PlacementPolicy()),
    "dgx-a100-two-gpus-per-odd-node": ("dgx-a100", "8", PlacementPolicy()),
    "tioga-a-gpu-per-l3-domain": ("tioga", "8", PlacementPolicy(reserve_cores=8)),
    "raptor-lake-both-kinds": ("raptor-lake", "2", PlacementPolicy()),
    "raptor-lake-fast-cores": ("raptor-lake", "2", PlacementPolicy(core_kinds="fast")),
}

COMMAND = (
    "/opt/ddlrun/bin/ddlrun",
    "launch",
    "--topology",
    "4x2x3",
    "--env",
    "NAME=two words",
    "train.py",
    "--epochs",
    "90",
)
# A plain job, and one with every option that a scheduler supports.
PLAIN = BatchJob(
    topology=Topology((4, 2, 3)), command=COMMAND, folder="/home/me/job", name="ddlrun-train", log=None, gpus=4
)
ALL = replace(PLAIN,
    seconds=5400, queue="gpu", account="vision", exclusive=True, cores=8, memory=262144,
    modules=("cuda/12.4", "gcc"), container=("apptainer", "exec", "--nv", "train image.sif"), warn=120, requeue=True,
)  # fmt: skip


def _default(name: str) -> Any:
    """Return the default of a job's field; None where it has none."""
    default = BatchJob.__dataclass_fields__[name].default
    return None if default is MISSING else default


def job(name: str) -> BatchJob:
    """Return the job of a name such as `slurm` or `slurm-all`, without options that the scheduler does not support."""
    scheduler = SCHEDULERS[name.partition("-")[0]]
    batch = ALL if name.endswith("-all") else PLAIN
    empty: dict[str, Any] = {name: _default(name) for name in scheduler.unsupported}
    empty |= {"cores": None} if scheduler.name == "sge" else {}  # 32 slots cannot share 4 GPUs
    values: dict[str, Any] = {
        "log": scheduler.log,
        "image": "example.org/train:1" if scheduler.name == "kubernetes" else None,
        "directives": "--extra option" if name.endswith("-all") else None,
    }
    return replace(batch, **(values | empty))


def job_file(name: str) -> Path:
    return FOLDER / "jobs" / f"{name}.{'yaml' if name.startswith('kubernetes') else 'sh'}"


def job_text(name: str) -> str:
    scheduler = SCHEDULERS[name.partition("-")[0]]
    template = (TEMPLATES / scheduler.template).read_text()
    return render_job(job(name), scheduler, template, scheduler.template, "1.0.0")


def placed(name: str) -> Placement:
    described, topology, policy = PLACEMENTS[name]
    probed = parse_hwloc(render_hwloc(load(described)), described)
    hosts = [f"n{i}" for i in range(1, int(topology.partition("x")[2] or 1) + 1)]
    return placement(topology, hosts, probed, policy=policy)


def drawn(name: str) -> str:
    return render_placement(placed(name), Canvas()) + "".join(render(placed(name), f"golden {name}"))


def text(name: str) -> str:
    topology, hosts, described, order = GOLDENS[name]
    return "".join(render(placement(topology, hosts, machine(described), order), f"golden {name}"))


if __name__ == "__main__":
    for name in GOLDENS:
        (FOLDER / name).write_text(text(name))
    for name in PLACEMENTS:
        (FOLDER / f"{name}.txt").write_text(drawn(name))
    for name in JOBS:
        job_file(name).write_text(job_text(name))
