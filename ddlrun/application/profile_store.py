"""Store of tuning profiles: written by network tune, read by launch and network plan."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ddlrun.application.inputs import read_text
from ddlrun.errors import InputError
from ddlrun.plan.tuning_profile import Profile, Profiles, file_name, parse_profiles
from ddlrun.remote.probe import is_local
from ddlrun.runs.store import state_folder


def read_profiles(source: str, hosts: Sequence[str]) -> Profiles:
    """Return the profiles of a file, or with "auto" those stored for these hosts; a damaged store gives a note."""
    if source == "none":
        return Profiles()
    names = profile_names(hosts)
    if source != "auto":
        profiles = parse_profiles(read_text(source, "profile"), f"profile {source}")
        moved = any(profile.hosts != names and set(profile.hosts) == set(names) for profile in profiles)
        note = f"--profile {source} was made with these hosts in another order, so perhaps with other racks"
        return Profiles(profiles, source, note=note if moved else "")
    folder = profile_folder()
    path = f"{folder}/{file_name(names)}" if os.path.isdir(folder) else ""
    if not os.path.exists(path):
        return Profiles()
    try:
        profiles = parse_profiles(read_text(path, "profile"), f"profile {path}")
    except InputError as error:
        return Profiles(note=f"{error}; going on without it")
    return Profiles(tuple(profile for profile in profiles if profile.hosts == names))


def stored_profiles() -> Iterator[tuple[str, Profile]]:
    """Yield the profiles that tune has stored, each with its file; damaged files are left out."""
    folder = profile_folder()
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = f"{folder}/{name}"
        with suppress(InputError):
            yield from ((path, profile) for profile in parse_profiles(read_text(path, "profile"), path))


def profile_names(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the names of hosts in profiles: this machine's own name for localhost, as home folders are shared."""
    return tuple(os.uname().nodename if is_local(name) else name for name in hosts)


def profile_folder() -> str:
    """Return the folder in which tune stores profiles."""
    return f"{state_folder(os.environ)}/profiles"
