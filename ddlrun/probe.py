"""Ask each host what it is made of, in one parallel round trip."""

from collections.abc import Callable, Mapping, Sequence

from ddlrun.errors import UnreachableError
from ddlrun.hosts import HostList
from ddlrun.machine import Machine
from ddlrun.machine.sysfs import SCRIPT, parse_sysfs
from ddlrun.shell import Finished

Ask = Callable[[Sequence[str], str], Mapping[str, Finished]]


def is_local(name: str, own_name: str) -> bool:
    """Tell whether a host's name means this machine (by name alone; nothing is resolved)."""
    return name in ("localhost", "127.0.0.1", "::1", own_name, own_name.partition(".")[0])


def probe(
    hosts: HostList, own_name: str, here: Callable[[str], Finished], there: Ask, ssh: str = "ssh"
) -> dict[str, Machine]:
    """Return each host's machine; hosts that say the same share one object.

    `here` runs a sh script on this machine, `there` on hosts by ssh, all at once; `ssh` is what a
    person would type to do the same. Raises
    UnreachableError naming every host that could not be asked and why.
    """
    local = [name for name in hosts.names if is_local(name, own_name)]
    remote = [name for name in hosts.names if not is_local(name, own_name)]
    answers = dict(there(remote, SCRIPT)) if remote else {}
    if local:
        answers |= dict.fromkeys(local, here(SCRIPT))
    failed = [_failure(name, answers[name], ssh) for name in hosts.names if "ddlrun:end" not in answers[name].out]
    if failed:
        raise UnreachableError(*failed)
    kinds: dict[str, Machine] = {}
    for name in hosts.names:
        text = answers[name].out.strip()
        if text not in kinds:
            kinds[text] = parse_sysfs(text, name)
    return {name: kinds[answers[name].out.strip()] for name in hosts.names}


def _failure(name: str, answer: Finished, ssh: str) -> str:
    said = [line for line in answer.err.strip().splitlines() if line.strip()]
    why = "no answer in time" if answer.code is None else (said[-1].strip() if said else f"exit code {answer.code}")
    return f"host {name}: {why}; try: {ssh} {name} true (or describe the hosts: --machine)"
