"""Which hosts can open a TCP connection to which: what each is told to do, and what came of it."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ddlrun.hosts import fold
from ddlrun.network.subnet_selection import Network
from ddlrun.preflight import peer
from ddlrun.preflight.judge import FAILURE, OK, WARNING, PreflightFinding

ALL_PAIRS = 8
AT_ONCE = 100  # they have to run at the same time, and ssh goes to 128 hosts at once
# Open MPI's own connections go to ports from 1024 on; these are seldom anybody's.
LOWEST, HIGHEST, TRIES = 28000, 29900, 3


def pairs(hosts: Sequence[str]) -> set[tuple[str, str]]:
    """Return who must reach whom: all pairs up to 8 hosts, else both neighbours in a ring, and the first with each.

    >>> sorted(pairs(["a", "b"]))
    [('a', 'b'), ('b', 'a')]
    """
    if len(hosts) <= ALL_PAIRS:
        found = {(one, other) for one in hosts for other in hosts}
    else:
        found = {*zip(hosts, (*hosts[1:], hosts[0]), strict=True), *((hosts[0], host) for host in hosts)}
    return {pair for one, other in found for pair in ((one, other), (other, one)) if one != other}


def batches(hosts: Sequence[str]) -> list[Sequence[str]]:
    """Return hosts that try at a time, each batch but the first with the last host of the one before.

    >>> [len(batch) for batch in batches([f"h{n}" for n in range(250)])]
    [100, 101, 51]
    """
    starts = range(0, len(hosts), AT_ONCE)
    found = [hosts[max(0, start - 1) : start + AT_ONCE] for start in starts]
    return [batch for batch in found if len(batch) > 1]


def peer_scripts(hosts: Sequence[str], network: Network, python: str, seconds: float) -> dict[str, str]:
    """Return each host's script: all listen at one of three ports, and connect to their partners' until time is up."""
    draw = int.from_bytes(os.urandom(8), "big")
    first = LOWEST + draw % (HIGHEST - LOWEST)
    every = pairs(hosts)
    with open(peer.__file__, encoding="utf-8") as file:
        source = file.read()
    scripts = {}
    for host in hosts:
        task = {
            "own": host,
            "bind": network.addresses.get(host, "::" if ":" in host else "0.0.0.0"),  # noqa: S104 - all of its networks
            "to": {other: network.addresses.get(other, other) for one, other in sorted(every) if one == host},
            "from": sorted(one for one, other in every if other == host),
            "ports": list(range(first, first + TRIES)),
            "token": f"ddlrun-{draw:x}",
            "seconds": seconds,
        }
        scripts[host] = (
            f"python={shlex.quote(python)}\n"
            '[ -x "$python" ] || python=$(command -v python3) || { echo "@tcp null"; exit 0; }\n'
            f"exec \"$python\" -I -S - {shlex.quote(json.dumps(task))} <<'@ddlrun'\n{source}@ddlrun\n"
        )
    return scripts


def judge_tcp(hosts: Sequence[str], answers: Mapping[str, str], network: Network) -> Iterator[PreflightFinding]:
    """Yield a finding for each connection that failed, as the one direction of two where it is; `answers` are texts."""
    told = {host: _parse(answers.get(host, "")) for host in hosts}
    where = f" on {', '.join(network.subnets)}" if network.subnets else ""
    every = pairs([host for host in hosts if told[host] is not None])
    failed = {
        (one, other): str(error)
        for one, other in sorted(every)
        if (error := (told[one] or {}).get("reached", {}).get(other, "no answer"))
    }
    by_host: dict[str, dict[str, list[str]]] = {}
    for (one, other), error in failed.items():
        by_host.setdefault(one, {}).setdefault(error, []).append(other)
    for host in hosts:
        report = told[host]
        if report is None:
            why = "there is no Python" if "@tcp null" in answers.get(host, "") else "no answer came"
            yield PreflightFinding(host, "tcp", WARNING, f"not tried, as {why}")
        elif not report["listening"]:
            yield PreflightFinding(
                host, "tcp", FAILURE, f"cannot listen{where}: its address is gone or its ports are taken"
            )
        elif host not in by_host:
            yield PreflightFinding(host, "tcp", OK, "ok")
        for error, others in by_host.get(host, {}).items():
            back = [other for other in others if (other, host) in failed]
            way = "" if len(back) == len(others) else " (the other direction works)"
            if back and way:
                way = f" (the other direction works from {fold(other for other in others if other not in back)})"
            fix = "open TCP ports 1024-65535 between the hosts (firewall, security group), or take another: --network"
            yield PreflightFinding(host, "tcp", FAILURE, f"cannot connect to {fold(others)}{where}: {error}{way}", fix)


def _parse(text: str) -> dict[str, dict[str, str]] | None:
    line = next((line for line in text.splitlines() if line.startswith("@tcp ")), None)
    found = None if line is None else json.loads(line.removeprefix("@tcp "))
    return found if isinstance(found, dict) else None
