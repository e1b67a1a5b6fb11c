#!/bin/sh
# Run a command on a host that has GPUs, as far as /sys, /proc and /dev tell: pretend_gpus.sh VENDOR PCI-ADDRESS... -- COMMAND
# Needs root; the mounts are in a namespace of their own and go with the command.
set -e
if [ "$PRETEND" != inside ]; then
  PRETEND=inside exec unshare -m sh "$0" "$@"
fi
vendor=$1; shift
mount --make-rprivate /
mount -t tmpfs none /sys/bus/pci/devices
mount -t tmpfs none /sys/bus/pci/drivers
mkdir /sys/bus/pci/drivers/amdgpu
mount -t tmpfs none /proc/driver
minor=0
while [ "$1" != -- ]; do
  gpu=/sys/bus/pci/devices/$1
  mkdir -p "$gpu"
  echo 0x030200 >"$gpu/class"; echo 0 >"$gpu/numa_node"; echo 0x20b0 >"$gpu/device"
  if [ "$vendor" = nvidia ]; then
    echo 0x10de >"$gpu/vendor"
    mkdir -p "/proc/driver/nvidia/gpus/$1"
    printf 'Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-%s\nDevice Minor: \t %s\n' "${1##*:}-$minor" "$minor" \
      >"/proc/driver/nvidia/gpus/$1/information"
    nodes="$nodes nvidia$minor"
  else
    echo 0x1002 >"$gpu/vendor"; echo "abc$minor" >"$gpu/unique_id"
    mkdir -p "$gpu/drm/renderD$((128 + minor))" "$gpu/hwmon/hwmon7"
    echo 97 >"$gpu/gpu_busy_percent"; echo 64207454208 >"$gpu/mem_info_vram_used"
    echo 206141652992 >"$gpu/mem_info_vram_total"; printf '0: 132Mhz *\n1: 2100Mhz\n' >"$gpu/pp_dpm_sclk"
    echo 402130000 >"$gpu/hwmon/hwmon7/power1_input"; echo 750000000 >"$gpu/hwmon/hwmon7/power1_cap"
    echo 61000 >"$gpu/hwmon/hwmon7/temp2_input"; echo 1755000000 >"$gpu/hwmon/hwmon7/freq1_input"
    ln -s "$gpu" /sys/bus/pci/drivers/amdgpu
    nodes="$nodes dri/renderD$((128 + minor))"
  fi
  minor=$((minor + 1)); shift
done
shift
# Device files that can be opened, but for those that CLOSED names.
mkdir /run/pretend.$$; trap 'rmdir /run/pretend.$$' EXIT
mount -t tmpfs none /run/pretend.$$
for file in null zero urandom random full tty; do touch "/run/pretend.$$/$file"; mount --bind "/dev/$file" "/run/pretend.$$/$file"; done
mkdir /run/pretend.$$/shm /run/pretend.$$/pts /run/pretend.$$/dri
for folder in shm pts; do mount --bind "/dev/$folder" "/run/pretend.$$/$folder"; done
ln -s pts/ptmx /run/pretend.$$/ptmx; ln -s /proc/self/fd /run/pretend.$$/fd
for node in $nodes; do case " $CLOSED " in *" $node "*) ;; *) touch "/run/pretend.$$/$node" ;; esac; done
mount --move /run/pretend.$$ /dev
"$@"
