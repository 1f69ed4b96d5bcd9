"""Signals that end a command."""

import os
import signal

import pytest

from timers.process.signals import END_SIGNALS, on_signals


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_command_under_nohup_goes_on_when_its_terminal_closes(is_ignored: bool) -> None:
    arrived: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        with on_signals(END_SIGNALS, lambda number, _: arrived.append(number)):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is (signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert sorted(arrived) == [*([] if is_ignored else [signal.SIGHUP]), signal.SIGTERM]
