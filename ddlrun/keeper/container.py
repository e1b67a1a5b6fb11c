"""The container of a rank: the command line that starts its program in an image."""

from __future__ import annotations

import os

# The PATH in a root file system, which has no variables of its own.
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEEPER_FOLDER = os.path.dirname(os.path.abspath(__file__))
LIMITS = {"core": "CORE", "memlock": "MEMLOCK", "nofile": "NOFILE", "nproc": "NPROC", "stack": "STACK"}
# Podman itself lowers its limit to this number.
MOST_PROCESSES = 1 << 15
# The lowest descriptor that --preserve-fds passes on.
FIRST_PRESERVED = 3
# Folders that every runtime here has from the host.
SYSTEM_FOLDERS = ("dev", "proc", "sys")
# Runtimes with records and mounts of a container that outlast its processes.
REMOVED = ("podman", "docker")
CHANGE_FOLDER = 'cd "$1" && shift && exec "$@"'

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Container:
    """The container in which a rank's program runs."""

    def __init__(self, text: str, *, rank: int, shipped: str = "", terminal: bool = False) -> None:
        """Read the container of a rank.

        Args:
            text: The value of CONTAINER (settings.py).
            rank: The rank.
            shipped: The folder of shipped files; empty if there is none.
            terminal: Whether the program has a pseudo terminal.
        """
        import json  # noqa: PLC0415 - for such jobs alone
        import shutil  # noqa: PLC0415 - the same

        record = json.loads(text)
        self.runtime, self.image = record["runtime"], record["image"]
        self.extra, self.hidden = record["args"], record["hidden"]
        self.program = shutil.which(record["program"]) or record["program"]
        run = "".join(char if char.isalnum() else "-" for char in os.environ.get("DDLRUN_RUN", ""))
        self.name = f"ddlrun-{run or os.getpid()}-{rank}"
        self.folder = os.getcwd()
        self.terminal = terminal
        rank_files = KEEPER_FOLDER if os.path.isdir(f"{KEEPER_FOLDER}/hook") else ""
        folders = ["/tmp", *map(os.environ.get, ("TMPDIR", "HOME")), self.folder, shipped, rank_files]  # noqa: S108
        self.mounts = _outermost([folder for folder in folders if folder and folder != "/" and os.path.isdir(folder)])
        """Folders of the host, which the container has at the same paths."""

    def command(self, program: list[str]) -> list[str]:
        """Return the command line that runs a program in the container; remove the host's variables for it."""
        words = RUNTIMES[self.runtime](self)
        if self.runtime in ("bwrap", "charliecloud"):
            for name in self.hidden:
                os.environ.pop(name, None)
            os.environ.setdefault("PATH", IMAGE_PATH)
        start = ["sh", "-c", CHANGE_FOLDER, "sh", self.folder] if self.runtime == "enroot" else []
        return [self.program, *words, *start, *program]

    def remove(self) -> int:
        """Start the removal of what a killed runtime may have left; return the process, 0 if there is none."""
        if self.runtime not in REMOVED:
            return 0
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        words = [self.program, "rm", "--force", self.name]
        # A search for the run spares it.
        environment = {name: value for name, value in os.environ.items() if name != "DDLRUN_RUN"}
        try:
            return os.posix_spawn(self.program, words, environment, file_actions=null, setsigmask=())
        except OSError:
            return 0

    def pass_on(self, link: int) -> None:
        """Give a descriptor that the program inherits the number under which the container has it."""
        if self.runtime == "podman":
            os.dup2(link, FIRST_PRESERVED)
            os.environ["PMI_FD"] = str(FIRST_PRESERVED)


def _outermost(folders: list[str]) -> list[str]:
    """Return folders without those that are inside of another one."""
    distinct = dict.fromkeys(map(os.path.normpath, folders))
    return [folder for folder in distinct if not any(folder.startswith(f"{other}/") for other in distinct)]


def _podman(container: Container) -> list[str]:
    users = [] if os.geteuid() == 0 else ["--userns=keep-id"]
    gpus = ["--device=nvidia.com/gpu=all"] if _has_nvidia() else []
    links = ["--preserve-fds=1"] if "PMI_FD" in os.environ else []
    stop = "--stop-timeout=0"  # the removal of a container waits for that time before it sends SIGKILL
    folder = os.path.isdir(container.image)
    image = ["--rootfs", f"{container.image}:O"] if folder else [container.image]  # O: a layer keeps it as it is
    return [*_oci_words(container), stop, *users, *gpus, *links, *container.extra, *image]


def _docker(container: Container) -> list[str]:
    gpus = ["--gpus=all"] if _has_nvidia() else []
    user = f"--user={os.geteuid()}:{os.getegid()}"
    return [*_oci_words(container), user, *gpus, *container.extra, container.image]


def _oci_words(container: Container) -> list[str]:
    """Return the options that Podman and Docker share."""
    words = ["run", "--rm", f"--name={container.name}", "--interactive", "--entrypoint="]
    words += ["--security-opt=label=disable"]  # else SELinux would keep the program from the folders of the host
    words += ["--network=host", "--ipc=host", "--pid=host", "--uts=host", f"--workdir={container.folder}"]
    if container.terminal:
        words.append("--tty")
    if os.geteuid() == 0 or container.runtime == "docker":  # else the affinity is inherited
        words.append("--cpuset-cpus=" + ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    words += [f"--ulimit={limit}" for limit in _limits(MOST_PROCESSES if container.runtime == "podman" else None)]
    words += [f"--volume={folder}:{folder}" for folder in container.mounts]
    devices = ("/dev/infiniband", "/dev/kfd", "/dev/dri")
    words += [f"--device={device}" for device in devices if os.path.exists(device)]
    names = {*os.environ, "PYTHONPATH"}.difference(container.hidden)  # the program's start adds to PYTHONPATH
    return words + [f"--env={name}" for name in sorted(names)]


def _limits(most_processes: int | None) -> list[str]:
    """Return this process's limits as NAME=SOFT:HARD."""
    import resource  # noqa: PLC0415 - for such jobs alone

    limits = []
    for name, constant in LIMITS.items():
        pair = list(resource.getrlimit(getattr(resource, f"RLIMIT_{constant}")))
        if name == "nproc" and most_processes is not None:
            pair = [most_processes if limit < 0 else min(limit, most_processes) for limit in pair]
        limits.append(f"{name}={pair[0]}:{pair[1]}")
    return limits


def _apptainer(container: Container) -> list[str]:
    gpus = ["--nv"] if _has_nvidia() else ["--rocm"] if os.path.exists("/dev/kfd") else []
    mounts = [f"--bind={folder}" for folder in container.mounts]
    return ["exec", *mounts, f"--pwd={container.folder}", *gpus, *container.extra, container.image]


def _charliecloud(container: Container) -> list[str]:
    """Return the options of ch-run, which requires USER, and would take TMPDIR for /tmp."""
    user = os.environ.setdefault("USER", str(os.geteuid()))
    home = f"/home/{user}"
    has_home = home in container.mounts
    # It creates no folders in an image: none for ddlrun's own, and none for root's home.
    others = [folder for folder in container.mounts if folder not in (home, KEEPER_FOLDER, "/root")]
    mounts = [f"--bind={folder}:{folder}" for folder in others]
    variables = ["--set-env"] if os.path.exists(f"{container.image}/ch/environment") else []
    words = [*mounts, *(["--home"] if has_home else []), *variables, f"--cd={container.folder}"]
    return [*words, *container.extra, container.image, "--"]


def _bwrap(container: Container) -> list[str]:
    words = ["--die-with-parent"]
    for entry, target in _bindings(container.image, "", container.mounts):
        words += ["--symlink", target, entry] if target else ["--ro-bind", container.image + entry, entry]
    words += ["--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", "--bind", "/sys", "/sys"]
    for folder in container.mounts:
        words += ["--bind", folder, folder]
    return [*words, "--chdir", container.folder, *container.extra]


def _bindings(image: str, folder: str, mounts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the entries of an image to mount, as (path, target of a symbolic link or empty).

    A folder that must get a mount point it lacks is left out, and its entries are mounted instead.
    """
    bindings = []
    for name in sorted(os.listdir(f"{image}{folder}/")):
        path = f"{folder}/{name}"
        lacking = [mount for mount in mounts if mount.startswith(f"{path}/") and not os.path.isdir(image + mount)]
        if os.path.islink(image + path):
            bindings.append((path, os.readlink(image + path)))
        elif path in mounts or (not folder and name in SYSTEM_FOLDERS):
            continue
        elif lacking:
            bindings += _bindings(image, path, mounts)
        else:
            bindings.append((path, ""))
    return bindings


def _enroot(container: Container) -> list[str]:
    mounts = [f"--mount={folder}:{folder}" for folder in container.mounts]
    names = {*os.environ, "PYTHONPATH"}.difference(container.hidden)
    variables = [f"--env={name}" for name in sorted(names)]
    return ["start", *mounts, *variables, *container.extra, container.image]


def _has_nvidia() -> bool:
    return os.path.exists("/dev/nvidiactl")


RUNTIMES: dict[str, Callable[[Container], list[str]]] = {
    "podman": _podman,
    "docker": _docker,
    "apptainer": _apptainer,
    "charliecloud": _charliecloud,
    "bwrap": _bwrap,
    "enroot": _enroot,
}
