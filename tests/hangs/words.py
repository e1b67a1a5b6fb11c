"""A job of eight ranks, each of which waits for something of its own: words.py FOLDER. A comment marks the line."""

import fcntl
import importlib
import logging
import multiprocessing
import os
import queue
import socket
import sqlite3
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(*sys.argv[1:2])  # none where a test imports RANKS
HELD = FOLDER / "held"
LOCK = threading.Lock()


def await_holder() -> None:
    while not HELD.exists():
        time.sleep(0.01)


def import_slowly() -> None:
    """Import a module whose path is like one of PyTorch's for data."""
    folder = FOLDER / "site-packages/torch/utils/data"
    folder.mkdir(parents=True)
    (folder / "slow_module.py").write_text("while True:\n    pass\n")
    sys.path.append(str(folder))
    importlib.import_module("slow_module")  # imports


def wait_for_sqlite() -> None:
    await_holder()
    connection = sqlite3.connect(FOLDER / "runs.db", timeout=1000)
    connection.execute("INSERT INTO runs VALUES (2)")  # sqlite


def hold() -> None:
    connection = sqlite3.connect(FOLDER / "runs.db")
    connection.execute("CREATE TABLE runs (number)")
    connection.execute("INSERT INTO runs VALUES (1)")
    file = (FOLDER / "lock").open("w")
    fcntl.lockf(file, fcntl.LOCK_EX)
    HELD.touch()
    time.sleep(1000)  # holds


def wait_for_file_lock() -> None:
    await_holder()
    with (FOLDER / "lock").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # fcntl


def wait_for_logging() -> None:
    reader, writer = os.pipe()
    begun = threading.Event()

    class Handler(logging.StreamHandler):  # type: ignore[type-arg]
        def emit(self, record: logging.LogRecord) -> None:
            begun.set()
            os.write(writer, record.msg.encode() * (1 << 20))  # emits

    log = logging.getLogger("job")
    log.addHandler(Handler())
    threading.Thread(target=log.error, args=("x",), daemon=True, name="writer").start()
    begun.wait()
    log.error("y")  # logging
    os.close(reader)


def leave_a_thread() -> None:
    threading.Thread(target=take, name="taker").start()


def take() -> None:
    queue.Queue[int]().get()  # takes


def wait_for_pool() -> None:
    LOCK.acquire()
    pool = multiprocessing.get_context("fork").Pool(2)
    pool.map(tokenize, ["a"])  # pool


def tokenize(_text: str) -> None:
    with LOCK:  # tokenizes
        pass


def connect() -> None:
    """Connect to a socket whose queue is full, so that the kernel does not reply."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    clients = [socket.socket() for _ in range(4)]
    for client in clients[:-1]:
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    (FOLDER / "port").write_text(str(server.getsockname()[1]))
    clients[-1].connect(server.getsockname())  # connects


RANKS = (import_slowly, wait_for_sqlite, hold, wait_for_file_lock, wait_for_logging, leave_a_thread, wait_for_pool,
         connect)  # fmt: skip

if __name__ == "__main__":
    (FOLDER / f"begun{os.environ['RANK']}").touch()
    RANKS[int(os.environ["RANK"])]()
