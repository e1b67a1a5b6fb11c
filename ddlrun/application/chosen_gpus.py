"""GPUs that are chosen by variables of this machine, for the hosts of a job."""

import os
import re
from collections.abc import Mapping

from ddlrun.errors import InputError
from ddlrun.hosts import fold
from ddlrun.machine import CHOSEN_NOTES, Machine
from ddlrun.machine.pci import CHOOSING, ORDER
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.probe import is_local

# The beginning of the UUID of a GPU or of a MIG device.
UUID = r"(GPU|MIG)-"


def chooses_gpus(launcher: AgentLauncher) -> bool:
    """Return True if the scheduler chooses the GPUs of each host."""
    return launcher.launcher == "srun" or bool(launcher.gpus)


def choice_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that choose GPUs."""
    return {name: variables[name] for name in (*CHOOSING, ORDER) if name in variables}


def check_named_gpus(machines: Mapping[str, Machine], launcher: AgentLauncher) -> None:
    """Raise InputError if a variable names GPUs of one host by UUID, but ranks also use GPUs of others."""
    named = [name for name in CHOOSING if name in os.environ and re.search(UUID, os.environ[name])]
    others = [name for name, machine in machines.items() if machine.gpus and not is_local(name)]
    here = [machine for name, machine in machines.items() if is_local(name)]
    all_of_them = here and not any(note.code in CHOSEN_NOTES for machine in here for note in machine.notes)
    if not named or not others or all_of_them or chooses_gpus(launcher):
        return
    raise InputError(
        f"{named[0]}={os.environ[named[0]]!r} names GPUs of one host, but the job also has {fold(others)}; give "
        f"numbers, which apply to every host ({named[0]}=0,1), or unset it: ranks then get all GPUs"
    )
