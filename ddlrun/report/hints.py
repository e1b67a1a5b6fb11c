"""Hints: the likely cause of a failure and the remedy, from the output of a program or of the process manager."""

import re
import signal

# Modules whose package has another name on PyPI.
PACKAGES = {
    "attr": "attrs", "Bio": "biopython", "bs4": "beautifulsoup4", "Crypto": "pycryptodome", "cv2": "opencv-python",
    "dateutil": "python-dateutil", "docx": "python-docx", "dotenv": "python-dotenv", "faiss": "faiss-cpu",
    "fitz": "PyMuPDF", "git": "GitPython", "google.protobuf": "protobuf", "hydra": "hydra-core",
    "ignite": "pytorch-ignite", "jwt": "PyJWT", "PIL": "pillow", "pkg_resources": "'setuptools<81'",
    "psycopg2": "psycopg2-binary", "pynvml": "nvidia-ml-py", "pywt": "PyWavelets", "ruamel.yaml": "ruamel.yaml",
    "serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn", "skopt": "scikit-optimize",
    "umap": "umap-learn", "yaml": "PyYAML", "zmq": "pyzmq",
}  # fmt: skip
# Patterns in the output of a program or of the process manager -> the likely cause and the remedy, which may name the
# program's {python}.
HINTS = (
    (
        r"(?:partially initialized module|No module named '[\w.]+';) '(\w+)'",
        "a file {0}.py, perhaps the script itself, is imported in place of the library: give it another name",
    ),
    *(
        (
            rf"No module named '?{re.escape(module)}(?![\w.])",
            f"{{python}} on that host has no {module}: {{python}} -m pip install {package}",
        )
        for module, package in PACKAGES.items()
    ),
    (
        r"No module named '?((\w+)\.[\w.]+)",
        "{1} on that host has no module {0}: it is of another version, or installed incompletely",
    ),
    (
        r"No module named '?(\w+)",
        "{python} on that host has no module {0}: install it there, or name another Python before the script",
    ),
    (
        r"(?:ImportError: |error while loading shared libraries: )(\S+): cannot open shared object file",
        "the library {0} is missing there: load its module or set LD_LIBRARY_PATH",
    ),
    (
        r"CUDA(?: error:)? out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED: Out of memory|_STATUS_ALLOC_FAILED",
        "the GPU's memory is full: use a smaller batch; nvidia-smi there shows other users of it",
    ),
    (
        r"Torch not compiled with CUDA|doesn't have NCCL built in|has no attribute '_cuda_setDevice'",
        "PyTorch on that host is a build without CUDA: install one with CUDA, or use the backend gloo on CPUs",
    ),
    (
        r"CUDA-capable device|driver version is insufficient|No CUDA GPUs|Found no NVIDIA|no GPUs found!",
        "no usable GPU on that host: compare nvidia-smi there with ddlrun probe",
    ),
    (r"invalid device ordinal", "the script selects a GPU that this rank cannot see: see --visible-gpus"),
    (
        r"uncorrectable (?:ECC|NVLink) error|GPU has fallen off the bus",
        "that GPU, or its link, is faulty: dmesg and nvidia-smi -q there show the error; leave the host out",
    ),
    (
        r"no kernel image is available|is not compatible with the current PyTorch installation",
        "PyTorch on that host is not built for its GPU: install a build for that GPU",
    ),
    (
        r"device-side assert triggered|CUDA error: (?:an illegal memory access|unspecified launch failure)",
        "a CUDA kernel failed: run again with --env CUDA_LAUNCH_BLOCKING=1 to see the line that launched it",
    ),
    (
        r"Duplicate GPU detected",
        "NCCL does not allow two ranks on one GPU: start one rank per GPU, and call torch.cuda.set_device(LOCAL_RANK)",
    ),
    (
        r"Timed out (?:waiting \d+ ?ms|after \d+ seconds waiting) for|Watchdog caught|wait timeout after \d+ms",
        "it timed out waiting for another rank: a shorter --stall-timeout examines all ranks, and names that one",
    ),
    (
        r"Unable to find address for: \S|no socket interface found",
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names no interface of that host: unset it; --network chooses one",
    ),
    (
        r"NCCL (?:WARN|error)|ncclSystemError|ncclUnhandledCudaError",
        "NCCL failed: run again with --env NCCL_DEBUG=INFO; --network names the network to use",
    ),
    (
        r"(?i)Address already in use|EADDRINUSE",
        "another process there holds the port: ddlrun runs -H HOST finds leftovers; unset MASTER_PORT if you set it",
    ),
    (
        r"MemoryError|Cannot allocate memory",
        "out of memory: the host has none left, or a limit (ulimit -v, a cgroup) was reached",
    ),
    (r"No space left on device", "a disk, or shared memory, is full there: ddlrun check shows both"),
    (
        r"unable to write to file </torch_|Bus error",
        "shared memory is too small on that host: start a container with --shm-size",
    ),
    (
        r"newuidmap|no subuid ranges found",
        "Podman without root needs newuidmap (package uidmap or shadow-utils), and /etc/subuid and /etc/subgid there",
    ),
    (
        r"undefined symbol: ",
        "a library there was built for another version of what it links to, such as PyTorch or CUDA: build it again",
    ),
    (
        r"can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|pthread_create failed",
        "no more threads or processes are allowed there: raise ulimit -u, or the cgroup's pids.max",
    ),
    (r"Too many open files", "raise the limit of open files there (ulimit -n)"),
    (r"File too large", "a file reached the size limit there: raise it (ulimit -f)"),
    (
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|LOCAL_RANK) expected",
        "the script needs torchrun's variables, which --framework omits or --env overrides: add torch to --framework",
    ),
    (
        r"terminate called without an active exception|PyGILState_Release: |pt_gloo_runloop",
        "a C++ thread was killed at exit; if it is gloo's (PyTorch): del the model, then destroy_process_group()",
    ),
    (
        r"EOFError: EOF when reading a line",
        "its standard input is empty: --stdin-rank N passes yours on to rank N, and --pty gives a rank your terminal",
    ),
    (
        r"required: .*--local[-_]rank",
        "only the old torch.distributed.launch passes --local-rank: read LOCAL_RANK from os.environ",
    ),
    (r"Unknown backend type ddl", "the script has to import ddlrun.ddl.torch first, as DDLRUN_HOOK excludes backend"),
    (
        r"Runtime environment uses unsupported PMI version PMIx",
        "the rank uses MPICH, and Open MPI's mpirun started it: use --process-manager ddlrun",
    ),
    (
        r"Permission denied",
        "this user may not read, write or execute a file there; --fetch makes its files of --ship code writable",
    ),
)
LIMIT_HINTS = {
    128 + signal.SIGXCPU: "the CPU time limit was reached there: raise it (ulimit -t)",
    128 + signal.SIGXFSZ: "a file reached the size limit there: raise it (ulimit -f)",
}
CODE_HINTS = LIMIT_HINTS | {
    126: "the program is not executable there: chmod +x, or write its interpreter before it",
    127: "the program is not on PATH there (write ./NAME for the working folder), or its interpreter is missing",
    128 + signal.SIGSEGV: "--env PYTHONFAULTHANDLER=1 shows the line of Python at which it happened",
    128 + signal.SIGBUS: "shared memory, or a disk, is full there (see /dev/shm), or a mapped file was truncated",
    128 + signal.SIGKILL: "another process killed it, often the kernel or the scheduler, for lack of memory: see dmesg",
}


def find_hint(text: str, hints: tuple[tuple[str, str], ...], python: str = "python") -> str | None:
    """Return the hint of the first pattern that matches; None if none does. `python` ran the program."""
    for pattern, hint in hints:
        match = re.search(pattern, text)
        if match:
            return hint.format(*match.groups(), python=python)
    return None
