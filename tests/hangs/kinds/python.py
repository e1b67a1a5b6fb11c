"""Hangs of one rank in Python itself: asyncio, signals, imports, native code, endless loops, the end."""

import asyncio
import atexit
import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.hangs.kinds.job import Job

BEGUN = threading.Event()


def event(job: Job) -> None:
    """an asyncio event that nobody sets"""

    async def fetch() -> None:
        await asyncio.Event().wait()

    job.begin()
    if job.is_victim:
        asyncio.run(fetch())  # guilty
    job.barrier()  # waiting


def gathered(job: Job) -> None:
    """an asyncio task that waits for its own queue"""

    async def consume() -> None:
        await asyncio.gather(asyncio.sleep(0), asyncio.Queue().get())

    job.begin()
    if job.is_victim:
        asyncio.run(consume())  # guilty
    job.barrier()  # waiting


def blocked_loop(job: Job) -> None:
    """a coroutine that blocks its event loop"""

    async def load() -> None:
        threading.Event().wait()  # guilty

    job.begin()
    if job.is_victim:
        asyncio.run(load())
    job.barrier()  # waiting


def paused(job: Job) -> None:
    """signal.pause"""
    job.begin()
    if job.is_victim:
        signal.pause()  # guilty
    job.barrier()  # waiting


def signal_wait(job: Job) -> None:
    """sigwait for a signal that does not come"""
    job.begin()
    if job.is_victim:
        signal.sigwait([signal.SIGUSR2])  # guilty
    job.barrier()  # waiting


def in_handler(job: Job) -> None:
    """a signal handler that waits for a lock of the main thread"""
    lock = threading.Lock()
    job.begin()
    if job.is_victim:
        signal.signal(signal.SIGUSR2, lambda *_: lock.acquire())  # guilty
        with lock:
            os.kill(os.getpid(), signal.SIGUSR2)  # guilty
    job.barrier()  # waiting


def stopped(job: Job) -> None:
    """SIGSTOP"""
    job.begin()
    if job.is_victim:
        os.kill(os.getpid(), signal.SIGSTOP)  # guilty
    job.barrier()  # waiting


def endless_loop(job: Job) -> None:
    """an endless loop"""
    job.begin()
    if job.is_victim:
        while True:  # guilty
            pass  # guilty
    job.barrier()  # waiting


def long_sleep(job: Job) -> None:
    """time.sleep, such as a pause before the next attempt"""
    job.begin()
    if job.is_victim:
        time.sleep(9999)  # guilty
    job.barrier()  # waiting


def polled_file(job: Job) -> None:
    """a loop that looks for a file again and again"""
    job.begin()
    if job.is_victim:
        while not (job.folder / "other").exists():  # guilty
            time.sleep(0.2)  # guilty
    job.barrier()  # waiting


def native_code(job: Job) -> None:
    """native code that waits"""
    job.begin()
    if job.is_victim:
        ctypes.CDLL(None).pause()  # guilty
    job.barrier()  # waiting


def native_code_with_gil(job: Job) -> None:
    """native code that waits and holds Python's lock"""
    job.begin()
    if job.is_victim:
        ctypes.PyDLL(None).pause()  # guilty
    job.barrier()  # waiting


def module_waits(job: Job) -> None:
    """a module whose import waits"""
    if job.is_victim:
        Path(job.folder, "plugin.py").write_text(f"from tests.hangs.kinds import python\npython.{_flush.__name__}()\n")
        sys.path.insert(0, str(job.folder))
    job.begin()
    if job.is_victim:
        importlib.import_module("plugin")
    job.barrier()  # waiting


def module_lock(job: Job) -> None:
    """a module that a thread imports, and that waits"""
    if job.is_victim:
        text = "import threading\nfrom tests.hangs.kinds import python\npython.BEGUN.set()\nthreading.Event().wait()\n"
        Path(job.folder, "plugin.py").write_text(text)
        sys.path.insert(0, str(job.folder))
    job.begin()
    if job.is_victim:
        threading.Thread(target=importlib.import_module, args=("plugin",), daemon=True).start()
        BEGUN.wait()
        importlib.import_module("plugin")  # guilty
    job.barrier()  # waiting


def at_exit(job: Job) -> None:
    """a function at the end of the program that waits"""
    job.begin()
    if job.is_victim:
        atexit.register(_flush)
        return
    job.barrier()  # waiting


def _flush() -> None:
    threading.Event().wait()  # guilty


def thread_at_end(job: Job) -> None:
    """a thread that keeps a rank from ending"""
    job.begin()
    if job.is_victim:
        threading.Thread(target=_flush).start()
        return
    job.barrier()  # waiting
