"""The order in which a machine is opened, and that its store is closed on each way out."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.harness.memory_store import MemoryStore
from timers.core.keys import NOTHING_FIRED
from timers.core.ports import Lost
from timers.core.progress import Progress, Rescue
from timers.errors import DoubtfulLog, LogMismatch
from timers.machines import opener
from timers.machines.opener import LEAST_AHEAD, Known, open_known, open_machine
from timers.machines.store.opening import Opened

TP = "requests", 0


class Store(MemoryStore):
    closed = 0

    def close(self) -> None:
        self.closed += 1


class Port:
    """Notes what is asked. The question ``fails`` raises Lost.

    Attributes:
        said: what was asked, in order.
    """

    def __init__(self, fails: str = "", known: Known | None = None, compacted: str | None = None) -> None:
        self.said: list[str] = []
        self._fails, self._known, self._compacted = fails, known, compacted

    def _say(self, name: str) -> None:
        self.said.append(name)
        if name == self._fails:
            raise Lost(name)

    def check(self) -> None:
        self._say("check")

    def check_leaders(self) -> None:
        self._say("leaders")

    def fence(self) -> Known | None:
        self._say("fence")
        return self._known

    def compacted(self) -> str | None:
        self._say("compacted")
        return self._compacted

    def apps(self) -> list[str]:
        self._say("apps")
        return ["app"]

    def reading(self) -> AbstractContextManager[object]:
        return self._place("reading")

    def restoring(self) -> AbstractContextManager[object]:
        return self._place("restoring")

    @contextmanager
    def _place(self, name: str) -> Iterator[None]:
        self._say(name)
        try:
            yield
        finally:
            self.said.append(f"not {name}")

    def now_s(self) -> float:
        return 7.0

    def refuse(self, progress: Progress) -> None:
        self._say("refuse")

    def machine(self, progress: Progress, store: object, now_s: float | None) -> Any:
        self._say("machine")
        return progress, now_s


class Rig:
    """What an opening finds: a store, the progress, and whether a snapshot is to be restored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.progress, self.is_new, self.restores = Store(), Progress(20_000), False, False
        self.port: Port
        self.restored: Any = None
        """Another store than the present one, if a snapshot is restored."""
        self.mismatch: LogMismatch | None = None
        monkeypatch.setattr(opener, "open_partition", self._open_partition)
        monkeypatch.setattr(opener, "may_restore", lambda opened, apps: self.restores)
        monkeypatch.setattr(opener, "restore", self._restore)

    def _open_partition(
        self, stores: object, tp: object, ask: object, compacted: str | None, *, after_fence: bool
    ) -> Opened:
        self.port.said.append("progress" if after_fence else "progress of the owner")
        if self.mismatch is not None:
            raise self.mismatch
        return Opened(self.progress, self.store, 0, self.is_new)  # type: ignore[arg-type]

    def _restore(self, stores: object, tp: object, opened: Opened, *_: object) -> Opened:
        self.port.said.append("restore")
        return opened._replace(store=self.restored or opened.store)

    def made(self, port: Port, *, fences: bool = True) -> Any:
        self.port = port
        stores: Any = self
        ask: Any = None
        return open_machine(stores, port, TP, ask, fences=fences)

    def open(self, tp: object) -> Store:
        return self.store

    def indexed(self, tp: object) -> bool:
        return False


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


READING = ["reading", "check", "progress", "not reading"]


def test_the_former_owner_is_fenced_before_its_progress_is_read(rig: Rig) -> None:
    port = Port()
    assert rig.made(port).machine == (rig.progress, None)
    assert port.said == ["leaders", "fence", "compacted", *READING, "machine"]
    assert not rig.store.closed


def test_a_new_machine_looks_for_snapshots_of_other_apps_and_restores_outside_of_places_of_readers(rig: Rig) -> None:
    rig.is_new = rig.restores = True
    rig.restored, port = Store(), Port()
    assert rig.made(port).is_restored
    assert port.said[2:] == ["compacted", *READING, "apps", "restoring", "restore", "not restoring", "machine"]


def test_a_machine_that_goes_on_with_its_store_was_not_restored(rig: Rig) -> None:
    """No snapshot can be read, for example, or the disk has no room for a copy."""
    rig.restores = True
    assert not rig.made(Port()).is_restored


@pytest.mark.parametrize(
    "question", ["leaders", "fence", "compacted", "reading", "check", "apps", "restoring", "machine"]
)
def test_whichever_question_fails_the_store_is_closed_once_if_it_was_opened(question: str, rig: Rig) -> None:
    rig.is_new = rig.restores = True
    with pytest.raises(Lost, match=question):
        rig.made(Port(fails=question))
    assert rig.store.closed == (question in ("apps", "restoring", "machine"))


def test_a_log_in_doubt_is_refused_in_a_transaction_of_a_fenced_machine_only(rig: Rig) -> None:
    rig.mismatch = DoubtfulLog("it may lack requests", Progress())
    for fences, compacted, refuses in ((True, "it is", True), (True, None, False), (False, "it is", False)):
        port = Port(compacted=compacted)
        with pytest.raises(DoubtfulLog):
            rig.made(port, fences=fences)
        assert ("refuse" in port.said) is refuses
    rig.mismatch = LogMismatch("it lacks requests")
    with pytest.raises(LogMismatch):
        rig.made(port := Port(compacted="it is"))
    assert "refuse" not in port.said


def test_without_a_fence_a_machine_only_reads_ahead_what_takes_a_while(rig: Rig) -> None:
    port = Port()
    assert rig.made(port, fences=False).machine == (rig.progress, 7.0)
    assert "fence" not in port.said and "progress of the owner" in port.said
    for progress in (Progress(LEAST_AHEAD), replace(rig.progress, rescues=(Rescue(30, 50, NOTHING_FIRED),))):
        rig.progress, rig.store = progress, Store()
        assert rig.made(Port(), fences=False) is None
        assert rig.store.closed == 1
    rig.progress, rig.is_new, rig.restores = Progress(20_000), True, True
    assert not rig.made(Port(), fences=False).is_restored, "the opening after the fence judges it"


def test_what_is_known_after_the_fence_is_not_read_again(rig: Rig) -> None:
    port = Port(known=Known(Progress(7), 0))
    assert rig.made(port).machine == (Progress(7), None)
    assert port.said == ["leaders", "fence", "machine"] and not rig.store.closed


def test_what_is_known_does_not_count_with_another_store_than_then(rig: Rig) -> None:
    stores: Any = rig
    assert open_known(stores, Port(), TP, Known(Progress(7), 5)) is None
    assert rig.store.closed == 1
