"""Large-model support as scripts use it: switched off, around modules, beside other hooks, with a line at the end."""

import copy
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs

needs.package("torch", "torch==2.13.0", module=True)

import torch
from torch import nn

from ddlrun.ddl.lms import LMS, Policy, enable
from tests.ddl.lms_networks import deep, half_full, same_bits, swap_all, train, train_plainly

pytestmark = [pytest.mark.extra, pytest.mark.usefixtures("no_garbage")]
ROOT = Path(__file__).parents[2]


def test_a_size_of_zero_or_no_device_switches_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not LMS(0, device=half_full()).active
    assert LMS().active == torch.cuda.is_available()
    monkeypatch.setenv("DDLRUN_LMS", "0")
    assert not LMS(device=half_full()).active
    monkeypatch.setenv("DDLRUN_LMS", "4")
    monkeypatch.setenv("DDLRUN_LMS_FRAC", "0.25")
    assert LMS(device=half_full()).policy == Policy(4096, 0.25)
    off = LMS(0, device=half_full())
    assert same_bits(train_plainly("mlp"), train("mlp", off))
    assert off.stats().saved == 0


def test_a_module_is_watched_until_disable() -> None:
    net, x = deep(3), torch.randn(32, 32)
    large = enable(net, 0.01, 0, device=half_full())
    net(x).sum().backward()
    saved = large.stats().saved
    assert saved
    outside = x.clone().requires_grad_().clone().exp()
    outside.sum().backward()
    assert large.stats().saved == saved
    large.disable()
    net(x).sum().backward()
    assert large.stats().saved == saved


def test_a_watched_module_can_be_copied_and_saved() -> None:
    net, x = deep(3), torch.randn(32, 32)
    large = enable(net, 0.01, 0.5, device=half_full())
    twin = copy.deepcopy(net)
    before = large.stats().saved
    twin(x).sum().backward()
    assert large.stats().saved > before
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), net(x))
    assert loaded.state_dict().keys() == net.state_dict().keys()


def test_a_pre_hook_that_fails_does_not_remove_outer_hooks() -> None:
    net = deep(1)

    def fails(_module: nn.Module, _args: Any) -> None:
        raise ValueError("on purpose")

    net.register_forward_pre_hook(fails)
    enable(net, 0.01, 0, device=half_full())
    outer = swap_all()
    with outer:
        with pytest.raises(ValueError, match="on purpose"):
            net(torch.randn(32, 32))
        torch.randn(64, requires_grad=True).clone().exp()
    assert outer.stats().saved == 1


def test_the_how_to_runs_without_a_gpu() -> None:
    page = ROOT / "docs" / "how-to" / "large-models.md"
    script = "".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert " saved, " in done.stdout


SCRIPT = """
import torch
from ddlrun.ddl import lms
from tests.ddl.simulated_device import SimulatedDevice
large = lms.LMS(0.01, 0, device=SimulatedDevice(1 << 30, lambda: 1 << 29, polls=0))
with large:
    loss = torch.randn(64, 64, requires_grad=True).clone().exp().exp().exp().exp().sum()
loss.backward()
"""


def run_script(options: str) -> str:
    """Run SCRIPT with a DDL string and return its stderr."""
    environ = {**os.environ, "DDL_OPTIONS": options}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stderr


def test_dbg_level_adds_a_line_at_the_end() -> None:
    (line,) = run_script("-dbg_level 1").splitlines()
    assert line.startswith("ddlrun.ddl.lms: 4 saved, 2 out (32 KiB), ")


@pytest.mark.parametrize("options", ["", "-mode r"])
def test_without_dbg_level_nothing_is_printed(options: str) -> None:
    assert run_script(options) == ""
