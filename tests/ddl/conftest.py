"""Fixtures for the tests of the runtime library."""

import gc
from collections.abc import Iterator

import pytest

# Programs and helpers of tests, some of which import PyTorch: they have neither tests nor doctests.
collect_ignore_glob = ["*_ranks.py", "lms_networks.py", "simulated_device.py"]


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Turn the garbage collector off: nothing in a test may need it to be freed. Use one thread of torch."""
    import torch  # noqa: PLC0415 - it need not be installed
    import torch._dynamo  # noqa: PLC0415 - a pass may import it, and only the collector frees the frames of its import

    gc.collect()
    gc.freeze()  # the next test's collection need not look at PyTorch's objects and all modules of tests
    gc.disable()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small
    yield
    torch.set_num_threads(threads)
    gc.enable()
