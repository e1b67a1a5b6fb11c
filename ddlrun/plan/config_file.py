"""The YAML config file: its keys, and the options that they set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddlrun.environment.library_settings import SETTINGS, SHOWN
from ddlrun.errors import InputError
from ddlrun.plan.yaml_keys import parse_yaml
from ddlrun.wording import did_you_mean

# Keys in the YAML file, by section.
KEYS = (
    "hosts", "hostfile", "machine", "topology", "ranks_per_host", "nodes", "racks", "aisles", "rank_order", "framework",
    "scheduler", "launcher", "rankfile",
    "placement.cores_per_rank", "placement.reserve_cores", "placement.bind", "placement.packing",
    "placement.threads_per_core", "placement.gpu_order", "placement.share_gpus",
    "placement.core_kinds", "placement.membind", "placement.visible_gpus", "placement.bind_threads",
    "placement.strict_binding",
    "export", "hook", "profile", "run_dir", "ship", "ship_dir", "fetch", "keep_runs", "on_event", "web",
    "output.style", "output.ranks", "output.sample_interval",
    "termination.grace", "termination.timeout", "termination.heartbeat", "termination.stall_timeout",
    "termination.stall_action", "termination.stall_work_factor", "termination.forward_signals",
    "recovery.restarts", "recovery.spare_hosts", "recovery.min_topology",
    "ddl.mode",
    "mpi.process_manager", "mpi.mpirun", "mpi.args", "mpi.spawn_slots", "mpi.allow_run_as_root",
    "network.name", "network.tcp", "network.encrypt",
    "ssh.port", "ssh.identity_file",
)  # fmt: skip
# Key -> parameter of launch, where that is not the last part of the key.
OTHER_PARAMETERS = {
    "framework": "frameworks",
    "output.style": "output",
    "output.ranks": "shown_ranks",
    "mpi.args": "mpi_args",
    "network.name": "network",
    "ssh.port": "ssh_port",
    "ssh.identity_file": "ssh_identity_file",
}
LAUNCH_KEYS = {key: OTHER_PARAMETERS.get(key, key.rpartition(".")[2]) for key in KEYS}
PARAMETERS = LAUNCH_KEYS | {setting.yaml: setting.parameter for setting in SETTINGS if setting.option in SHOWN}
# Keys of variables of the ranks.
VARIABLES = {setting.yaml: setting for setting in SETTINGS if setting.option not in SHOWN}
SWITCHES = (
    *(setting.yaml for setting in SETTINGS if setting.is_switch),
    "mpi.allow_run_as_root",
    "network.encrypt",
    "network.tcp",
    "placement.share_gpus",
    "placement.bind_threads",
    "placement.strict_binding",
)
LISTS = (
    "hosts", "framework", "export", "hook", "ship", "fetch", "placement.gpu_order", "network.name", "output.style",
    "output.ranks",
    "termination.forward_signals", "recovery.spare_hosts",
)  # fmt: skip
# Names of options that are not keys -> key.
SYNONYMS = {
    "host": "hosts",
    "x": "env",
    "environment": "env",
    "mpiarg": "mpi.args",
    "subnet": "network.name",
    "interfaces": "network.name",
    "output_filename": "output.style",
}
# Controllers that Horovod's own file may name: ddlrun starts Horovod over MPI in any case.
CONTROLLERS = ("mpi", "auto", "gloo", None)


@dataclass(frozen=True, slots=True)
class ConfigContent:
    """The content of a config file."""

    values: Mapping[str, object]
    """By parameter of launch."""
    assignments: Sequence[str]
    """Variables for the ranks: NAME=VALUE."""
    places: Mapping[str, str]
    """Parameter -> the file, the line and the key of its value."""
    notes: Sequence[str]
    """On a key that has no effect."""


def parse_config(text: str, where: str) -> ConfigContent:
    """Parse a config file.

    Raises InputError with every unknown key and the known key that is nearest to it.
    """
    document = parse_yaml(text, where)
    content, lines = document.content, document.lines
    if not isinstance(content, dict | None):
        raise InputError(f"{where}: a list of 'key: value' is wanted, not {type(content).__name__}")
    values: dict[str, object] = {}
    assignments, notes, problems = list[str](), list[str](), list[str]()
    for key, value in _leaves(content or {}):
        place = f"{where}, line {lines[key]}" if key in lines else where
        if key == "env":
            assignments += _read_env(value, place, problems)
        elif key == "controller":
            _check_controller(value, place, notes, problems)
        elif key in VARIABLES:
            assignments += _read_setting(key, value, place, problems)
        elif key not in PARAMETERS:
            problems.append(_unknown(key, place))
        elif value is not None:
            values[PARAMETERS[key]] = _value(key, value, place, problems)
    if problems:
        raise InputError(*problems)
    places = {PARAMETERS[key]: f"{where}, line {line}: {key}" for key, line in lines.items() if key in PARAMETERS}
    return ConfigContent(values, assignments, places, notes)


def _check_controller(value: object, place: str, notes: list[str], problems: list[str]) -> None:
    """Add to `notes` or `problems` where Horovod's file names a controller other than MPI."""
    if value == "gloo":
        notes.append(f"{place}: controller: gloo: no effect: ddlrun starts Horovod over MPI")
    elif value not in CONTROLLERS:
        problems.append(f"{place}: controller: {value!r}: ddlrun starts Horovod over MPI; leave it out")


def _read_env(value: object, place: str, problems: list[str]) -> list[str]:
    """Return the assignments of env; add to `problems` where it is not a mapping of names to values."""
    if not isinstance(value, Mapping | None):
        problems.append(f"{place}: env: {value!r}; write one line per variable below it, as NAME: VALUE")
        return []
    variables = value or {}
    nested = [name for name, item in variables.items() if isinstance(item, list | Mapping)]
    problems += [f"{place}: env.{name}: one value is wanted, not a list or more keys" for name in nested]
    return [f"{name}={_scalar(item)}" for name, item in variables.items()]


def _read_setting(key: str, value: object, place: str, problems: list[str]) -> list[str]:
    """Return the assignment of a setting of a library; add to `problems` where its value is wrong."""
    text = None if value is None else _value(key, value, place, problems)
    try:
        return [] if text is None else [f"{VARIABLES[key].variable}={VARIABLES[key].render(text, f'{place}: {key}')}"]
    except InputError as error:
        problems += error.problems
        return []


def _leaves(content: Mapping[object, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of each entry."""
    for name, value in content.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and key != "env":
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _value(key: str, value: object, where: str, problems: list[str]) -> object:
    """Return the value of a parameter; add to `problems` where the type is wrong."""
    if isinstance(value, bool):
        if key in SWITCHES:
            return value
    elif isinstance(value, list) and key in LISTS:
        return ",".join(map(str, value))
    elif isinstance(value, str | int | float) and key not in SWITCHES:
        return str(value)
    problems.append(f"{where}: {key}: {value!r}; {_wanted(key)}")
    return None


def _wanted(key: str) -> str:
    """Return the remedy for a wrong value of a key."""
    if key in SWITCHES:
        return "write true or false"
    return "write one value, or a list" if key in LISTS else "write one value"


def _scalar(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(key: str, where: str) -> str:
    """Return the problem of an unknown key, with the key of the option that has this name, or else the nearest key."""
    synonyms = {parameter: known for known, parameter in PARAMETERS.items()}
    synonyms |= {known.rpartition(".")[2]: known for known in LAUNCH_KEYS} | SYNONYMS
    name = key.rpartition(".")[2].replace("-", "_")
    hint = did_you_mean(name, (), synonyms) or did_you_mean(
        key, [*PARAMETERS, *VARIABLES, "env", "controller"], synonyms
    )
    return f"{where}: key {key!r} is not known{hint or '; ddlrun show schema config lists the keys'}"
