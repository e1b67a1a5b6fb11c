"""One host's part of the TCP check: listen, connect to the others, and print which of them were reached.

The text of this module is sent to each host's Python, which may have no ddlrun: it imports the standard library
alone.
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
    """Return a socket that listens on the first free port, None if all are in use."""
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


def serve(server: socket.socket, token: str, awaited: set[str], end: float) -> None:
    """Answer greetings with the token until all awaited hosts have connected or time is up."""
    while awaited and time.time() < end:
        server.settimeout(0.05)  # the threads that answer remove hosts from `awaited` meanwhile
        try:
            stream, _ = server.accept()
        except OSError:
            continue
        threading.Thread(target=answer, args=(stream, token, awaited), daemon=True).start()


def answer(stream: socket.socket, token: str, awaited: set[str]) -> None:
    """Read a greeting and answer it with the token."""
    try:
        stream.settimeout(2)
        words = stream.makefile("rb").readline(400).decode().split()
        if words[:1] == [token]:
            stream.sendall(token.encode() + b"\n")
            awaited.discard(words[1])
    except (OSError, ValueError):
        pass
    finally:
        stream.close()


def reach(name: str, target: str, task: dict[str, Any], end: float, errors: dict[str, str | None]) -> None:
    """Connect to one host until it answers or time is up; store the last error, or None if it answered."""
    errors[name] = "no answer"
    while time.time() < end:
        for port in task["ports"]:
            errors[name] = connect(target, port, task, end)
            if errors[name] is None:
                return
        time.sleep(PAUSE)


def connect(target: str, port: int, task: dict[str, Any], end: float) -> str | None:
    """Greet a host on one port; return the error, or None if it answered with the token."""
    try:
        with socket.create_connection((target, port), max(0.05, min(2, end - time.time()))) as stream:
            stream.sendall(f"{task['token']} {task['own']}\n".encode())
            reply = stream.makefile("rb").readline(400).decode().strip()
    except OSError as error:
        return error.strerror or str(error) or "no answer"
    return None if reply == task["token"] else "another program answers"


def main(task: dict[str, Any]) -> None:
    """Run the task and print its result as JSON."""
    end = time.time() + task["seconds"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    errors: dict[str, str | None] = {}
    awaited = set(task["from"])
    server = listen(task["bind"], task["ports"])
    threads = [
        threading.Thread(target=reach, args=(name, address, task, end, errors)) for name, address in task["to"].items()
    ]
    if server is not None:
        threads.append(threading.Thread(target=serve, args=(server, task["token"], awaited, end)))
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.time()) + 0.5)
    result = {"listening": server is not None, "reached": errors, "unseen": sorted(awaited)}
    sys.stdout.write("@tcp " + json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
