"""Timers without waiting: for the tests of programs that use them.

A whole timer service in memory, with a clock that moves when you say so. What runs inside is the worker's own machine,
so a timer fires here as it would on Kafka: at its second, once, with its key, value and headers::

    from timers.testing import SimTimers

    def test_an_order_expires_unless_paid():
        timers = SimTimers()
        timers.schedule("order-timeouts", "order-17", b"unpaid", delay=900)

        timers.advance(899)
        assert timers.fired == []

        timers.advance(1)
        [callback] = timers.fired
        assert (callback.topic, callback.key, callback.value) == ("order-timeouts", b"order-17", b"unpaid")

:meth:`SimTimers.schedule` takes what :meth:`timers.client.TimersClient.schedule` takes, but for ``id``, and refuses
what that refuses: give it to your code in the client's place. :meth:`SimTimers.restart` kills the worker, with its disk
if you like, to show that your program does not mind.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from timers.client.request import Encoder, HeadersLike, TimerRequest, due_second
from timers.core.machine import Limits
from timers.settings import Settings
from timers.testing.clock import EPOCH_S, SimClock
from timers.testing.log import SimLog, SimRecord
from timers.testing.worker import SimWorker
from timers.wire import headers as h
from timers.wire.headers import Header


class Fired(NamedTuple):
    """One callback, as a receiver reads it."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[Header]
    """All of them, in order: the request's, then ``timer-id``, ``timer-due`` and ``timer-fired``."""
    timer_id: str
    """What :meth:`SimTimers.schedule` returned."""
    due_s: int
    """Epoch second it was asked for."""
    at_ms: int
    """Epoch milliseconds at which the broker appended it."""


class DeadLetter(NamedTuple):
    """A request that could not be read or sent."""

    code: str
    message: str
    source: str
    """``<topic>/<partition>/<offset>`` of the request."""
    key: bytes | None
    value: bytes | None


class SimTimers:
    """A timer service in memory.

    Args:
        now_s: epoch second at which its clock stands first.
        missing_topics: callback topics that do not exist; all others do.

    Attributes:
        fired: every callback so far, in order. Clear it as you like.
        dead_letters: every request given up so far.
        clock: the time; :meth:`advance` moves it.
    """

    def __init__(self, now_s: float = EPOCH_S, missing_topics: Iterable[str] = ()) -> None:
        self.clock = SimClock(now_s)
        self.fired: list[Fired] = []
        self.dead_letters: list[DeadLetter] = []
        self._settings = Settings()
        settings = self._settings
        self._log = SimLog(self.clock, partitions=1)
        self._log.missing.update(missing_topics)
        self._seen = 0
        self._machine = (settings.request_topic, 0)
        self._retries = (settings.retry_topic, 0)
        limits = Limits(settings.chunk_timers, settings.chunk_bytes, settings.max_request_bytes)
        self._worker = SimWorker("worker", self._log, settings, limits)
        self._encode = Encoder(settings.max_request_bytes)
        self.restart()

    def schedule(
        self,
        topic: str,
        key: str | bytes | None,
        value: str | bytes,
        *,
        at: datetime | float | None = None,
        delay: timedelta | float | None = None,
        headers: HeadersLike = (),
        token: str | None = None,
    ) -> str:
        """Ask for a timer; ``delay`` counts from the simulated now. One that is due already fires before this returns.

        Returns:
            The timer id.

        Raises:
            InvalidTimerError: an argument is wrong, as with the real client.
        """
        due_s = due_second(at, delay, now_ns=self.clock.now_ms * 1_000_000)
        record_key, payload, encoded = self._encode(TimerRequest(topic, key, value, due_s, None, headers, token))
        travelling = [(name, data.encode() if isinstance(data, str) else data) for name, data in encoded or ()]
        return self.produce(record_key, payload, travelling)

    def produce(self, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()) -> str:
        """Put a record of your own on the request topic, good or bad, as a foreign producer would.

        Returns:
            Its ``<topic>/<partition>/<offset>``: the timer id if it is a good one, the source of a dead letter if not.
        """
        record = self._log.append(self._settings.request_topic, key, value, tuple(headers), partition=0)
        self._run()
        return record.source

    def advance(self, seconds: float | timedelta) -> list[Fired]:
        """Let time pass, firing what comes due at its second, however far that is.

        Returns:
            What has fired meanwhile.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        before = len(self.fired)
        end_ms = self.clock.now_ms + round(seconds * 1000)
        if end_ms < self.clock.now_ms:
            raise ValueError(f"time passes forward, not by {seconds} s")
        while (due_s := self._worker.runners[self._machine].machine.oldest_due_s) is not None:
            if due_s * 1000 > end_ms:
                break
            self.clock.now_ms = max(self.clock.now_ms, due_s * 1000)
            self._tick()
        self.clock.now_ms = end_ms
        self._tick()
        return self.fired[before:]

    @property
    def pending(self) -> int:
        """How many timers wait."""
        return self._worker.runners[self._machine].machine.pending

    def restart(self, *, lose_disk: bool = False) -> None:
        """Kill the worker and start it again, on an empty disk if you say so. It must make no difference."""
        self._worker.crash()
        if lose_disk:
            self._worker.disk.wipe()
        self._worker.start()
        self._worker.assign([self._machine, self._retries])
        self._tick()

    def _tick(self) -> None:
        self._log.append(self._settings.oscillator_topic, b"%d" % self.clock.now_s, b"1", partition=0)
        self._run()

    def _run(self) -> None:
        """Let the worker do all that it can do now."""
        self._worker.poll_ticks()
        # A timer that cannot be sent becomes a dead letter by way of the retry topic: so that one comes second.
        self._worker.settle(self._machine)
        self._worker.settle(self._retries)
        for record in self._log.committed[self._seen :]:
            self._tell(record)
        self._seen = len(self._log.committed)

    def _tell(self, record: SimRecord) -> None:
        settings = self._settings
        internal = (settings.request_topic, settings.oscillator_topic, settings.progress_topic, settings.retry_topic)
        if record.topic in internal:
            return
        ours = {name: (value or b"").decode() for name, value in record.headers if name.startswith(h.PREFIX)}
        if record.topic == settings.dead_letter_topic:
            code, message, source = ours[h.TIMER_ERROR], ours[h.TIMER_ERROR_MESSAGE], ours[h.TIMER_SOURCE]
            self.dead_letters.append(DeadLetter(code, message, source, record.key, record.value))
            return
        self.fired.append(
            Fired(
                record.topic,
                record.key or b"",
                record.value or b"",
                list(record.headers),
                ours[h.TIMER_ID],
                int(ours[h.TIMER_DUE]),
                record.timestamp_ms,
            )
        )
