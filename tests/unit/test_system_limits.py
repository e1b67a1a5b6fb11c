"""Limits of this machine: the message about a program that cannot be started."""

import errno
import sys

import pytest

from ddlrun.remote.processes import start_command
from ddlrun.remote.system_limits import explain_limit


def test_too_many_open_files_are_explained() -> None:
    assert "files may be open (ulimit -n)" in str(explain_limit(OSError(errno.EMFILE, ""), {}))


def test_a_command_line_that_is_too_long_is_explained() -> None:
    with pytest.raises(OSError, match="too long") as raised:
        start_command([sys.executable, "x" * (1 << 24)])
    text = str(explain_limit(raised.value, {"SHORT": "x", "LONG": "x" * 9}))
    assert "the environment has 19 characters, LONG the most of them (13)" in text


def test_other_errors_are_not_explained() -> None:
    assert explain_limit(OSError(errno.ENOENT, ""), {}) is None
