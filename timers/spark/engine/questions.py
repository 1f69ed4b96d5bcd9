"""Questions to machines that are open for moments only: of queries, and of the thread that takes snapshots.

A store is open in a task only, and not in each micro-batch. So a question waits until the machine is open and has
nothing left to do.

That of a query goes from the driver to the executor with the next micro-batch, in a local property of its job, and the
answer comes back in the row of its bucket. A tick is written for it, so that the next micro-batch begins at once. The
machines of the retry topic are in the driver, which asks them between two steps.

Snapshots are taken in each process, by a worker's :mod:`timers.machines.snapshot_taker` in a thread of its own. What a
snapshot holds is a copy of the store, of hard links, because the store is closed while the copy is read. It is named in
a later micro-batch than the one in which it was begun. Its store had stopped at a committed position, as that of a
worker that was killed, so it does not matter who has owned the machine since. It is not named if the progress names
another one since, or if the log has lost its end meanwhile [I30].
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, ClassVar, NamedTuple, TypeVar

from timers.core import levels
from timers.core.listing import NoAnswer
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.progress import SettingChange
from timers.core.snapshots import ASSUMED_REQUEST_BYTES
from timers.core.timer import TopicPartition
from timers.errors import MachineStopped, StoreInUse
from timers.kafka.progress_log import permitted_level
from timers.machines.machine_parts import Parts
from timers.machines.snapshot_taker import SNAPSHOT_FAILURES, SNAPSHOT_LOOK_S, SnapshotTaker
from timers.machines.store.failures import StoreWaits
from timers.machines.store.rocks import RocksStore
from timers.process.partition_metrics import PartitionMetrics
from timers.process.threads import log_failure
from timers.wire.topics import partition_name

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

ANSWERS_S = 0.2
"""After this time the other questions to a bucket go with the next micro-batch, since the next due timers wait for the
answers of all its partitions."""


POLL_S = 0.1

CLOSE_S = 10.0
"""How long an end waits for the thread of snapshots, which does not keep the process alive."""


class Question(NamedTuple):
    """A question to the machine of a partition."""

    number: int
    asks: bytes
    """A pickled function of the machine: of the tasks, only the one that has it reads it."""

    def answered(self, machine: Machine) -> tuple[int, Any, Exception | None]:
        """Returns the number, the answer, and why there is none. Call it where the machine is open.

        Raises:
            Lost: the store is damaged.
        """
        try:
            return self.number, pickle.loads(self.asks)(machine), None
        except NoAnswer as error:
            return self.number, None, error
        except Lost:
            raise
        except Exception:
            logger.exception("a question was not answered")
            return self.number, None, NoAnswer("its executor cannot read it; see that executor's log")


class Answering:
    """Answers the questions to the machines of a bucket in a micro-batch, one at a time, within :data:`ANSWERS_S`."""

    def __init__(self) -> None:
        self._left_s = ANSWERS_S
        self._lock = threading.Lock()

    def answers(self, questions: Sequence[Question], machine: Machine) -> list[tuple[int, Any, Exception | None]]:
        """Answer those to a machine that begin within the time. Any thread.

        Raises:
            Lost: the store is damaged.
        """
        answers = []
        for question in questions:
            with self._lock:
                if self._left_s <= 0:
                    break
                begun_s = monotonic()
                answers.append(question.answered(machine))
                self._left_s -= monotonic() - begun_s
        return answers


class Questions:
    """The questions that wait for a micro-batch. Any thread.

    Args:
        wake: lets a micro-batch begin soon.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[TopicPartition, bytes, Future[Any]]] = {}
        self._has_woken = self._has_begun = False

    def ask(self, tp: TopicPartition, question: Callable[[Machine], _T]) -> Future[_T]:
        """Ask the machine of a partition. The question and the answer must be what can be pickled."""
        number, answer = next(self._numbers), Future[_T]()
        if not self._has_begun:
            answer.set_exception(NoAnswer("the engine is starting"))
            return answer
        self._waiting[number] = tp, pickle.dumps(question), answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        if not self._has_woken:
            self._has_woken = True
            self._wake()
        return answer

    def told(self) -> list[tuple[TopicPartition, Question]]:
        """Those that wait, for the tasks of a micro-batch. A question that gets no answer goes with the next one."""
        self._has_woken, self._has_begun = False, True
        return [(tp, Question(number, asks)) for number, (tp, asks, _) in [*self._waiting.items()]]

    def note(self, answers: Iterable[tuple[int, Any, Exception | None]]) -> None:
        """Note the answers of a bucket: what :meth:`Question.answered` has returned."""
        for number, found, error in answers:
            _, _, answer = self._waiting.get(number, (None, None, None))
            if answer is not None and answer.set_running_or_notify_cancel():  # else it was not answered in time
                if error is None:
                    answer.set_result(found)
                else:
                    answer.set_exception(error)


class CopyView:
    """A view of a copy of a store, which is deleted when it is closed. See :class:`timers.core.ports.View`."""

    def __init__(self, copy: RocksStore) -> None:
        self._copy = copy
        self._view = copy.view()
        self.applied: int = copy.applied
        self.rows: int = copy.pending
        self.history: tuple[SettingChange, ...] = copy.history

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._view)

    def close(self) -> None:
        self._copy.condemn()  # a condemned copy is deleted when it is closed
        self._copy.close()


class MomentaryRunner:
    """A machine that is open for moments. See :class:`timers.machines.log_trimmer.Runner`.

    Args:
        copy: returns a copy of a store.
    """

    def __init__(self, name: str, machine: Machine, copy: Callable[[RocksStore], RocksStore]) -> None:
        self.name, self.machine = name, machine
        self.record_bytes: float = ASSUMED_REQUEST_BYTES
        self._copy = copy
        self.store: RocksStore | None = None
        """While it is open."""
        self._is_ended = False
        self._questions: SimpleQueue[tuple[Callable[[Machine], Any], Future[Any]]] = SimpleQueue()

    @property
    def is_asked(self) -> bool:
        """Whether questions wait."""
        return not self._questions.empty()

    def ask(self, question: Callable[[Machine], _T]) -> Future[_T]:
        answer: Future[_T] = Future()
        self._questions.put((question, answer))
        if self._is_ended:
            self.end()
        return answer

    def view(self) -> CopyView | None:
        if self.store is None or self.machine.committed.next_offset != self.machine.position:
            return None
        try:
            return CopyView(self._copy(self.store))
        except (StoreInUse, StoreWaits):  # another process of this executor writes one, or this one still does
            return None

    def end(self) -> None:
        """Let all questions fail."""
        self._is_ended = True
        with suppress(Empty):
            while True:
                _, answer = self._questions.get_nowait()
                if answer.set_running_or_notify_cancel():  # else it was taken back: it was not answered in time
                    answer.set_exception(Lost("the machine had another owner, or another store"))

    def answer(self, machine: Machine, store: RocksStore) -> None:
        """Answer the questions that wait.

        Raises:
            Lost, MachineStopped: a commit failed.
        """
        self.machine, self.store = machine, store
        try:
            while True:
                question, answer = self._questions.get_nowait()
                if answer.set_running_or_notify_cancel():
                    try:
                        answer.set_result(question(machine))
                    except Exception as error:
                        answer.set_exception(error)
                        if isinstance(error, (Lost, MachineStopped)):
                            raise
        except Empty:
            return
        finally:
            self.store = None


class Snapshots:
    """The machines of this process (:class:`timers.machines.log_trimmer.Machines`), and the thread of their snapshots.

    Attributes:
        now_s: the brokers' time in epoch seconds; None: it is not known.
    """

    _present: ClassVar[Snapshots | None] = None
    """Those of this process."""

    def __init__(self, parts: Parts, partition_metrics: dict[TopicPartition, PartitionMetrics]) -> None:
        self.now_s: float | None = None
        self.parts, self.partition_metrics = parts, partition_metrics
        self._settings = self.parts.settings
        self.runners: dict[TopicPartition, MomentaryRunner] = {}
        self._taker = SnapshotTaker(self._settings, self, lambda: self.now_s, self._fail)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timers-snapshots", daemon=True)
        self._starting = threading.Lock()
        """Held while the thread is started: several machines are answered at a time."""
        Snapshots._present = self

    @classmethod
    def want(cls, tp: TopicPartition) -> None:
        """Let a machine that is open in this process have a snapshot soon. Any thread."""
        if cls._present is not None:
            cls._present._taker.wanted.add(tp)

    def close(self) -> None:
        """End the present snapshot, and the thread."""
        with self._starting:
            self._stop.set()
        self._taker.should_stop = True
        give_up = monotonic() + CLOSE_S
        while self._thread.is_alive() and monotonic() < give_up:
            for runner in [*self.runners.values()]:
                runner.end()
            self._thread.join(POLL_S)

    def asks(self, tp: TopicPartition) -> bool:
        """Whether a machine must be opened, although it has nothing to do, because a question waits for it."""
        return tp in self.runners and self.runners[tp].is_asked

    def forget(self, tp: TopicPartition) -> None:
        """Drop what was begun for a machine: it may have had another owner, or another store."""
        if (gone := self.runners.pop(tp, None)) is not None:
            gone.end()

    def answer(self, tp: TopicPartition, machine: Machine, store: RocksStore, record_bytes: float | None) -> None:
        """Answer the questions about an open machine that has nothing left to do: see :attr:`Opened.answer`."""
        runner = self.runner(tp, machine)
        runner.record_bytes = record_bytes or runner.record_bytes
        runner.answer(machine, store)

    def runner(self, tp: TopicPartition, machine: Machine) -> MomentaryRunner:
        """Returns that of a machine that is open now, which may have a snapshot from then on."""
        with self._starting:
            if self._settings.snapshot_factor and self._thread.ident is None and not self._stop.is_set():
                self._thread.start()
            if tp not in self.runners:
                copy = partial(self.parts.copy, tp)
                self.runners[tp] = MomentaryRunner(partition_name(*tp), machine, copy)
            return self.runners[tp]

    def _run(self) -> None:
        while not self._stop.wait(SNAPSHOT_LOOK_S):
            try:
                self._taker.look()
                self._raise_levels()
            except SNAPSHOT_FAILURES as error:
                logger.warning("snapshots: %s", error)
            except Exception:
                logger.exception("the snapshots of this process failed with an exception that no code expects")

    def _raise_levels(self) -> None:
        """Raise machines to the level that the operator allows."""
        lower = [each for each in self.runners.values() if each.machine.progress.level < levels.RAISED_TO_LEVEL]
        level = permitted_level(self._settings) if lower else 0
        for runner in lower:
            if level > runner.machine.progress.level:
                asked = runner.ask(partial(Machine.raise_level, level=level))
                asked.add_done_callback(
                    log_failure("the feature level of a machine was not raised", *SNAPSHOT_FAILURES)
                )

    def _fail(self, tp: TopicPartition, damage: Exception) -> None:
        """Let the store of a machine be deleted, and restored: its copy was found to be damaged."""
        runner = self.runners.get(tp)

        def condemn(_: Machine) -> None:
            assert runner is not None and runner.store is not None, "questions are answered while the store is open"
            runner.store.condemn()
            raise Lost(str(damage))

        if runner is not None:
            runner.ask(condemn)
