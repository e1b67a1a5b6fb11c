"""The state of NCCL's communicators, from its RAS threads.

A thread of each process answers over a socket of the host, for all processes that share communicators with it: as JSON
since NCCL 2.28.7, as text since 2.24. Jobs of the same user may share the port, so that the reply may be another job's.
See docs/userguide/source/troubleshooting/ras.rst and src/ras/client_support.cc of NCCL.
"""

from __future__ import annotations

from ddlrun.keeper.proc_files import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable
    from typing import Any

# A process whose libraries have one of these may have such a thread.
LIBRARIES = ("libnccl", "libtorch_cuda")
ADDRESS, SWITCH, DEFAULT = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE", "localhost:28028"
CONNECT_SECONDS, MOST_SECONDS = 0.5, 5.0
# NCCL waits so long for other processes.
TIMEOUT = b"TIMEOUT 2"
MOST_LINE, MOST_BYTES = 1 << 10, 16 << 20
MOST_COMMUNICATORS, MOST_RANKS = 32, 64
# Lines of the text: the beginning of a problem of a communicator, a kind of operation, and ranks.
PROBLEM, KIND = r"#\d+-\d+ \(([0-9a-f]+)\) (\w+)", r"  Communicator ranks have different (\w+) operation counts"
COUNT, RANK = r"  \d+ ranks have launched up to operation (\d+)", r"  Rank (\d+) .*managed by process (\d+)"
OWN_COUNT, NO_COUNT = r" has launched up to operation (\d+) ", " not launched any operations"


def read_ras(pids: Iterable[int], seconds: float) -> list[dict[str, Any]]:
    """Return the communicators, from the first of some processes that uses NCCL; see hangs/communicators.py."""
    for pid in pids:
        maps = read_text(f"/proc/{pid}/maps")
        if any(name in maps for name in LIBRARIES):
            words = (word.partition("=") for word in read_text(f"/proc/{pid}/environ").split("\0"))
            environ = {name: value for name, _, value in words}
            off = environ.get(SWITCH) == "0"
            return [] if off else parse_reply(_ask(environ.get(ADDRESS) or DEFAULT, min(seconds, MOST_SECONDS)))
    return []


def _ask(address: str, seconds: float) -> bytes:
    """Return the reply of the thread that listens at an address; empty if there is none, or no reply in time."""
    import socket  # noqa: PLC0415 - in the keeper's child alone

    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as link:
            link.settimeout(seconds)
            return _talk(link)
    except (OSError, ValueError):
        return b""


def _talk(link: socket.socket) -> bytes:
    with link.makefile("rb") as replies:

        def order(words: bytes) -> bytes:
            link.sendall(words + b"\n")
            return replies.readline(MOST_LINE)

        if not order(b"CLIENT PROTOCOL 2").startswith(b"SERVER PROTOCOL "):
            return b""
        order(TIMEOUT)
        order(b"SET FORMAT json")  # an older NCCL does not know it
        link.sendall(b"VERBOSE STATUS\n")
        return replies.read(MOST_BYTES)


def parse_reply(reply: bytes) -> list[dict[str, Any]]:
    """Return the communicators in a reply, those with problems alone if it is text; none if it cannot be read."""
    import json  # noqa: PLC0415 - in the keeper's child alone

    text = reply.decode(errors="replace")
    try:
        if text.startswith("{"):
            return [_summarize(communicator) for communicator in json.loads(text)["communicators"][:MOST_COMMUNICATORS]]
        return _parse_text(text)
    except (ValueError, LookupError, TypeError, AttributeError):  # another version
        return []


def _summarize(communicator: dict[str, Any]) -> dict[str, Any]:
    """Return the ranks that NCCL cannot reach, and those that have begun fewer operations than others."""
    ranks, behind = communicator["ranks"], {}
    for name in sorted({name for rank in ranks for name in rank["collective_counts"]}):
        counts = {rank["rank"]: (rank["collective_counts"][name], rank["pid"]) for rank in ranks}
        most = max(count for count, _ in counts.values())
        late = [[rank, count, pid] for rank, (count, pid) in sorted(counts.items()) if count < most]
        if late:
            behind[name] = {"most": most, "ranks": late[:MOST_RANKS]}
    missing = [
        [rank["rank"], rank["pid"]]
        for rank in communicator["missing_ranks"]
        if rank["status"]["unresponsive"] or rank["status"]["considered_dead"]
    ]
    return {
        "hash": str(communicator["hash"]),
        "size": int(communicator["size"]),
        "missing": missing[:MOST_RANKS],
        "behind": behind,
    }


def _parse_text(text: str) -> list[dict[str, Any]]:
    """Return the communicators with problems; their sizes are not known."""
    import re  # noqa: PLC0415 - in the keeper's child alone

    by_hash: dict[str, dict[str, Any]] = {}
    problem, kind, count = "", "", 0
    for line in text.splitlines():
        begin, operation, number = (re.match(pattern, line) for pattern in (PROBLEM, KIND, COUNT))
        rank, own = re.match(RANK, line), re.search(OWN_COUNT, line)
        if begin:
            problem, kind = begin[2], ""
            communicator = by_hash.setdefault(begin[1], {"hash": begin[1], "size": 0, "missing": [], "behind": {}})
        elif operation:
            kind = operation[1]
            communicator["behind"][kind] = {"most": 0, "ranks": []}
        elif number or NO_COUNT in line:
            count = int(number[1]) if number else 0
        if rank and problem == "INCOMPLETE":
            communicator["missing"].append([int(rank[1]), int(rank[2])])
        elif kind:
            count = int(own[1]) if own else count
            operations = communicator["behind"][kind]
            operations["most"] = max(operations["most"], count)
            operations["ranks"] += [[int(rank[1]), count, int(rank[2])]] if rank else []
    for communicator in by_hash.values():
        for operations in communicator["behind"].values():
            operations["ranks"] = [late for late in operations["ranks"] if late[1] < operations["most"]]
    return list(by_hash.values())[:MOST_COMMUNICATORS]
