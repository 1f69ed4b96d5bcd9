"""Answers queries about timers on the driver, by the code of a worker (:mod:`timers.machines.queries`).

A store is open in a task only. So a question about a machine on an executor goes with the next micro-batch, in a local
property of its job, and the answer comes back in the row of its bucket. A tick is written for it, so that the next
micro-batch begins at once. The machines of the retry topic are in the driver, which asks them between two steps.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aiohttp import ClientSession, web

from timers.core.listing import NoAnswer
from timers.core.machine import Machine
from timers.core.ports import Lost
from timers.core.timer import TopicPartition
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topics import Cluster
from timers.machines.queries.answers import Asked, Pace, Queries
from timers.machines.queries.pages import QueryPages
from timers.machines.queries.reading import Turns
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.http.open_connections import OpenConnections
from timers.process.http.web_site import LimitedSite, limited
from timers.spark.engine.snapshots import Snapshots
from timers.spark.monitoring import Monitor, register

if TYPE_CHECKING:
    from timers.spark.engine.retries import Retries

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

PACE = Pace(answer_s=10.0, look_up_s=2.0, slices=50, at_once=True)
"""The present micro-batch, and the one that answers, may take seconds. The stores are read after what is due has fired,
and each answer costs a micro-batch: so more is read at once than in a worker."""

ANSWERS_S = 0.2
"""After this time the other questions to a bucket go with the next micro-batch, since the next due timers wait for the
answers of all its partitions."""

LISTEN_AGAIN_S = 1.0

STOP_S = 1.0
"""How long an engine that ends waits for its answers: no micro-batch follows that could bring one."""


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


class _OnExecutors(NamedTuple):
    """A machine that is open in tasks only."""

    questions: Questions
    tp: TopicPartition

    def ask(self, question: Callable[[Machine], _T]) -> Future[_T]:
        return self.questions.ask(self.tp, question)


class EngineMachines:
    """All machines of an engine, for which its driver answers: :class:`timers.machines.queries.answers.Machines`."""

    def __init__(self, settings: Settings, cluster: Cluster, retries: Retries) -> None:
        self.formats = enabled_formats(settings)
        self.partitions = {topic: cluster.partitions[topic] for topic in self.formats}
        self.closed: Mapping[TopicPartition, str] = {}
        self.held: Mapping[TopicPartition, str] = {}
        self._in_driver = retries.openings.snapshots
        self._on_executors = {
            (topic, partition): _OnExecutors(retries.questions, (topic, partition))
            for topic, count in self.partitions.items()
            for partition in range(count)
            if topic != settings.retry_topic
        }

    @property
    def runners(self) -> Mapping[TopicPartition, Asked]:
        """Those of the retry topic are there once they have read their log."""
        return {**self._on_executors, **self._in_driver.runners}

    def value_limit(self, partition: TopicPartition) -> int | None:
        return None


async def _no_others() -> Any:
    raise NoAnswer("the engine is opening it")


@contextmanager
def answering(
    settings: Settings, cluster: Cluster, retries: Retries, monitor: Monitor, say: Callable[[str], None]
) -> Iterator[None]:
    """Answer queries as a worker does, on its port, and the console's questions, until the end of the block."""
    machines, submit = EngineMachines(settings, cluster, retries), retries.openings.parts.producers.submit
    pages = QueryPages(lambda: settings, Clock(settings.clock_offset_s).now_s)
    want = Snapshots.want if settings.snapshot_factor else None
    pages.queries = Queries(settings, machines, _no_others, ClientSession, Turns(lambda: None), want, PACE)
    pages.cluster_id = cluster.cluster_id
    connections = OpenConnections("the port of queries")
    application = limited(web.Application(), connections)

    def page(path: str) -> Callable[[Any], Any]:
        return lambda handler: application.router.add_get(path, partial(handler, None))

    pages.register(page)
    origin = {"app": settings.app_id, "cluster": cluster.cluster_id}
    register(page, monitor, origin, machines, lambda: retries.openings.snapshots.runners)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_S)

    async def serve() -> None:
        await runner.setup()
        site, is_first = LimitedSite(runner, settings.web_bind, settings.web_port, connections), True
        while True:
            try:
                return await site.start()
            except OSError as error:
                # A newer engine on the machine of the former one must run, and worker and engine share their defaults.
                if is_first:
                    at = f"TIMERS_WEB_PORT={settings.web_port} at TIMERS_WEB_BIND={settings.web_bind}"
                    say(f"queries are answered when {at} can be listened on ({error.strerror})")
                is_first = False
            await asyncio.sleep(LISTEN_AGAIN_S)

    async def end() -> None:
        await runner.cleanup()
        await pages.close()

    serving = submit(serve())
    try:
        yield
    finally:
        serving.cancel()
        submit(end()).result()
