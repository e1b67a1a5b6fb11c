"""Script of the probe of a host's cores, GPUs and NICs in /sys, /proc and /dev, and the reader of its output.

Most of the output is that of grep: `path:content`, for each line of each file. The other lines begin with @, and have
a key and values.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.machine.pci import CHOOSING

# A POSIX sh script that needs only a shell and grep, and writes nothing. ROOT is empty, except to read the files
# of another machine from a folder. A device that may not be opened is not offered.
_SCRIPT = r"""
first_line() { line=; { read -r line <"$1"; } 2>/dev/null; }  # a shell's own read is quicker than cat
find_place() { place=; cd -P "$1" 2>/dev/null && place=$PWD; }
cd "$ROOT/sys/devices/system" 2>/dev/null || cd "$ROOT/proc" || exit 1  # a container may have no /sys
vendor= family= model= numbered=
while IFS=: read -r key value; do
  case $key in
    vendor_id*) vendor=$value ;;
    'cpu family'*) family=$value ;;
    model[!\ ]*) model=$value ;;
    'core id'*) numbered=yes && break ;;
    '') break ;;
  esac
done 2>/dev/null <"$ROOT/proc/cpuinfo"
[ -z "$numbered" ] && ! grep -qs '^core id' "$ROOT/proc/cpuinfo" || echo '@cpuinfo cores'
cpu='cpu/cpu[0-9]*' lists= masks=
for group in thread_siblings core_siblings die_cpus cluster_cpus book_siblings drawer_siblings; do
  lists="$lists $cpu/topology/${group}_list" masks="$masks $cpu/topology/$group"
done
files="cpu/online node/online $cpu/cache/index[0-9]/level $cpu/cpu_capacity"
files="$files ../cpu_core/cpus ../cpu_atom/cpus ../cpu_lowpower/cpus"
either() {  # the files of the first patterns, or where there are none, as in old kernels, those of the second
  for file in $1; do
    [ -e "$file" ] && files="$files $1" && return
  done
  files="$files $2"
}
either "$lists" "$masks"
either "$cpu/cache/index[0-9]/shared_cpu_list" "$cpu/cache/index[0-9]/shared_cpu_map"
either 'node/node[0-9]*/cpulist' 'node/node[0-9]*/cpumap'
# As hwloc does: siblings in a module of AMD are cores if they have numbers, and Xeon Phi's distances are not read.
case $vendor:$family: in *AuthenticAMD:*2[12]:) files="$files $cpu/topology/core_id" ;; esac
case $vendor:$family:$model: in
  *GenuineIntel:*6:*87:|*GenuineIntel:*6:*133:) ;;
  *) files="$files node/node[0-9]*/distance" ;;
esac
# One process for all files, as it takes longer than they do. Those of /sys have no colon, the others have one per line.
print_lines() {
  LC_ALL=C grep -aos -e '^[0-9a-f][^:]*$' -e '^Cpus_allowed_list:.*' -e '^MemTotal:.*' @more "$@" \
    "$ROOT/proc/self/status" "$ROOT/proc/meminfo"
}
print_lines $files 2>/dev/null
if [ $? -eq 126 ]; then  # there are too many
  set -f
  for pattern in $files; do set +f; print_lines $pattern; done
fi
cpuset=
first_line "$ROOT/proc/self/cpuset" && cpuset=$line
unified= limited=
while IFS=: read -r _ kinds path; do
  case ,$kinds, in
    ,,) unified=${path%/}/ ;;
    *,memory,*) limited=${path%/}/ ;;
  esac
done 2>/dev/null <"$ROOT/proc/self/cgroup"
# The cpuset that hwloc reads, which hides the rest. It reads no other, where a container shows the path of its host.
found=
print_cpuset() {
  before=cpuset. after=
  case $type:,$options, in
    cgroup2:*)
      first_line "$ROOT$mount/cgroup.controllers"
      case " $line " in *' cpuset '*) after=.effective ;; *) return ;; esac ;;
    cpuset:*|cgroup:*,noprefix,*cpuset,*|cgroup:*,cpuset,*noprefix,*) before= ;;
    cgroup:*,cpuset,*) ;;
    *) return ;;
  esac
  for kind in cpus mems; do
    first_line "$ROOT$mount${cpuset%/}/$before$kind$after" && echo "@cpuset $type $kind $line"
  done
  found=yes
}
print_limits() {  # those of all parent groups apply too
  at=$1
  while [ -n "$at" ]; do
    at=${at%/*}
    first_line "$ROOT$mount$at/$2" && echo "@memory $line"
  done
}
mounts=$ROOT/proc/self/mounts
[ -e "$mounts" ] || mounts=$ROOT/proc/mounts
while read -r _ mount type options _; do
  case $type in cgroup*|cpuset) ;; *) continue ;; esac
  [ -n "$found" ] || print_cpuset
  print_limits "$unified" memory.max
  print_limits "$limited" memory.limit_in_bytes
done 2>/dev/null <"$mounts"
may() { { true <"$1"; } 2>/dev/null && echo "@gpu $2 yes" || echo "@gpu $2 no"; }
pci=$ROOT/sys/bus/pci/devices
cd "$pci" 2>/dev/null && for gpu in *; do
  first_line "$pci/$gpu/class"
  case $line in 0x03*|0x12*) ;; *) continue ;; esac
  for name in vendor device class numa_node local_cpulist; do
    first_line "$pci/$gpu/$name"
    [ -z "$line" ] || echo "$gpu/$name:$line"
  done
  find_place "$pci/$gpu"
  echo "@bus $gpu $place"
  [ -z "$ROOT" ] || continue
  info=/proc/driver/nvidia/gpus/$gpu/information
  if [ -e "$info" ]; then
    while IFS=: read -r key value; do
      case $key in
        "GPU UUID") echo "@uuid $gpu" $value ;;
        "Device Minor") may /dev/nvidia$((value)) "$gpu"; echo "@minor $gpu $((value))" ;;
      esac
    done <"$info"
  elif [ -d "$pci/$gpu/drm" ]; then
    for node in "$pci/$gpu"/drm/renderD*; do may "/dev/dri/${node##*/}" "$gpu"; done
    first_line "$pci/$gpu/unique_id"
    [ -z "$line" ] || echo "@uuid $gpu GPU-$line"
  else
    echo "@gpu $gpu no"
  fi
done
is_active() {
  for state in "$1"/ports/*/state; do
    first_line "$state"
    case $line in *ACTIVE*) return ;; esac
  done
  return 1
}
for class in net infiniband hfi1 cxi; do
  for device in "$ROOT/sys/class/$class"/*; do
    [ -e "$device" ] || continue
    case $class in
      net)
        [ -e "$device/device" ] || continue
        first_line "$device/operstate"
        [ "$line" = up ] || continue ;;
      infiniband) is_active "$device" || continue ;;
    esac
    first_line "$device/device/numa_node"
    node=$line
    first_line "$device/device/local_cpulist" && echo "@near ${device##*/} $line"
    find_place "$device/device"
    echo "@nic $class ${device##*/} ${node:--1} $place"
  done
done
order=${CUDA_VISIBLE_DEVICES+CUDA_DEVICE_ORDER}
[ -n "$ZE_AFFINITY_MASK" ] || unset ZE_AFFINITY_MASK
case $NVIDIA_VISIBLE_DEVICES in GPU-*|MIG-*) ;; *) unset NVIDIA_VISIBLE_DEVICES ;; esac  # containers have "all"
for name in @choosing $order; do
  eval "[ -z \"\${$name+set}\" ] || echo \"@env $name \$$name\""
done
[ -z "$DDLRUN_GPUS" ] || echo "@allotted $DDLRUN_GPUS"
echo ddlrun:end
""".replace("@choosing", " ".join(CHOOSING))


def probe_script(more: str = "") -> str:
    """Return the script, which prints what more arguments of `grep -o` select too."""
    return _SCRIPT.replace("@more", more)


SCRIPT = probe_script()


class ProbeOutput(NamedTuple):
    """The script's output: contents of files by path, and the words of the lines that begin with @."""

    files: Mapping[str, str]
    records: Sequence[Sequence[str]]

    def values(self, key: str) -> dict[str, str]:
        """Return the value of each device in the records `@key DEVICE VALUE`."""
        rows = (words for words in self.records if words[0] == key)
        return {words[1]: words[2].strip() if len(words) > 2 else "" for words in rows}


def split_output(text: str) -> ProbeOutput:
    """Split the script's output into files and records."""
    files: dict[str, str] = {}
    records: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("@"):
            records.append(line.split(" ", 2))
        else:
            path, _, content = line.rpartition(":")  # a PCI address has colons, no content has
            files.setdefault(path, content.strip())
    return ProbeOutput(files, records)
