"""The probe of a host's facts: one shell script per host."""

import shlex

from ddlrun.environment.rendezvous_ports import SCRIPT as PORTS
from ddlrun.machine.announced_cpus import SCRIPT as MACHINE
from ddlrun.network.addresses import SCRIPT as NETWORK
from ddlrun.preflight.facts import END, MPI_LIBRARIES, START, FactsRequest

PACKAGES = ("mpi4py", "torch", "horovod")


def facts_script(request: FactsRequest) -> str:
    """Return the POSIX sh script that prints a host's facts; it writes nothing and needs only a shell.

    Every value is inserted as a quoted literal.
    """
    values = {
        "manager": request.manager, "python": request.python, "folder": request.folder, "daemon": request.daemon,
        "program": request.program or "", "logs": request.logs or "", "packages": " ".join(PACKAGES),
        "libraries": " ".join(MPI_LIBRARIES),
        "names": " ".join(request.names), "path": request.path or "", "encryption": request.encryption or "",
        "agents": "yes" if request.agents else "",
        "runtime": request.container.program if request.container else "",
        "image": request.container.test if request.container else "",
    }  # fmt: skip
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    machine = f"echo @machine\n({MACHINE})\necho @own"
    parts = [f"echo '{START}'", machine, assignments + _SCRIPT, f"({NETWORK})", PORTS]
    return "\n".join([*parts, f"echo '{END}'\n"])


_SCRIPT = r"""
LC_ALL=C; export LC_ALL
echo "@clock $(date +%s.%N)"
own=$(uname -n)
echo "@hostname $own"
{ read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null &&
  echo "@kernel $boot" $(
    cd /proc/self/ns && ls -l net pid uts ipc 2>/dev/null | while read -r line; do echo "${line##* }"; done)
limit=; ! command -v timeout >/dev/null 2>&1 || limit='timeout 8'
resolve() { echo "@name $1" $($limit getent ahosts "$1" 2>/dev/null | while read -r ip _; do echo "$ip"; done); }
if command -v getent >/dev/null 2>&1; then  # at the same time, as an unknown name takes seconds
  for name in "$own" $names; do resolve "$name" & done
fi
if [ -f "$manager" ] && [ -x "$manager" ]; then
  echo "@manager $("$manager" --version 2>/dev/null </dev/null | while read -r line; do echo "$line"; break; done)"
fi
[ ! -f "${manager%/*}/$daemon" ] || [ ! -x "${manager%/*}/$daemon" ] || echo "@daemon"
if [ -x "$python" ]; then
  "$python" -I -c '
import os, site, sys  # importlib.metadata takes four times as long as all of this
print("@python", sys.version.split()[0])
libraries, *packages = sys.argv[1:]
for folder in (*sys.path, site.getusersitepackages()):
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        name, _, version = os.path.splitext(entry)[0].partition("-")
        if entry.endswith("-info") and name in packages:
            packages.remove(name)
            print("@package", name, version.partition("-py")[0], folder)
            if name == "mpi4py":
                inside = os.path.join(folder, name)
                modules = (file for file in os.listdir(inside) if file.startswith("MPI") and file.endswith(".so"))
                code = b"".join(open(os.path.join(inside, file), "rb").read() for file in modules)
                print("@libraries", *(word for word in libraries.split() if word.encode() in code))
' "$libraries" $packages </dev/null 2>/dev/null
  [ -z "$encryption" ] || "$python" -I -S -c '
import sys
sys.path.append(sys.argv[1])
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
AESGCM(X25519PrivateKey.generate().public_key().public_bytes_raw())
print("@encryption")
' "$encryption" </dev/null 2>/dev/null
fi
[ -z "$agents" ] || [ -x "$python" ] ||  # the agent's own script takes python3 only then
  python3 -I -S -c 'import sys; print("@agent", sys.version.split()[0])' </dev/null 2>/dev/null
if [ -n "$runtime" ] && command -v "$runtime" >/dev/null 2>&1; then
  found=runtime
  ! (eval "${image:-true}") >/dev/null 2>&1 </dev/null || found=image
  echo "@container $found"
fi
[ ! -d "$folder" ] || { echo "@folder"; cd "$folder"; }
case $program in
  '') ;;
  *.py) [ ! -r "$program" ] || echo "@content $(cksum <"$program")" ;;
  *) executable=$(PATH=${path:-$PATH}; command -v "$program" 2>/dev/null) && echo "@program $executable" ;;
esac
driver=/proc/driver/nvidia/version
[ ! -r $driver ] || { read -r line <$driver; echo "@driver $line"; }
room() { df -Pk "$2" 2>/dev/null | { read -r _; read -r _ _ _ free _ && echo "@room $1 $free $2"; }; }
[ ! -d /dev/shm ] || room shm /dev/shm
temporary=${TMPDIR:-/tmp}
room temporary "$temporary"
[ -d "$temporary" ] && [ -w "$temporary" ] || echo "@unwritable $temporary"
while [ -n "$logs" ] && [ ! -d "$logs" ]; do logs=${logs%/*}; done
[ -z "$logs" ] || room logs "$logs"
echo "@limit memlock $(ulimit -l 2>/dev/null)"
echo "@limit files $(ulimit -n 2>/dev/null)"
for environment in $(grep -lsaz '^DDLRUN_RUN=' /proc/[0-9]*/environ 2>/dev/null); do
  process=${environment%/environ}
  [ -O "$process" ] && [ "$process/ns/net" -ef /proc/self/ns/net ] || continue
  run=$(tr '\0' '\n' <"$environment" | sed -n 's/^DDLRUN_RUN=//p')
  [ "$run" = "${DDLRUN_RUN-}" ] || [ -z "$run" ] ||
    echo "@left ${process##*/} ${run:--} $(tr '\0\n' '  ' <"$process/cmdline")"
done 2>/dev/null
wait
"""
