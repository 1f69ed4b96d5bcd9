"""What programs of chaos leave on disk, and which exit codes they have. No brokers."""

import os
import signal
from pathlib import Path

import pytest

from tests.chaos import program
from tests.harness.constants import Constants


class SimBrokers:
    """Brokers that are only stopped."""

    def __init__(self, directory: Path) -> None:
        self.is_stopped = False
        self.log = directory / "brokers.log"

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, constants: Constants, tmp_path: Path) -> Path:
    """The checkout. Processes of other tests of this process run on."""
    constants(program, ROOT=tmp_path)
    monkeypatch.setattr(program, "stop_everything", lambda: None)
    return tmp_path


class Rounds:
    """Rounds that write a log and then end in one way."""

    def __init__(self, end: object) -> None:
        self.end = end

    def __call__(self, directory: Path, brokers: SimBrokers) -> bool:
        self.brokers = brokers
        directory.mkdir(parents=True)
        brokers.log.write_text("a log")
        if isinstance(self.end, BaseException):
            raise self.end
        if isinstance(self.end, signal.Signals):
            os.kill(os.getpid(), self.end)
        return bool(self.end)


def logs(root: Path) -> list[Path]:
    return list(root.rglob("brokers.log"))


@pytest.mark.parametrize(
    ("end", "code"),
    [(False, 1), (KeyboardInterrupt(), 130), (signal.SIGTERM, 130), (signal.SIGINT, 130)],
    ids=["broken", "interrupt", "SIGTERM", "SIGINT"],
)
def test_logs_are_kept_and_said_where(root: Path, capsys: pytest.CaptureFixture[str], end: object, code: int) -> None:
    rounds = Rounds(end)
    assert program.run_rounds("some", rounds, SimBrokers, keep=False) == code
    (log,) = logs(root)
    assert capsys.readouterr().out.splitlines()[-1] == f"logs: {log.parent.relative_to(root)}"
    assert log.parent.name.startswith("some-") and rounds.brokers.is_stopped


def test_logs_are_kept_after_an_error_of_the_program(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = Rounds(AssertionError("no worker"))
    with pytest.raises(AssertionError):
        program.run_rounds("some", rounds, SimBrokers, keep=False)
    (log,) = logs(root)
    assert capsys.readouterr().out.splitlines()[-1] == f"logs: {log.parent.relative_to(root)}"
    assert rounds.brokers.is_stopped


@pytest.mark.parametrize("keep", [True, False])
def test_logs_of_good_rounds_are_kept_if_asked(root: Path, capsys: pytest.CaptureFixture[str], keep: bool) -> None:
    rounds = Rounds(True)
    assert program.run_rounds("some", rounds, SimBrokers, keep=keep) == 0
    assert bool(logs(root)) == ("logs: " in capsys.readouterr().out) == keep
    assert rounds.brokers.is_stopped
