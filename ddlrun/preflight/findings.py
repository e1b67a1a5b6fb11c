"""Findings of the checks before a job: their codes, their texts, and the record."""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from ddlrun.errors import spell_options
from ddlrun.hosts import fold


class Level(Enum):
    """The severity of a finding; a job does not start with a failure."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class FindingRule(NamedTuple):
    """The level and the texts of one code, with {fields} for a finding's values and {host} for its host."""

    level: Level
    message: str
    remedy: str = ""


def _failure(message: str, remedy: str = "") -> FindingRule:
    return FindingRule(Level.FAILURE, message, remedy)


def _warning(message: str, remedy: str = "") -> FindingRule:
    return FindingRule(Level.WARNING, message, remedy)


_OPEN_PORTS = (
    "open TCP ports 1024-65535 between the hosts (firewall, security group), or choose another network: `--network`"
)
_HOSTS_FILE = "correct its /etc/hosts or DNS: getent hosts {name}"
_ONE_NAME = (
    "name each host once; if {host} is another host, correct its address in /etc/hosts or DNS: getent hosts {host}"
)
_SAME_MPI = "install the same Open MPI at the same path, or name another: `--mpirun`"
_SHARE = "copy it there, or put it on a file system that all hosts share"
_COPY = "copy it there: scp {program} {host}:{folder}/"
_OWN_ADDRESS = "give {name} its own address in its /etc/hosts"


class FindingCode(Enum):
    """The results of the checks, each with its rule."""

    PASSED = FindingRule(Level.OK, "ok")

    UNREACHABLE = _failure("{message}", "{remedy}")
    SHELL_PRINTS = _warning(
        "its shell prints {text}, also into every job's output",
        "guard it in its ~/.bashrc: case $- in *i*) ... ;; esac",
    )

    SAME_HOST = _failure("is the same host as {other}; its own name is {hostname}", _ONE_NAME)
    SAME_HOST_USED = _warning(
        "is the same host as {other}; its own name is {hostname}; the ranks of both share its cores", _ONE_NAME
    )

    NAME_UNKNOWN = _failure("does not resolve {name}", _HOSTS_FILE)
    NAME_OF_SSH = _warning("does not resolve {name}, which only ssh resolves: ranks use addresses instead", _HOSTS_FILE)
    NAME_OF_ITSELF = _failure("resolves {name} to {address}, which is itself", _HOSTS_FILE)
    NAME_OF_OTHER_HOST = _failure("resolves {name} to {address}, which is {owner}", _HOSTS_FILE)
    NAME_OF_NO_HOST = _failure("resolves {name} to {address}, which is none of its addresses ({own})", _HOSTS_FILE)
    LEADS_ELSEWHERE = _failure(
        "is {hostname}, which resolves {host} to {address}, not to one of its own addresses ({own})",
        "correct the address of {host} in /etc/hosts or DNS, here or there: getent hosts {host}",
    )
    OWN_NAME_UNKNOWN = _warning("does not resolve its own name {name}", _OWN_ADDRESS)
    OWN_NAME_LOOPBACK = _warning(
        "resolves its own name {name} to {address}: programs that listen there accept no connections from other hosts",
        _OWN_ADDRESS + " instead of {address}",
    )
    OWN_NAME_FOREIGN = _failure("resolves its own name to {address}, which is not its own", _OWN_ADDRESS)

    NO_DAEMON = _failure("{folder}/{daemon}, which mpirun starts by this path, does not exist", _SAME_MPI)
    NO_MANAGER = _failure("{path} does not exist or cannot be run", _SAME_MPI)
    OTHER_MANAGER = _failure(
        "{path} is {version}, here it is {expected}",
        "install the same version, or name one that all have: `--mpirun`",
    )

    OTHER_NAME = _failure(
        "has the host name {hostname}: {manager} finds hosts only by that",
        "list it as {hostname}, or use --process-manager ddlrun or another Open MPI (--mpirun)",
    )

    OTHER_MPI4PY = _warning(
        "mpi4py of {python} is built for {library}, not for this mpirun's Open MPI: ranks would be singletons",
        "{python} -m pip install --force-reinstall 'mpi4py>=4.1', which loads the MPI that started it",
    )

    NO_PYTHON = _failure(
        "{python} does not exist or cannot be run", "install it there, or put it on a file system that all hosts share"
    )
    OTHER_PYTHON = _failure("Python {version} at {python}, here it is {expected}", "install the same version there")
    OTHER_PACKAGE = _failure(
        "{package} {version}, {others} {expected}", "{python} -m pip install {package}=={expected}"
    )
    NO_PACKAGE = _failure("{package} is missing, {others} {expected}", "{python} -m pip install {package}=={expected}")
    ODD_PACKAGE = _failure("{package} {version}, {others} none", "remove {package} there")

    NO_AGENT_PYTHON = _failure(
        "neither {python} nor python3 can be run, one of which ddlrun's agent needs",
        "install Python 3.8 or later there, or use `--process-manager` openmpi",
    )
    OLD_AGENT_PYTHON = _failure(
        "its python3 is {version}, and ddlrun's agent needs 3.8 or later", "install a later Python there, at {python}"
    )

    NO_RUNTIME = _failure(
        "no {runtime} on PATH, which `--container` needs", "install it there, or `--container-runtime`"
    )
    NO_IMAGE = _failure("{runtime} finds no image {image}", "{remedy}")

    NO_ENCRYPTION = _failure(
        "{python} cannot import cryptography from {folder}, which `--encrypt` needs",
        "{python} -m pip install cryptography",
    )

    NO_FOLDER = _failure("the working folder {folder} does not exist", _SHARE)
    NO_PROGRAM = _failure("{program} does not exist", _SHARE)
    OTHER_SIZE = _failure("{program} is another file: {size} bytes, here it has {expected}", _COPY)
    OTHER_CONTENT = _failure("{program} differs from the one here (checksum {checksum})", _COPY)

    NO_CORES = _warning("its cores could not be read", "describe the hosts: `--machine`")
    OTHER_MACHINE = _warning("{differences}, as {others}", "leave the host out, or see: ddlrun show placement")
    OTHER_DRIVER = _failure("NVIDIA driver {version}, {others} {expected}", "install the same driver on all hosts")

    LITTLE_SHM = _failure(
        "{folder} has {free} free, {needed} are needed",
        "empty it, mount -o remount,size=50% /dev/shm, or in a container: --shm-size=8g (--ipc=host)",
    )
    LOCKED_MEMORY = _failure(
        "only {limit} may be locked (ulimit -l), and {device} is an RDMA device",
        "set '* - memlock unlimited' in /etc/security/limits.conf, and LimitMEMLOCK=infinity for sshd or slurmd",
    )
    OPEN_FILES = _failure(
        "limit of open files is {limit} (ulimit -n)", "set '* - nofile 65536' in /etc/security/limits.conf"
    )

    CLOCK_AHEAD = _failure(
        "its clock is {seconds} s ahead", "start chrony or systemd-timesyncd there: timedatectl set-ntp true"
    )
    CLOCK_BEHIND = _failure(
        "its clock is {seconds} s behind", "start chrony or systemd-timesyncd there: timedatectl set-ntp true"
    )
    LEFTOVERS = _warning("run {run} left process {processes}", "if it is not another job of yours: ddlrun clean {host}")
    LITTLE_DISK = _failure(
        "{folder} has {free} free, {needed} are needed", "empty it, or name another folder there: TMPDIR"
    )
    NO_TEMPORARY_FILES = _failure(
        "the folder {folder} for temporary files is missing, read-only, or belongs to another user",
        "make it writable, or name another folder there: TMPDIR",
    )
    LITTLE_DISK_FOR_RUN = _warning(
        "this machine has {free} free for the run folder {folder}", "empty it, or name another with `--run-dir`"
    )

    NETWORK = FindingRule(Level.OK, "{summary}")
    NO_COMMON_NETWORK = _warning("{summary}")
    WRONG_NETWORK = _failure("{problem}")
    TWO_ADDRESSES = _warning(
        "{interface} has several addresses ({addresses}), with which Open MPI 4.1 blocks indefinitely over TCP",
        "remove all but one, use Open MPI 5, or choose another network: `--network`",
    )

    TCP_SKIPPED = _warning("not tried: no time left", "give it more time: `--start-timeout`")
    TCP_WITHOUT_PYTHON = _warning("not tried, as there is no Python")
    TCP_WITHOUT_ANSWER = _warning("not tried, as no report came")
    TCP_MISSED = _warning(
        "not tried with {peers}, as they did not run at the same time: a machine is too busy",
        "give it more time: `--start-timeout`",
    )
    TCP_NO_PORT = _failure("cannot listen{network}: its address is gone or its ports are in use")
    TCP_FAILED = _failure(
        "cannot connect to {peers}{network}: {error}",
        _OPEN_PORTS,
    )
    TCP_FAILED_ONE_WAY = _failure(
        "cannot connect to {peers}{network}: {error} (the other direction works)",
        _OPEN_PORTS,
    )
    TCP_FAILED_PARTLY_ONE_WAY = _failure(
        "cannot connect to {peers}{network}: {error} (the other direction works from {reachable})",
        _OPEN_PORTS,
    )


class PreflightFinding(NamedTuple):
    """The result of one check of one host.

    `values` fill in the code's texts. They are what the texts show, no more: equal ones share a row of the table.
    """

    host: str
    check: str
    code: FindingCode
    values: Mapping[str, object] = MappingProxyType({})

    @property
    def level(self) -> Level:
        """The severity."""
        return self.code.value.level

    @property
    def message(self) -> str:
        """The problem, or "ok"."""
        return spell_options(self._fill_in(self.code.value.message))

    @property
    def remedy(self) -> str:
        """How to correct it; empty if the check passed."""
        return spell_options(self._fill_in(self.code.value.remedy))

    @property
    def problem(self) -> str:
        """The message and the remedy, as an error has them."""
        return "; ".join(filter(None, map(self._fill_in, (self.code.value.message, self.code.value.remedy))))

    def _fill_in(self, text: str) -> str:
        return text.format_map({**self.values, "host": self.host})


def group_findings(findings: Iterable[PreflightFinding]) -> list[list[PreflightFinding]]:
    """Return groups of findings that are equal except for their hosts."""
    groups: dict[tuple[object, ...], list[PreflightFinding]] = {}
    for finding in findings:
        values = tuple((name, str(value).replace(finding.host, "*")) for name, value in finding.values.items())
        groups.setdefault((finding.check, finding.code, values), []).append(finding)
    return list(groups.values())


def render_lines(findings: Iterable[PreflightFinding]) -> list[str]:
    """Return one line per problem, with all hosts that have it."""
    return [_render_line(group) for group in group_findings(findings)]


def _render_line(group: list[PreflightFinding]) -> str:
    hosts = list(dict.fromkeys(finding.host for finding in group))
    noun = "host" if len(hosts) == 1 else "hosts"
    return f"{noun} {fold(hosts)}: {group[0].problem}"
