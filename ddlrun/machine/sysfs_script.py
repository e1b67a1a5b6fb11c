"""Script of the probe of a host's cores, GPUs and NICs in /sys, /proc and /dev, and the reader of its output.

Most of the output is that of `grep -s . FILE...`: `path:content`, for each line of each file. The other lines
begin with @, and have a key and values.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddlrun.machine.pci import CHOOSING

# A POSIX sh script that needs only a shell and grep, and writes nothing. ROOT is empty, except to read the files
# of another machine from a folder. A device that may not be opened is not offered.
SCRIPT = r"""
first_line() { line=; { read -r line <"$1"; } 2>/dev/null; }  # a shell's own read is quicker than cat
cd "$ROOT/sys/devices/system" 2>/dev/null || cd "$ROOT/proc" || exit 1  # a container may have no /sys
vendor= family= model=
while IFS=: read -r key value; do
  case $key in
    vendor_id*) vendor=$value ;;
    'cpu family'*) family=$value ;;
    model[!\ ]*) model=$value && break ;;
    '') break ;;
  esac
done 2>/dev/null <"$ROOT/proc/cpuinfo"
grep -qs '^core id' "$ROOT/proc/cpuinfo" && echo '@cpuinfo cores'
either() {  # the files of the first patterns, or where there are none, as in old kernels, those of the second
  for file in $1; do
    [ -e "$file" ] || continue
    grep -s . $1 /dev/null
    return
  done
  grep -s . $2 /dev/null
}
cpu='cpu/cpu[0-9]*' lists= masks=
for group in thread_siblings core_siblings die_cpus cluster_cpus book_siblings drawer_siblings; do
  lists="$lists $cpu/topology/${group}_list" masks="$masks $cpu/topology/$group"
done
grep -s . cpu/online node/online $cpu/cache/index[0-9]/level $cpu/cpu_capacity ../cpu_core/cpus ../cpu_atom/cpus \
  ../cpu_lowpower/cpus /dev/null
either "$lists" "$masks"
either "$cpu/cache/index[0-9]/shared_cpu_list" "$cpu/cache/index[0-9]/shared_cpu_map"
either 'node/node[0-9]*/cpulist' 'node/node[0-9]*/cpumap'
# As hwloc does: siblings in a module of AMD are cores if they have numbers, and Xeon Phi's distances are not read.
case $vendor:$family: in *AuthenticAMD:*2[12]:) grep -s . $cpu/topology/core_id /dev/null ;; esac
case $vendor:$family:$model: in
  *GenuineIntel:*6:*87:|*GenuineIntel:*6:*133:) ;;
  *) grep -s . node/node[0-9]*/distance /dev/null ;;
esac
grep -s -e Cpus_allowed_list: -e MemTotal: "$ROOT/proc/self/status" "$ROOT/proc/meminfo" /dev/null
mounts=$ROOT/proc/self/mounts
[ -e "$mounts" ] || mounts=$ROOT/proc/mounts
cpuset=
first_line "$ROOT/proc/self/cpuset" && cpuset=$line
# The cpuset that hwloc reads, which hides the rest. It reads no other, where a container shows the path of its host.
while read -r _ mount type options _; do
  before=cpuset. after=
  case $type:,$options, in
    cgroup2:*)
      first_line "$ROOT$mount/cgroup.controllers"
      case " $line " in *' cpuset '*) after=.effective ;; *) continue ;; esac ;;
    cpuset:*|cgroup:*,noprefix,*cpuset,*|cgroup:*,cpuset,*noprefix,*) before= ;;
    cgroup:*,cpuset,*) ;;
    *) continue ;;
  esac
  for kind in cpus mems; do
    first_line "$ROOT$mount${cpuset%/}/$before$kind$after" && echo "@cpuset $type $kind $line"
  done
  break
done 2>/dev/null <"$mounts"
while IFS=: read -r _ kinds path; do
  case ,$kinds, in
    ,,) file=memory.max ;;
    *,memory,*) file=memory.limit_in_bytes ;;
    *) continue ;;
  esac
  while read -r _ mount type _; do
    case $type in cgroup*) ;; *) continue ;; esac
    at=${path%/}
    while :; do  # the limits of all parent groups apply too
      [ -e "$ROOT$mount$at/$file" ] && read -r bytes <"$ROOT$mount$at/$file" && echo "@memory $bytes"
      [ -n "$at" ] || break
      at=${at%/*}
    done
  done <"$mounts"
done 2>/dev/null <"$ROOT/proc/self/cgroup"
may() { ( : <"$1" ) 2>/dev/null && echo "@gpu $2 yes" || echo "@gpu $2 no"; }
cd "$ROOT/sys/bus/pci/devices" 2>/dev/null && for gpu in $(grep -lsE '^0x(03|12)' */class); do
  gpu=${gpu%/class}
  grep -s . "$gpu/vendor" "$gpu/device" "$gpu/class" "$gpu/numa_node" "$gpu/local_cpulist" /dev/null
  echo "@bus $gpu $(cd -P "$gpu" && pwd -P)"
  [ -z "$ROOT" ] || continue
  info=/proc/driver/nvidia/gpus/$gpu/information
  if [ -e "$info" ]; then
    while IFS=: read -r key value; do
      case $key in
        "GPU UUID") echo "@uuid $gpu" $value ;;
        "Device Minor") may /dev/nvidia$((value)) "$gpu"; echo "@minor $gpu $((value))" ;;
      esac
    done <"$info"
  elif [ -d "$gpu/drm" ]; then
    for node in "$gpu"/drm/renderD*; do may "/dev/dri/${node##*/}" "$gpu"; done
    [ ! -e "$gpu/unique_id" ] || echo "@uuid $gpu GPU-$(cat "$gpu/unique_id")"
  else
    echo "@gpu $gpu no"
  fi
done
for class in net infiniband hfi1 cxi; do
  for device in "$ROOT/sys/class/$class"/*; do
    [ -e "$device" ] || continue
    case $class in
      net)
        [ -e "$device/device" ] || continue
        first_line "$device/operstate"
        [ "$line" = up ] || continue ;;
      infiniband) grep -qs ACTIVE "$device"/ports/*/state || continue ;;
    esac
    first_line "$device/device/numa_node"
    node=$line
    first_line "$device/device/local_cpulist" && echo "@near ${device##*/} $line"
    echo "@nic $class ${device##*/} ${node:--1} $(cd -P "$device/device" 2>/dev/null && pwd -P)"
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
