"""The options of containers, which several commands have."""

from ddlrun.cli.options import option, option_group
from ddlrun.cli.value_types import Choice
from ddlrun.plan.container import AUTO, RUNTIMES

# Other names of runtimes, and the tools around them.
SYNONYMS = {
    "singularity": "apptainer", "ch-run": "charliecloud", "bubblewrap": "bwrap", "pyxis": "enroot",
    "nvidia-docker": "docker",
}  # fmt: skip
container_options = option_group(
    option(
        "Container",
        "--container",
        metavar="IMAGE",
        help="Run the ranks in a container: the name of an image, a root folder, a .sif or .sqsh file.",
    ),
    option(
        "Container",
        "--container-runtime",
        type=Choice([AUTO, *RUNTIMES], SYNONYMS),
        default=AUTO,
        show_default=True,
        help="Container runtime; auto: the first one on PATH that takes IMAGE.",
    ),
)
container_args_option = option(
    "Container", "--container-args", metavar="ARGS", help="Additional arguments of the runtime, such as mounts."
)
