"""A healthy job: healthy.py NUMBER, or healthy.py NAME SECONDS.

Of a number, ranks compute, communicate, read, sleep and lock, each in steps of some length. Of a name, rank 0 does
something else for some seconds, and prints nothing, while the others wait for it.
"""

import concurrent.futures
import hashlib
import http.server
import multiprocessing
import os
import random
import shutil
import socketserver
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK = WORLD.rank
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
END = time.monotonic() + SECONDS
MIB = 1 << 20
STEPS = 1_000_000


def goes_on() -> bool:
    return time.monotonic() < END


def tokenize(number: int) -> int:
    return sum(len(word) for word in (f"token {number} " * 20_000).split())


# -- rank 0 at work ------------------------------------------------------------------------------------


def compiler(folder: Path) -> None:
    functions = "\n".join(f"int f{n}(int x) {{ return x % {n + 2} ? f{n}(x - 1) * {n} : x; }}" for n in range(100))
    (folder / "kernels.c").write_text(functions)
    while goes_on():
        subprocess.run(["gcc", "-O2", "-c", "kernels.c"], cwd=folder, check=True)


def compile_workers(_folder: Path) -> None:
    """Compile in processes of a pool, as torch.compile does."""
    source = Path(os.__file__).read_text()
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        while goes_on():
            for job in [pool.submit(compile_source, source) for _ in range(8)]:
                job.result()


def compile_source(source: str) -> int:
    return sum(len(compile(source, "kernel", "exec").co_code) for _ in range(20))


def slow_checkpoint(folder: Path) -> None:
    """Write to a program that stores 200 kB/s."""
    code = (
        "import sys, time\nwhile data := sys.stdin.buffer.read1(1 << 14):\n f.write(data); f.flush(); time.sleep(.08)"
    )
    store = [sys.executable, "-c", f"f = open(r'{folder}/checkpoint', 'wb')\n{code}"]
    with subprocess.Popen(store, stdin=subprocess.PIPE) as program:
        while goes_on() and program.stdin is not None:
            program.stdin.write(bytes(MIB))


def synchronous_checkpoint(folder: Path) -> None:
    with (folder / "checkpoint").open("wb") as file:
        while goes_on():
            file.write(os.urandom(1 << 18))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.5)  # the disk of others is slower


def evaluation(_folder: Path) -> None:
    data, correct = np.random.default_rng(0).random((512, 512)), 0.0
    while goes_on():
        correct += float((data @ data).trace())


def download(folder: Path) -> None:
    address = wait_for_text(folder / "address")
    with urllib.request.urlopen(f"http://{address}/weights", timeout=60) as reply:
        while reply.read(1 << 16):
            pass


class SlowFile(http.server.BaseHTTPRequestHandler):
    """A server of a file at 60 kB/s."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        while goes_on():
            self.wfile.write(bytes(6000))
            time.sleep(0.1)


def pool(_folder: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        while goes_on():
            workers.map(tokenize, range(200))


def thread(_folder: Path) -> None:
    def compute() -> None:
        data = np.ones((400, 400))
        while goes_on():
            data = data @ data / 400

    worker = threading.Thread(target=compute, name="prefetch")
    worker.start()
    worker.join()


def loader(folder: Path) -> None:
    """Unpack samples in a process, and wait for its queue."""
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sample", os.urandom(8) * (MIB // 2))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=unpack, args=(folder / "data.zip", queue))
    worker.start()
    queue.get()
    worker.join()


def unpack(path: Path, queue: "multiprocessing.Queue[int]") -> None:
    size = 0
    while goes_on():
        with zipfile.ZipFile(path) as archive:
            size += len(archive.read("sample"))
    queue.put(size)


def database(folder: Path) -> None:
    with sqlite3.connect(folder / "samples.db") as base:
        base.execute("create table samples (name text, size int)")
        while goes_on():
            rows = ((hashlib.sha1(bytes([n & 255, n >> 8])).hexdigest(), n) for n in range(60_000))  # noqa: S324
            base.executemany("insert into samples values (?, ?)", rows)
            base.execute("create index by_name on samples (name)")
            base.execute("drop index by_name")


def gzip_pipe(_folder: Path) -> None:
    with subprocess.Popen(["gzip", "-9"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as program:
        data = os.urandom(MIB // 2) * 2
        while goes_on() and program.stdin is not None:
            program.stdin.write(data)


def copy(folder: Path) -> None:
    """Wait for a program that copies 1 MB/s."""
    code = "import time\nfor n in range(10**6): open('copy', 'ab').write(bytes(100_000)); time.sleep(.1)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder) as program:
        try:
            program.wait(SECONDS)
        except subprocess.TimeoutExpired:
            program.kill()


def slow_pipe(_folder: Path) -> None:
    code = f"import time\nfor n in range({int(2 * SECONDS)}): print('sample', n, flush=True); time.sleep(.5)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        for _ in program.stdout or ():
            pass


def autotune(_folder: Path) -> None:
    best = {}
    sizes = [2**power for power in range(4, 10)]
    while goes_on():
        for size in sizes:
            data = np.ones((size, size))
            begun = time.perf_counter()
            for _ in range(10):
                data @ data
            best[size] = time.perf_counter() - begun


def big_sort(_folder: Path) -> None:
    while goes_on():
        np.sort(np.random.default_rng(0).random(3_000_000))


def lock_file(folder: Path) -> None:
    """Compute with a lock for which rank 1 looks from time to time."""
    data = np.ones((300, 300))
    while goes_on():
        data = data @ data / 300
    (folder / "lock").unlink()


def checksum(folder: Path) -> None:
    (folder / "weights").write_bytes(bytes(8 * MIB))
    with concurrent.futures.ThreadPoolExecutor(1) as workers:
        while goes_on():
            workers.submit(lambda: hashlib.sha256((folder / "weights").read_bytes() * 20).digest()).result()


def python_loop(_folder: Path) -> None:
    words: dict[int, int] = {}
    number = 0
    while goes_on():
        number = (number * 1103515245 + 12345) % 65536
        words[number % 1000] = words.get(number % 1000, 0) + 1


def upload(folder: Path) -> None:
    """Send a checkpoint to a server that takes 300 kB/s."""
    host, _, port = wait_for_text(folder / "address").partition(":")
    with socketserver.socket.create_connection((host, int(port))) as link:  # type: ignore[attr-defined]
        while goes_on():
            link.sendall(bytes(MIB))


class SlowStore(socketserver.BaseRequestHandler):
    """A server that takes 300 kB/s."""

    def handle(self) -> None:
        while self.request.recv(1 << 15):
            time.sleep(0.1 if goes_on() else 0)


def child_evaluation(_folder: Path) -> None:
    code = (
        f"import numpy, time\na, end = numpy.ones((300, 300)), time.time() + {SECONDS}\nwhile time.time() < end: a @ a"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def archive(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "weights").write_bytes(os.urandom(MIB // 4))
    while goes_on():
        shutil.make_archive(str(folder / "code"), "xztar", folder / "code")


# The servers of another rank, whose address is in a file.
SERVERS = {"download": SlowFile, "upload": SlowStore}
JOBS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (
        compiler, compile_workers, slow_checkpoint, synchronous_checkpoint, evaluation, download, pool, thread, loader,
        database, gzip_pipe, copy, slow_pipe, autotune, big_sort, lock_file, checksum, python_loop, upload,
        child_evaluation, archive,
    )
}  # fmt: skip


def wait_for_text(path: Path) -> str:
    while not path.exists():
        time.sleep(0.1)
    return path.read_text()


def serve(handler: type[socketserver.BaseRequestHandler], folder: Path) -> None:
    """Serve in a thread until the end of the job."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "new").write_text(f"127.0.0.1:{server.server_address[1]}")
    (folder / "new").rename(folder / "address")


def run_job(name: str) -> None:
    """Run a job of which the other ranks wait for rank 0."""
    with tempfile.TemporaryDirectory() as own:
        folder = Path(WORLD.bcast(own))
        if RANK == 1 and name in SERVERS:
            serve(SERVERS[name], folder)
        (folder / "lock").touch()
        WORLD.Barrier()
        print("started", flush=True)
        if RANK == 0:
            JOBS[name](folder)
        elif RANK == 1 and name == "lock_file":
            while (folder / "lock").exists():
                time.sleep(0.1)
        WORLD.Barrier()


# -- steps of all ranks --------------------------------------------------------------------------------


class Steps:
    """Steps of ranks, which a seed chooses."""

    def __init__(self, seed: int) -> None:
        """Choose the longest part of a step, in seconds; the imbalance of the ranks; the kind of work."""
        self._choice = choice = random.Random(seed)  # noqa: S311 - the same on all ranks
        self._step = choice.choice([0.002, 0.02, 0.1, 0.5])
        self._slow_rank, self._factor = choice.randrange(WORLD.size), choice.choice([1, 1, 3, 10])
        self._work = choice.choice(["compute", "sleep", "read", "lock"])
        self._lock = threading.Lock()

    def run(self) -> None:
        print("started", flush=True)
        gradient, total = np.ones(1000), np.zeros(1000)
        for _ in range(STEPS):
            self._wait(self._step * (self._factor if self._slow_rank == RANK else 1) * self._choice.random())
            WORLD.Allreduce(gradient, total)
            if self._choice.random() < 0.1:
                WORLD.Barrier()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._work == "compute":
                np.ones((64, 64)) @ np.ones((64, 64))
            elif self._work == "sleep":
                time.sleep(seconds / 4)
            elif self._work == "read":
                with open("/proc/self/stat") as file:
                    file.read()
            else:
                with self._lock:
                    time.sleep(seconds / 8)


if __name__ == "__main__":
    if sys.argv[1] in JOBS:
        run_job(sys.argv[1])
    else:
        Steps(int(sys.argv[1])).run()
