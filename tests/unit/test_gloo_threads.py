"""The wait for threads of gloo at the end of a Python rank."""

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

import ddlrun.keeper.program
from tests.support.waiting import wait_until


@pytest.fixture
def hook() -> ModuleType:
    """Return the duty "exit" of the start-up hook, which has not begun here."""
    spec = importlib.util.spec_from_file_location("rank_hook", Path(ddlrun.keeper.program.HOOK, "ddlrun_exit.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_thread(name: str, lock: threading.Lock, seconds: float) -> threading.Thread:
    """Start a thread that waits for a lock under a name that the kernel shows."""

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        if lock.acquire(timeout=seconds):
            lock.release()

    named = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert named.wait(300)
    return thread


def test_a_thread_with_a_time_limit_is_busy(hook: ModuleType) -> None:
    lock = threading.Lock()
    with lock:
        threads = [start_thread(hook.GLOO_THREAD, lock, 1000), start_thread("other", lock, 1000)]
        assert hook.gloo_is_busy()
    threads[0].join()
    wait_until(lambda: not hook.gloo_is_busy())  # the kernel's thread ends after that of Python
    threads[1].join()


def test_an_idle_thread_is_not_awaited(hook: ModuleType) -> None:
    lock = threading.Lock()
    with lock:
        thread = start_thread(hook.GLOO_THREAD, lock, -1)
        wait_until(lambda: not hook.gloo_is_busy())
        hook.await_gloo()
        assert thread.is_alive()
    thread.join()


def test_a_busy_thread_is_awaited(hook: ModuleType) -> None:
    lock = threading.Lock()
    lock.acquire()
    thread = start_thread(hook.GLOO_THREAD, lock, 1000)
    released = threading.Event()

    def release() -> None:
        released.set()
        lock.release()

    threading.Timer(0.1, release).start()
    hook.await_gloo()
    assert released.is_set()
    thread.join()


SCRIPT = """
import sys, threading
from pathlib import Path
def work():
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop")
    named.set()
    threading.Event().wait(0.2)
    print("worker", flush=True)
named = threading.Event()
threading.Thread(target=work, daemon=True).start()
named.wait()
sys.modules["torch.distributed"] = sys
print("main", flush=True)
"""


def test_a_rank_awaits_the_thread_before_python_ends() -> None:
    environ = {**os.environ, "PYTHONPATH": ddlrun.keeper.program.HOOK}
    argv = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.split()) == (0, ["main", "worker"]), done.stderr
