"""The client for programs without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, Self, TypeVar, overload

from timers.client.by_id import ById
from timers.client.calls import TimerCalls, TimerId
from timers.client.parts import FULL_QUEUE_WAIT_S, ClientParts, Submission
from timers.client.publish import OnResult, left_s, set_result
from timers.client.request import TimerRequest
from timers.client.retry import DEFAULT_BACKOFF, Backoff
from timers.core.operation import ABSENT
from timers.wire.verdict import VerdictMessage

_T = TypeVar("_T")


class TimersClient(ClientParts, TimerCalls[TimerId, VerdictMessage]):
    """Schedules timers: ``with TimersClient() as client: client.schedule("orders", "o-1", b"expired", delay=900)``.

    Thread-safe; keep one for the life of the process. It connects at its first use. After ``os.fork()`` the child needs
    a client of its own: calls of one that was used before raise PublishError.

    Args:
        brokers: bootstrap servers, ``host:port,...`` or a list of them; None takes ``TIMERS_BROKERS``, else this
            project's running broker.
        request_topic: where requests go; None takes ``TIMERS_REQUEST_TOPIC`` (``timer-request``).
        id_topic: where requests with an id go; None takes ``TIMERS_ID_TOPIC``, by default that of
            ``request_topic``.
        producer_config: further librdkafka properties, such as ``compression.type``. With ``security.protocol`` among
            them they must contain the whole login: ``TIMERS_SECURITY_PROTOCOL``, ``_SASL_`` and ``_SSL_`` are ignored.
        timeout_s: how long one call may wait for the broker.
        max_request_bytes: largest request that the workers accept; None takes ``TIMERS_MAX_REQUEST_BYTES``.
        keep_order: send requests of one callback key to one partition, so that its callbacks come in the order of their
            due seconds, and within a second in the order of the requests. ``docs/python-client.md`` says what still
            changes the order.

    Raises:
        SettingsError: an environment variable or a property is wrong.
        AccessError: at the first use, if the brokers refuse the login.
    """

    polling_thread = "timers-client"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def schedule_request(
        self, request: TimerRequest, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> TimerId:
        if if_absent:
            return TimerId.told(self.update_if(request, ABSENT, timeout_s=timeout_s))
        if request.id is None:
            return TimerId(self._publish(partial(self._publisher.submit, request), timeout_s))
        deadline, ids = self._deadline(timeout_s), self._by_id()
        ids.open(deadline)
        return TimerId(
            self._answer(self._retry_while_full(partial(ids.schedule, request), deadline), deadline, timeout_s)
        )

    def retry_later(
        self,
        message: Any,
        attempt: int | None = None,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> str | None:
        """Send a message that could not be handled to its topic again, after a delay that grows with each attempt.

        Its key, value and headers are unchanged, with ``retry-attempt`` added to the headers. Commit the message's
        offset after this method has returned.

        Args:
            message: the message of a consumer: confluent-kafka's ``Message``, aiokafka's ``ConsumerRecord``, Faust's
                event, or anything with ``topic``, ``partition``, ``offset``, ``key``, ``value`` and ``headers``.
            attempt: number of the next try, from 1; None takes it from the message's headers.
            backoff: delays and number of retries.
            topic: topic of the next retry; None for the message's own topic.
            dead_letter_topic: topic for the message after the last retry, with the code ``retries-exhausted``; None
                takes ``TIMERS_DEAD_LETTER_TOPIC``, where ``timers dead-letters`` lists it.

        Returns:
            The timer id; None if there is no further try and the message is a dead letter now.

        Raises:
            InvalidTimerError: the message cannot be sent again, such as one without a value.
            PublishError: the broker did not take it within ``timeout_s``.
        """
        submit, is_dead_letter = self._next_try(message, attempt, backoff, topic, dead_letter_topic)
        timer_id = self._publish(submit)
        return None if is_dead_letter else timer_id

    def update_if(
        self, request: TimerRequest, condition: str | None, *, timeout_s: float | None = None
    ) -> VerdictMessage:
        return self._await_verdict(lambda ids: ids.update(request, condition), timeout_s)

    def _await_verdict(
        self, submit: Callable[[ById], Future[VerdictMessage]], timeout_s: float | None
    ) -> VerdictMessage:
        timeout_s = self._publisher.timeout_s if timeout_s is None else timeout_s
        deadline, ids = self._deadline(timeout_s), self._by_id()
        ids.listen(self._connecting_deadline(timeout_s))
        return ids.wait(self._retry_while_full(partial(submit, ids), deadline), deadline, timeout_s)

    def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> VerdictMessage:
        return self._await_verdict(lambda ids: ids.cancel(id, if_source), timeout_s)

    def _publish(self, submit: Callable[[OnResult], None], timeout_s: float | None = None) -> str:
        deadline = self._deadline(timeout_s)
        self._publisher.open(deadline)
        future: Future[str] = Future()
        self._retry_while_full(partial(submit, partial(set_result, future)), deadline)
        return self._answer(future, deadline, timeout_s)

    def _answer(self, future: Future[str], deadline: float, timeout_s: float | None) -> str:
        try:
            return future.result(left_s(deadline))
        except TimeoutError:
            raise self._kafka.unreachable_error(timeout_s=timeout_s) from None

    def _retry_while_full(self, submit: Callable[[], _T], deadline: float) -> _T:
        submission = Submission(submit, left_s(deadline))
        while not submission.is_done():
            time.sleep(FULL_QUEUE_WAIT_S)
        return submission.result

    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[True] = True) -> list[str]: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: Literal[False]) -> int: ...
    @overload
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool) -> list[str] | int: ...
    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> list[str] | int:
        """Schedule any number of timers, fast. Returns once the broker has them all.

        Args:
            requests: read one by one while the queue has room, so it may be a generator of any length.
            ids: whether to return the ids; ``ids=False`` is faster and holds nothing in memory.

        Returns:
            What :meth:`schedule` returns, in the order of the requests; or with ``ids=False`` their number.

        Raises:
            InvalidTimerError: a request is wrong; it is named by its number, and those before it are scheduled.
            PartlyPublishedError: the broker did not take all of them; its ``ids`` say which.
            PublishError: no broker answers, or the request topic does not exist.
            SettingsError: a request has an id, and ``TIMERS_ID_TOPIC`` is empty.
        """
        return self._publisher.publish_many(requests, ids=ids)

    def close(self, deadline: float | None = None) -> None:
        """Wait for the answers to requests under way, and disconnect. May be called twice.

        Args:
            deadline: how long to wait, by the monotonic clock; None waits for up to ``timeout_s``.
        """
        deadline = self._deadline() if deadline is None else deadline
        self._publisher.close(deadline)
        if self._ids is not None:
            self._ids.close(deadline)
