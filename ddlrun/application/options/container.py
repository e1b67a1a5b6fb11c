"""The container of --container, read from the options of a launch."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

from ddlrun.application.inputs import split_words
from ddlrun.errors import InputError, PreflightError
from ddlrun.plan.container import AUTO, ContainerRequest, choose_runtime, image_kind
from ddlrun.ship.request import ENVIRONMENT_WORD


def read_container(options: Mapping[str, Any]) -> ContainerRequest | None:
    """Return the container of the ranks; None without --container. Raises InputError."""
    image, runtime, args = (options.get(name) for name in ("container", "container_runtime", "container_args"))
    if not image:
        if args or runtime not in (None, AUTO):
            raise InputError(
                f"`--container-{'args' if args else 'runtime'}` has no effect without `--container`; add `--container` "
                "IMAGE"
            )
        return None
    if ENVIRONMENT_WORD in (options.get("ship") or "").split(","):
        raise InputError(
            "`--ship` env: ranks in a container have the Python of its image; leave out env or `--container`"
        )
    words = split_words(args, "`--container-args`")
    runtime = choose_runtime(image, runtime or AUTO, shutil.which)
    is_file = image_kind(image) not in ("name", "url")
    return ContainerRequest(runtime, os.path.abspath(image) if is_file else image, words)


def check_container(container: ContainerRequest) -> None:
    """Raise PreflightError where this machine lacks the runtime, or an image that is a file or a folder."""
    if shutil.which(container.program) is None:
        raise PreflightError(
            f"no {container.program} on PATH, which `--container` needs; install it, or `--container-runtime`"
        )
    if os.path.isabs(container.image) and not os.path.exists(container.image):
        raise PreflightError(f"`--container` {container.image}: no such file or folder")
