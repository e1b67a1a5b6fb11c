"""TCP connections of processes whose data the other side does not acknowledge."""

from __future__ import annotations

from ddlrun.keeper.proc_files import list_folder, read_lines, read_link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# The same data was sent so many times again, which takes more than a second.
LEAST_RETRANSMISSIONS = 3
ESTABLISHED = "01"
MOST_CONNECTIONS = 64


def list_unacknowledged(pids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the connections of processes on which data has been sent several times without a reply."""
    if not pids:
        return []
    inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
    lines = [line for name in ("tcp", "tcp6") for line in read_lines(f"/proc/{pids[0]}/net/{name}")[1:]]
    connections = (parse_connection(line) for line in lines)
    return [
        {"local": connection[0], "remote": connection[1]}
        for connection in connections
        if connection is not None and connection[2] in inodes
    ][:MOST_CONNECTIONS]


def parse_connection(line: str) -> tuple[str, str, str] | None:
    """Return the two addresses and the inode of a line of /proc/net/tcp; None unless data was sent several times.

    >>> parse_connection("0: 0100007F:0016 0200010A:C001 01 000003E8:00000000 01:00000A2C 00000005 0 0 4711 2 x")
    ('127.0.0.1', '10.1.0.2', '4711')
    """
    words = line.split()
    if len(words) < 10 or words[3] != ESTABLISHED:
        return None
    waiting = int(words[4].partition(":")[0], 16)
    if not waiting or int(words[6], 16) < LEAST_RETRANSMISSIONS:
        return None
    return _address(words[1]), _address(words[2]), words[9]


def _address(text: str) -> str:
    """Return the address of ADDRESS:PORT, whose words of four bytes are in the byte order of the machine."""
    import ipaddress  # noqa: PLC0415 - in the keeper's child alone
    import sys  # noqa: PLC0415

    digits = bytes.fromhex(text.partition(":")[0])
    words = [digits[at : at + 4] for at in range(0, len(digits), 4)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _socket_inodes(pid: int) -> list[str]:
    """Return the inodes of a process's sockets."""
    folder = f"/proc/{pid}/fd"
    targets = [read_link(f"{folder}/{name}") for name in list_folder(folder)]
    return [target[len("socket:[") : -1] for target in targets if target.startswith("socket:[")]
