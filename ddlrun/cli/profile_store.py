"""Where tune keeps profiles, and those that a launch finds there."""

import os
from collections.abc import Sequence

from ddlrun.cli.inputs import read_text
from ddlrun.errors import InputError
from ddlrun.plan.tuning_profile import Profiles, file_name, parse_profiles
from ddlrun.remote.probe import is_local
from ddlrun.runs.store import state_folder


def read_profiles(wanted: str, hosts: Sequence[str]) -> Profiles:
    """Return the profiles of a file, or those that tune has kept for these hosts; of those that are damaged, why."""
    if wanted == "none":
        return Profiles()
    names = profile_names(hosts)
    if wanted != "auto":
        known = parse_profiles(read_text(wanted, "profile"), f"profile {wanted}")
        moved = any(one.hosts != names and set(one.hosts) == set(names) for one in known)
        said = f"--profile {wanted} was made with these hosts in another order, so perhaps with other racks"
        return Profiles(known, wanted, said=said if moved else "")
    folder = profile_folder()
    path = f"{folder}/{file_name(names)}" if os.path.isdir(folder) else ""
    if not os.path.exists(path):
        return Profiles()
    try:
        known = parse_profiles(read_text(path, "profile"), f"profile {path}")
    except InputError as error:
        return Profiles(said=f"{error}; going on without it")
    return Profiles(tuple(one for one in known if one.hosts == names))


def profile_names(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the names that profiles know hosts by: this machine's own instead of localhost, as homes are shared."""
    own = os.uname().nodename
    return tuple(own if is_local(name, own) else name for name in hosts)


def profile_folder() -> str:
    """Return where tune keeps what it found."""
    return f"{state_folder(os.environ)}/profiles"
