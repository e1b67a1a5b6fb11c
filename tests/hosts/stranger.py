"""A program that floods ports without their secrets: python stranger.py SECONDS ADDRESS:PORT...

Each connection sends nothing, one byte at a time, or bytes without an end. It imports the standard library alone.
"""

import os
import socket
import sys
import time
from contextlib import suppress

# More than any port of ddlrun serves before the secret.
CONNECTIONS = 400
SENT = (b"", b"g", os.urandom(1 << 12))


def main() -> None:
    """Connect, and send, until the time is over."""
    end = time.monotonic() + float(sys.argv[1])
    addresses = [(host, int(port)) for host, _, port in (word.rpartition(":") for word in sys.argv[2:])]
    links = list[tuple[socket.socket, bytes]]()
    while time.monotonic() < end:
        for number in range(len(links), CONNECTIONS):
            link = socket.socket()
            link.settimeout(0.1)
            with suppress(OSError):
                link.connect(addresses[number % len(addresses)])
            link.setblocking(False)
            links.append((link, SENT[number // len(addresses) % len(SENT)]))
        for link, data in links:
            with suppress(OSError):
                link.send(data)
    for link, _ in links:
        link.close()


if __name__ == "__main__":
    main()
