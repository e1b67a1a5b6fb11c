"""Cores as ddlrun's probe and lstopo list them."""

import os
import subprocess
from xml.etree import ElementTree as ET

from ddlrun.machine import Machine
from ddlrun.machine.sysfs_script import SCRIPT

Cores = list[tuple[int, tuple[int, ...]]]
"""The package and the PUs of each core, in logical order."""


def probe_output(root: str = "") -> str:
    """Return the output of the probe script on this machine, or for the files of another one under `root`."""
    environ = {"PATH": os.environ["PATH"], "ROOT": root}
    return subprocess.run(["sh", "-s"], input=SCRIPT, env=environ, capture_output=True, text=True, check=True).stdout


def cores_of_lstopo(*arguments: str) -> Cores:
    """Return lstopo's cores. Packages without a PU, of which a cpuset allows only the memory, are counted."""
    xml = subprocess.run(["lstopo", *arguments, "--of", "xml"], capture_output=True, text=True, check=True).stdout
    packages = ET.fromstring(xml).iterfind(".//object[@type='Package']")
    return [
        (index, tuple(sorted(int(pu.get("os_index", "-1")) for pu in core.iter("object") if pu.get("type") == "PU")))
        for index, package in enumerate(packages)
        for core in package.iter("object")
        if core.get("type") == "Core"
    ]


def cores_of_machine(machine: Machine) -> Cores:
    return [(core.package, tuple(pu.os_index for pu in core.pus)) for core in machine.cores]
