"""Hangs in locks, queues and threads of one rank."""

import fcntl
import logging
import logging.handlers
import multiprocessing
import queue
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

from tests.hangs.kinds.job import Job

HOLDER = "import fcntl, sys, time; fcntl.{call}(file := open(sys.argv[1], 'w'), 2); print(flush=True); time.sleep(999)"


def ended_thread(job: Job) -> None:
    """a lock whose thread has ended"""
    job.begin()
    if job.is_victim:
        lock = threading.Lock()
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        with lock:  # guilty
            pass
    job.barrier()  # waiting


def two_locks(job: Job) -> None:
    """two threads that take two locks in another order"""
    first, second, held = threading.Lock(), threading.Lock(), threading.Event()

    def take() -> None:
        with second:
            held.set()
            first.acquire()

    job.begin()
    if job.is_victim:
        with first:
            threading.Thread(target=take, daemon=True).start()
            held.wait()
            second.acquire()  # guilty
    job.barrier()  # waiting


def lost_notification(job: Job) -> None:
    """a condition that nobody notifies"""
    job.begin()
    if job.is_victim:
        condition = threading.Condition()
        with condition:
            condition.wait()  # guilty
    job.barrier()  # waiting


def thread_barrier(job: Job) -> None:
    """a barrier of threads, of which one is missing"""
    job.begin()
    if job.is_victim:
        threading.Barrier(2).wait()  # guilty
    job.barrier()  # waiting


def file_lock(job: Job) -> None:
    """flock of a file that another process has locked"""
    path = _hold(job, "flock")
    job.begin()
    if job.is_victim:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # guilty
    job.barrier()  # waiting


def record_lock(job: Job) -> None:
    """lockf of a file that another process has locked"""
    path = _hold(job, "lockf")
    job.begin()
    if job.is_victim:
        with path.open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)  # guilty
    job.barrier()  # waiting


def filelock_package(job: Job) -> None:
    """the package filelock, with a file that another process has locked"""
    path = _hold(job, "flock")
    job.begin()
    if job.is_victim:
        with FileLock(path):  # guilty
            pass
    job.barrier()  # waiting


def _hold(job: Job, call: str) -> Path:
    """Let a process of the victim lock a file."""
    path = job.folder / "lock"
    if job.is_victim:
        argv = [sys.executable, "-c", HOLDER.format(call=call), str(path)]
        holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
        if holder.stdout is not None:
            holder.stdout.readline()
    return path


def database(job: Job) -> None:
    """a locked SQLite database"""
    job.begin()
    if job.is_victim:
        path = job.folder / "runs.db"
        first, second = sqlite3.connect(path), sqlite3.connect(path, timeout=9999)
        first.execute("create table runs (loss real)")
        first.execute("insert into runs values (1)")
        second.execute("insert into runs values (2)")  # guilty
    job.barrier()  # waiting


def killed_holder(job: Job) -> None:
    """a multiprocessing lock whose process was killed"""
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    if job.is_victim:
        child = context.Process(target=lock.acquire)
        child.start()
        child.join()
    job.begin()
    if job.is_victim:
        lock.acquire()  # guilty
    job.barrier()  # waiting


def log_handler(job: Job) -> None:
    """a log handler whose lock a thread holds that waits"""
    held = threading.Event()

    class Blocking(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            held.set()
            threading.Event().wait()

    logger = logging.getLogger("train")
    logger.addHandler(Blocking())
    job.begin()
    if job.is_victim:
        threading.Thread(target=logger.warning, args=("first",), daemon=True).start()
        held.wait()
        logger.warning("second")  # guilty
    job.barrier()  # waiting


def empty_queue(job: Job) -> None:
    """a queue whose thread has died"""
    samples: queue.Queue[int] = queue.Queue(2)
    threading.excepthook = lambda _: None

    def produce() -> None:
        samples.put(1)
        raise ValueError

    job.begin()
    if job.is_victim:
        threading.Thread(target=produce).start()
        for _ in range(2):
            samples.get()  # guilty
    job.barrier()  # waiting


def full_queue(job: Job) -> None:
    """a queue that nobody empties"""
    job.begin()
    if job.is_victim:
        samples: queue.Queue[int] = queue.Queue(1)
        for sample in range(2):
            samples.put(sample)  # guilty
    job.barrier()  # waiting


def unfinished_queue(job: Job) -> None:
    """a queue whose tasks are not marked as done"""
    job.begin()
    if job.is_victim:
        tasks: queue.Queue[int] = queue.Queue()
        tasks.put(1)
        tasks.join()  # guilty
    job.barrier()  # waiting


def process_queue(job: Job) -> None:
    """a queue of a process that has ended"""
    context = multiprocessing.get_context("fork")
    samples = context.Queue()
    if job.is_victim:
        context.Process(target=int).start()
    job.begin()
    if job.is_victim:
        samples.get()  # guilty
    job.barrier()  # waiting


def nested_pool(job: Job) -> None:
    """a pool of one thread that waits for itself"""
    pool = ThreadPoolExecutor(1)
    job.begin()
    if job.is_victim:
        pool.submit(lambda: pool.submit(int).result()).result()  # guilty
    job.barrier()  # waiting


def joined_thread(job: Job) -> None:
    """a thread that waits, and is joined"""
    job.begin()
    if job.is_victim:
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        thread.join()  # guilty
    job.barrier()  # waiting


def forked_with_lock(job: Job) -> None:
    """a pool whose processes were forked while a lock was held"""
    job.begin()
    if job.is_victim:
        LOCK.acquire()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            LOCK.release()
            pool.map(_tokenize, ["a b"])  # guilty
    job.barrier()  # waiting


LOCK = threading.Lock()


def _tokenize(text: str) -> list[str]:
    with LOCK:  # guilty
        return text.split()
