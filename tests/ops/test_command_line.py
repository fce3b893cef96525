"""The `eagleray` command as a script sees it: words on stderr, exit codes."""

import os
import signal
import time

import pytest

from ops.errors import StoppedError
from ops.interrupts import interrupts


def test_nothing_synthesized(eagleray, tmp_path, capsys):
    assert eagleray("rehearse", "--cdk-out", tmp_path / "cdk.out", "--out", tmp_path / "out") == 2
    assert "make synth" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_run_to_report(eagleray, tmp_path, capsys):
    assert eagleray("report", tmp_path / "nowhere") == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_wrong_option_is_a_usage_error(eagleray, capsys):
    assert eagleray("rehearse", "--steps", "0") == 2
    assert "--steps" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["rehearse", "report", "bench", "preflight", "up", "status", "logs", "run",
                                     "down"])
def test_help_has_an_example_and_the_exit_codes(eagleray, capsys, command):
    assert eagleray(command, "--help") == 0
    shown = capsys.readouterr().out
    assert f"Example: eagleray {command}" in shown
    assert "Exit codes" in shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_a_command_through_its_clean_up(number, code):
    cleaned = []
    before = signal.signal(number, signal.SIG_DFL)  # as in a terminal, also where the tests run under nohup or &
    try:
        with pytest.raises(StoppedError) as stop:
            _wait_for_a_signal(number, cleaned)
    finally:
        signal.signal(number, before)
    assert stop.value.exit_code == code
    assert cleaned == [True]


def _wait_for_a_signal(number, cleaned):
    with interrupts() as signals:
        try:
            os.kill(os.getpid(), number)
            time.sleep(20)  # ended by the signal
            pytest.fail("the signal was not heard")
        finally:
            signals.clean_up_undisturbed()
            os.kill(os.getpid(), number)  # an impatient second one
            cleaned.append(True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with interrupts():
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)
