"""One host's end of the TCP check: listens, connects to the others, prints who reached whom.

Its text is sent to each host's Python, which may have no ddlrun: the standard library alone.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import threading
import time
from typing import Any

PAUSE = 0.1


def listen(address: str, ports: list[int]) -> socket.socket | None:
    """Return a socket that listens at the first free port, None where there is none."""
    for port in ports:
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((address, port))
            server.listen(128)
        except OSError:
            server.close()
        else:
            return server
    return None


def greet(server: socket.socket, token: str, awaited: set[str], end: float) -> None:
    """Answer whoever knows the token, until all have come or time is up."""
    while awaited and time.time() < end:
        server.settimeout(0.05)  # answering runs beside this, and may have been the last
        try:
            stream, _ = server.accept()
        except OSError:
            continue
        threading.Thread(target=answer, args=(stream, token, awaited), daemon=True).start()


def answer(stream: socket.socket, token: str, awaited: set[str]) -> None:
    """Read a greeting and return it."""
    try:
        stream.settimeout(2)
        said = stream.makefile("rb").readline(400).decode().split()
        if said[:1] == [token]:
            stream.sendall(token.encode() + b"\n")
            awaited.discard(said[1])
    except (OSError, ValueError):
        pass
    finally:
        stream.close()


def reach(name: str, target: str, task: dict[str, Any], end: float, told: dict[str, str]) -> None:
    """Connect to one host, trying again until time is up; leave the last error, or "" where it answered."""
    told[name] = "no answer"
    while told[name] and time.time() < end:
        for port in task["ports"]:
            try:
                with socket.create_connection((target, port), max(0.05, min(2, end - time.time()))) as stream:
                    stream.sendall(f"{task['token']} {task['own']}\n".encode())
                    told[name] = (
                        "" if stream.makefile("rb").readline(400).decode().strip() == task["token"] else "a stranger"
                    )
            except OSError as error:
                told[name] = error.strerror or str(error) or "no answer"
            if not told[name]:
                return
        time.sleep(PAUSE)


def main(task: dict[str, Any]) -> None:
    """Do it and print what came of it as JSON."""
    end = time.time() + task["seconds"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    told: dict[str, str] = {}
    awaited = set(task["from"])
    server = listen(task["bind"], task["ports"])
    work = [threading.Thread(target=reach, args=(name, at, task, end, told)) for name, at in task["to"].items()]
    if server is not None:
        work.append(threading.Thread(target=greet, args=(server, task["token"], awaited, end)))
    for thread in work:
        thread.daemon = True
        thread.start()
    for thread in work:
        thread.join(max(0.0, end - time.time()) + 0.5)
    result = {"listening": server is not None, "reached": told, "unseen": sorted(awaited)}
    sys.stdout.write("@tcp " + json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
