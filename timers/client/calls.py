"""The calls about one timer that all clients have, also the simulated one of :mod:`timers.testing`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, Self, TypeAlias, TypeVar

from timers.client.request import BytesLike, HeadersLike, TimerRequest
from timers.client.retry import DEFAULT_BACKOFF, Backoff, DeadLetterRecord, plan
from timers.client.times import At
from timers.core.operation import REFUSED, VerdictName
from timers.wire.repeat import Repeat
from timers.wire.verdict import VerdictMessage

_IdResult = TypeVar("_IdResult")
"""What ``schedule`` returns: a :class:`TimerId`, or from an asynchronous client a coroutine that returns one."""
_VerdictResult = TypeVar("_VerdictResult")
_RetryResult = TypeVar("_RetryResult")

MakeRetry: TypeAlias = Callable[[str], TimerRequest | DeadLetterRecord]
"""Returns the next try of a message, or its dead letter; the argument is the dead letter topic of the settings."""


class TimerId(str):
    """The id of a timer that was requested: a str, with what is known about the timer.

    Attributes:
        verdict: with ``if_absent``: ``set`` or ``exists``. None otherwise, because nothing waited for the worker.
        due_s: with the verdict ``exists``: when the other timer is or was due; None if it is not known.
        version: with ``if_absent``: the source of the version that counts, for ``if_source`` of the next change.
    """

    verdict: VerdictName | None = None
    due_s: int | None = None
    version: str | None = None

    @classmethod
    def told(cls, message: VerdictMessage) -> Self:
        """The id of a timer whose verdict has come."""
        id = cls(message.id)
        id.verdict, id.due_s, id.version = message.verdict, message.due_s, message.version
        return id

    @property
    def is_set(self) -> bool:
        """Whether the timer was requested, and no other was there before."""
        return self.verdict not in REFUSED


class TimerCalls(ABC, Generic[_IdResult, _VerdictResult, _RetryResult]):
    """Makes requests of arguments. A client sends them; its calls return ids and verdicts, or coroutines of them."""

    @abstractmethod
    def schedule_request(
        self, request: TimerRequest, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> _IdResult:
        """Schedule the timer of a request, whose id may be None; the other arguments are those of :meth:`schedule`."""

    @abstractmethod
    def update_if(
        self, request: TimerRequest, condition: str | None, *, timeout_s: float | None = None
    ) -> _VerdictResult:
        """Publish a request with an id, and wait for the verdict.

        Args:
            condition: ``absent``, or the source of the version that the request was made for; None: none.
        """

    @abstractmethod
    def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> _VerdictResult:
        """Cancel a timer with an id, and wait for the verdict.

        Args:
            if_source: as in :meth:`update`.
            timeout_s: as in :meth:`update`.

        Returns:
            ``cancelled``, ``already-fired`` or ``unknown``. With ``if_source``: ``cancelled``, ``changed`` or
            ``too-late``.

        Raises:
            NoVerdictError: no verdict came within ``timeout_s``; the cancel counts as soon as a worker reads it.
            UnacknowledgedError: the brokers have not acknowledged the cancel, so it may count or not.
            SettingsError: ``TIMERS_ID_TOPIC`` is empty.
        """

    @abstractmethod
    def _send_again(self, retry: MakeRetry) -> _RetryResult:
        """Send what ``retry`` returns. Returns what :meth:`retry_later` does."""

    def schedule(
        self,
        topic: str,
        key: str | BytesLike | None,
        value: str | BytesLike,
        *,
        at: At | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str | None = None,
        repeat: Repeat | None = None,
        if_absent: bool = False,
        timeout_s: float | None = None,
    ) -> _IdResult:
        """Schedule a timer: ``value`` is sent to ``topic`` at the due second. Returns when the broker has the request.

        Args:
            topic: where the callback goes.
            key: record key of the callback; None for none, so that callbacks are spread over its topic's partitions.
            value: record value of the callback; a str is sent as UTF-8.
            at: due time, rounded up to a whole second: an aware datetime, epoch seconds, or a text such as
                ``2030-01-31T12:00:00Z`` or ``2030-01-31T12:00:00 Europe/Berlin``. A past time fires at once.
            delay: time from now: a timedelta or seconds. Give ``at`` or ``delay``.
            headers: record headers of the callback, in order; values may be None. ``timer-*`` is reserved.
            token: sent in the header ``callback-token``, for a receiver that may cancel (:mod:`timers.client.tokens`).
            id: name of the timer, to replace, find and cancel it (``docs/timers-with-an-id.md``). A timer with the same
                id is replaced; :meth:`update` also waits for the verdict.
            repeat: when the timer repeats, in place of ``at`` and ``delay``; it needs an id. Make one with
                ``Repeat.cron("0 9 * * 1-5", zone="Europe/Paris")`` or ``Repeat.every(900)`` (``docs/repeating.md``).
            if_absent: set the timer only if its id has none, and wait for the verdict. So the same call may be
                repeated, and never makes two timers.
            timeout_s: how long the call may wait for the brokers, not longer than the client's; None takes that. With
                ``if_absent`` it is the time for the verdict, and may be longer.

        Returns:
            The :class:`TimerId`: the id that was given, or ``<topic>/<partition>/<offset>``; the callback carries it in
            its header ``timer-id``. With ``if_absent`` its ``verdict`` is ``set``, or ``exists`` if there is or was
            such a timer.

        Raises:
            InvalidTimerError: an argument is wrong; the sentence says which and what it should be.
            PublishError: the broker did not take it within ``timeout_s``.
            NoVerdictError: with ``if_absent``, as :meth:`update`.
            SettingsError: ``timeout_s`` is longer than that of the client.
        """
        request = TimerRequest(topic, key, value, at, delay, headers, token, id, repeat)
        return self.schedule_request(request, if_absent=if_absent, timeout_s=timeout_s)

    def send_later(
        self,
        key: str | BytesLike | None,
        value: str | BytesLike,
        topic: str,
        when: At | timedelta,
        *,
        headers: HeadersLike = (),
        token: str | None = None,
        id: str | None = None,
    ) -> _IdResult:
        """Schedule a timer, with the arguments of kafka-scheduler's ``sendLater``; otherwise as :meth:`schedule`.

        Args:
            when: as ``at`` of :meth:`schedule`, or a timedelta from now; rounded up to a whole second.
        """
        at, delay = (None, when) if isinstance(when, timedelta) else (when, None)
        return self.schedule(topic, key, value, at=at, delay=delay, headers=headers, token=token, id=id)

    def update(
        self,
        id: str,
        topic: str,
        key: str | BytesLike | None,
        value: str | BytesLike,
        *,
        at: At | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
        repeat: Repeat | None = None,
        if_source: str | None = None,
        timeout_s: float | None = None,
    ) -> _VerdictResult:
        """Replace a timer, and wait for the verdict on the version before. Arguments as :meth:`schedule`.

        Args:
            if_source: replace only the version with this source, ``<topic>/<partition>/<offset>``: ``version`` of the
                verdict on the change before, or ``source`` as ``timers get`` shows it.
            timeout_s: how long the call may wait for the verdict; None takes that of the client. The brokers are waited
                for as long as the client's at most.

        Returns:
            ``replaced``, ``already-fired``, or ``unknown`` if there was no timer. In each case the new version is set,
            and ``version`` is its source.
            With ``if_source``: ``replaced``, or ``changed`` or ``too-late``, and then the timer is as it was.
            With ``repeat``: ``set`` if there was no timer, ``replaced``, or ``unchanged`` if it already repeats in this
            way; then ``version`` is the source of the request that has set it.

        Raises:
            NoVerdictError: no verdict came within ``timeout_s``; the update counts as soon as a worker reads it.
            UnacknowledgedError: the brokers have not acknowledged the update, so it may count or not.
            SettingsError: ``TIMERS_ID_TOPIC`` is empty.
        """
        request = TimerRequest(topic, key, value, at, delay, headers, token, id, repeat)
        return self.update_if(request, if_source, timeout_s=timeout_s)

    def retry_later(
        self,
        message: Any,
        attempt: int | None = None,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> _RetryResult:
        """Send a message that could not be handled to its topic again, after a delay that grows with each attempt.

        Its key, value and headers are unchanged, with ``retry-attempt`` added to the headers. Commit the message's
        offset after this method has returned. If its token was accepted, call ``Timeouts.restore`` before.

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
        return self._send_again(lambda own: plan(message, attempt, backoff, topic, dead_letter_topic or own))
