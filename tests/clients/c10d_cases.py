"""PyTorch's own cases for its backend gloo, also with the backend "ddl" in gloo's place.

    python -m tests.clients.c10d_cases gloo|ddl --results FILE [--ranks N] [--file FILE] [NAME...]

The results are a line of JSON per case. Without --file, such as the test_c10d_gloo.py of PyTorch's repository, the
cases are those that its wheel contains.
"""

import argparse
import importlib
import inspect
import json
import logging
import os
import sys
import unittest
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as torch_distributed

from ddlrun.ddl.torch.backend import join
from ddlrun.ddl.torch.backend.process_group import DdlProcessGroup
from tests.clients.c10d import add_case_options
from tests.support.ports import reserved_port

dist: Any = torch_distributed  # its stubs lack what is replaced here
# Seconds after which a case has failed.
LIMIT = "300"
# The names of gloo's entries in a profile, which have no counterpart here.
PROFILES = ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS")
# Cases that PyTorch skips without GPUs, with gloo or on Linux, and that run here.
RUN_ANYWAY = {
    "test_barrier_timeout_global",
    "test_batch_isend_irecv_op_list_err",
    "test_broadcast_object_list",
    "test_new_subgroups",
    "test_new_subgroups_by_enumeration_input_rank_exceeds_world_size",
    "test_new_subgroups_by_enumeration_negative_input_rank",
    "test_new_subgroups_group_size_exceeds_world_size",
    "test_new_subgroups_overlap_not_allowed",
    "test_new_subgroups_world_size_not_divisible_by_group_size",
}


class GlooOptions:
    """The options of gloo's class that the cases set."""

    def __init__(self) -> None:
        self._timeout: Any = timedelta(minutes=5)
        self.global_ranks_in_group: list[int] = []
        self.group_name = "0"


class DdlAsGloo(DdlProcessGroup):
    """A group of the backend "ddl" with the constructor of gloo's."""

    Options = _Options = GlooOptions

    def __init__(
        self, store: Any, rank: int, size: int, options: Any = None, timeout: Any = None, **_newer: Any
    ) -> None:
        self.options = options or GlooOptions()
        limit = timeout or self.options._timeout  # noqa: SLF001 - gloo's name
        super().__init__(*join(SimpleNamespace(
            store=store, group_rank=rank, group_size=size, global_ranks_in_group=[], group_id="0",
            timeout=limit if isinstance(limit, timedelta) else timedelta(seconds=limit),
        )))  # fmt: skip

    def _get_backend(self, _device: Any) -> Any:
        return self

    @staticmethod
    def create_device(**_options: Any) -> None:
        """Do nothing: the group finds its interface itself."""


def import_tests(name: str) -> Any:
    """Import a module of PyTorch's tests, which reads the environment."""
    return importlib.import_module(f"torch.testing._internal.{name}")


def take_the_place_of_gloo() -> None:
    """Let torch.distributed make groups of ours where it would make gloo's."""
    common_distributed = import_tests("common_distributed")
    for module in (dist, dist.distributed_c10d):
        module.ProcessGroupGloo = DdlAsGloo
    common_distributed.create_device = DdlAsGloo.create_device


def fork_ranks() -> None:
    """Fork the ranks of cases instead of starting Python anew, which takes seconds per case."""
    process = torch.multiprocessing.get_context("fork").Process
    base = import_tests("common_distributed").MultiProcessTestCase
    base._spawn_processes = lambda case: case._start_processes(process)  # noqa: SLF001


def wheel_cases() -> Any:
    """Return the class of the cases in the wheel."""
    distributed_test = import_tests("distributed.distributed_test")
    if dist.ProcessGroupGloo is DdlAsGloo:
        for name in PROFILES:
            getattr(distributed_test, name).remove("gloo")

    def set_up(case: Any) -> None:
        distributed_test.TestDistBackend.setUp(case)
        case._spawn_processes()  # noqa: SLF001

    bases = (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase)  # noqa: SLF001
    methods = {"setUp": set_up, **dict(run_anyway(vars(bases[1])))}
    return unittest.defaultTestLoader.loadTestsFromTestCase(type("Cases", bases, methods))


def run_anyway(methods: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the cases that a backend for CPUs can run although PyTorch skips them, without what skips them."""
    for name, method in methods.items():
        if name in RUN_ANYWAY:
            yield name, no_skip(inspect.unwrap(method))
        elif name.startswith("test_all_to_all") and "cuda" not in name:  # "Only MPI supports" them
            yield name, no_skip(method)


def no_skip(method: Any) -> Any:
    """Take back what unittest's decorators say of a case."""
    method.__unittest_skip__ = False
    return method


def file_cases(path: Path) -> Any:
    """Return the cases of a file, and not those of base classes that it imports."""
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    classes = [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == path.stem]
    loader = unittest.defaultTestLoader
    return [loader.loadTestsFromTestCase(item) for item in classes if issubclass(item, unittest.TestCase)]


def flatten(suite: Any) -> Iterator[unittest.TestCase]:
    """Yield the cases of nested suites."""
    for item in suite:
        if isinstance(item, unittest.TestCase):
            yield item
        else:
            yield from flatten(item)


def run(case: unittest.TestCase) -> tuple[str, str]:
    """Run a case; return "passed", "failed" or "skipped", and the reason."""
    result = unittest.TestResult()
    case.run(result)
    if dist.is_initialized():  # a case without ranks has left a group, which the ranks of the next one would inherit
        dist.destroy_process_group()
    problems = [text for _, text in result.failures + result.errors]
    if problems:
        return "failed", problems[0]
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def main(port: int) -> None:
    """Run the cases whose names contain one of the names; the ranks meet at a port."""
    parser = argparse.ArgumentParser(description="Run the cases of gloo with a backend.")
    parser.add_argument("backend", choices=("gloo", "ddl"))
    parser.add_argument("--results", type=Path, required=True, help="the file to which results are appended")
    add_case_options(parser)
    options = parser.parse_intermixed_args()
    os.environ.update(
        BACKEND="gloo", WORLD_SIZE=options.ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        OMP_NUM_THREADS="1", DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=LIMIT, TEMP_DIR="", PYTORCH_PRINT_REPRO_ON_FAILURE="0",
    )  # fmt: skip
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    if options.backend == "ddl":
        take_the_place_of_gloo()
    fork_ranks()
    sys.argv = sys.argv[:1]  # torch's module of tests reads the arguments
    for case in flatten(file_cases(options.file) if options.file else wheel_cases()):
        name = ".".join(case.id().split(".")[-2:])
        if (not options.names or any(part in name for part in options.names)) and name in (options.only or [name]):
            state, reason = run(case)
            with options.results.open("a") as file:  # cases write to stdout
                file.write(json.dumps({"case": name, "state": state, "reason": reason}) + "\n")


if __name__ == "__main__":
    with reserved_port() as port:
        main(port)
