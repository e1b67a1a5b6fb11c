"""Warnings of schedulers that reach a program twice: from the scheduler, and from ddlrun."""

import signal

from ddlrun.keeper.signals import WARNING_SECONDS, ReceivedWarnings


def test_a_warning_that_a_program_has_received_is_not_passed_on_to_it() -> None:
    warnings = ReceivedWarnings()
    assert not warnings.has(signal.SIGUSR1, 100.0)
    warnings.add(signal.SIGUSR1, 100.0)
    assert warnings.has(signal.SIGUSR1, 100.0 + WARNING_SECONDS)
    assert not warnings.has(signal.SIGUSR2, 100.0)


def test_the_same_signal_later_is_another_warning() -> None:
    warnings = ReceivedWarnings()
    warnings.add(signal.SIGUSR1, 100.0)
    assert not warnings.has(signal.SIGUSR1, 100.1 + WARNING_SECONDS)
