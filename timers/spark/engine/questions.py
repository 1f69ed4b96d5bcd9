"""The questions of queries to machines, and their answers.

A store is open in a task only. So a question about a machine on an executor goes with the next micro-batch, in a local
property of its job, and the answer comes back in the row of its bucket. A tick is written for it, so that the next
micro-batch begins at once. The machines of the retry topic are in the driver, which asks them between two steps.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from timers.core.listing import NoAnswer
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.timer import TopicPartition

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

ANSWERS_S = 0.2
"""After this time the other questions to a bucket go with the next micro-batch, since the next due timers wait for the
answers of all its partitions."""


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
