"""The container in which the ranks run: the runtime and its image."""

import json
import os
import shlex
from collections.abc import Callable
from typing import NamedTuple

from ddlrun.environment.open_mpi import PREFIXES
from ddlrun.errors import InputError

AUTO = "auto"
# The Python that runs a script in an image.
PYTHON = "python3"
# Variables that hold paths of the host. Ranks in a container have those of the image, unless the user sets them.
HOST_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV", "MPI4PY_LIBMPI", *PREFIXES,
)  # fmt: skip
EXISTS = "test -e {image}"


class Runtime(NamedTuple):
    """A container runtime."""

    program: str
    kinds: frozenset[str]
    """The kinds of images that it takes: "folder", "name", "url", ".sif" or ".sqsh"."""
    has_image: str
    """The shell command that succeeds where a host has an image that is not a file; empty: it cannot be known."""
    get_image: str = ""
    """The command that gets such an image."""


# In the order in which they are tried.
RUNTIMES = {
    "podman": Runtime("podman", frozenset(("name", "folder")), "podman image exists {image}", "podman pull {image}"),
    "docker": Runtime("docker", frozenset(("name",)), "docker image inspect {image}", "docker pull {image}"),
    "apptainer": Runtime("apptainer", frozenset((".sif", "url", "folder")), ""),
    "charliecloud": Runtime("ch-run", frozenset(("folder",)), ""),
    "bwrap": Runtime("bwrap", frozenset(("folder",)), ""),
    "enroot": Runtime("enroot", frozenset((".sqsh", "name")), "enroot list | grep -qxF {image}", "enroot create"),
}


class ContainerRequest(NamedTuple):
    """The container of the ranks."""

    runtime: str
    """One of RUNTIMES."""
    image: str
    """A name, or an absolute path."""
    args: tuple[str, ...] = ()
    """Additional words for the runtime."""

    @property
    def program(self) -> str:
        """The runtime's program."""
        return RUNTIMES[self.runtime].program

    @property
    def test(self) -> str:
        """The shell command that succeeds where a host has the image; empty: it cannot be known."""
        kind = image_kind(self.image)
        test = RUNTIMES[self.runtime].has_image if kind == "name" else "" if kind == "url" else EXISTS
        return test.format(image=shlex.quote(self.image))

    @property
    def remedy(self) -> str:
        """How a host gets the image."""
        command = RUNTIMES[self.runtime].get_image.format(image=self.image) if image_kind(self.image) == "name" else ""
        return command or "copy it there, or send it along: `--ship`"

    def variable(self, user_variables: frozenset[str]) -> str:
        """Return the value of the keepers' variable; the user sets some variables for the ranks."""
        record = {
            "runtime": self.runtime,
            "program": self.program,
            "image": self.image,
            "args": self.args,
            "hidden": [name for name in HOST_VARIABLES if name not in user_variables],
        }
        return json.dumps(record)


def image_kind(image: str) -> str:
    """Return the kind of an image: one of those in Runtime.kinds.

    >>> image_kind("docker://pytorch/pytorch"), image_kind("/images/train.sif"), image_kind("pytorch/pytorch:2.5")
    ('url', '.sif', 'name')
    """
    if "://" in image:
        return "url"
    ending = os.path.splitext(image)[1]
    if ending in (".sif", ".sqsh"):
        return ending
    return "folder" if image.startswith(("/", "./", "../")) or os.path.isdir(image) else "name"


def choose_runtime(image: str, runtime: str, find: Callable[[str], str | None]) -> str:
    """Return the runtime for an image: the named one, else the first that is installed here and takes the image.

    Raises InputError where there is none.
    """
    kind = image_kind(image)
    fitting = [name for name, entry in RUNTIMES.items() if kind in entry.kinds]
    if runtime == AUTO:
        chosen = next((name for name in fitting if find(RUNTIMES[name].program)), None)
        if chosen is None:
            programs = ", ".join(RUNTIMES[name].program for name in fitting)
            raise InputError(
                f"`--container` {image}: no program for such an image is on PATH here ({programs}); install one, or "
                "name that of the hosts: `--container-runtime`"
            )
        return chosen
    if runtime not in fitting:
        raise InputError(
            f"`--container` {image}: {runtime} takes no image of this kind ({kind}); take {' or '.join(fitting)}"
        )
    return runtime
