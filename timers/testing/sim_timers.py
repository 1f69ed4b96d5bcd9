"""Timers with a simulated clock, for the tests of programs that use timers.

A timer service in memory; your test moves its clock. It runs the worker's own machine, so a timer fires as on Kafka:
once, at its due second, with its key, value and headers::

    from timers.testing import SimTimers

    def test_an_order_expires_unless_paid():
        timers = SimTimers()
        timers.schedule("order-timeouts", "order-17", b"unpaid", delay=900)

        timers.advance(899)
        assert timers.fired == []

        timers.advance(1)
        [callback] = timers.fired
        assert (callback.topic, callback.key, callback.value) == ("order-timeouts", b"order-17", b"unpaid")

It has the calls of :class:`timers.client.TimersClient`, with their arguments and errors: your code can use a
``SimTimers`` instead of a client, also from several threads. Code with an event loop uses :class:`AsyncSimTimers`
instead of an :class:`~timers.client.AsyncTimersClient`::

    timers = AsyncSimTimers()
    asyncio.run(place_order(timers, "order-17"))
    timers.sim.advance(900)

:meth:`SimTimers.restart` kills and restarts the worker, if you want on an empty disk. :meth:`SimTimers.pause` and
:meth:`SimTimers.resume` are the commands ``timers targets pause`` and ``resume``.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple, Self

from timers.client import tracing
from timers.client.calls import MakeRetry, TimerCalls, TimerId
from timers.client.config import DEFAULT_TIMEOUT_S, LONGEST_WAIT_S, seconds
from timers.client.outbox import DEFAULT_TABLE, checked_table
from timers.client.publish import CLOSED
from timers.client.request import Encoder, TimerRequest, answered_headers, condition_headers, id_key, wrong_request
from timers.client.times import due_second, is_number
from timers.core import levels
from timers.core.counters import Counters
from timers.core.fired import Command
from timers.core.keys import NOTHING_FIRED
from timers.core.limits import ChunkSize, Limits
from timers.core.loop import Loop
from timers.core.machine import Machine
from timers.core.operation import ABSENT, UNCHANGED, UNKNOWN
from timers.core.ports import Deleted
from timers.core.printable import quoted
from timers.core.progress import Progress
from timers.core.timer import Fetched, Origin, Row, Tick, TopicPartition, key_bytes
from timers.errors import InvalidTimerError, PublishError
from timers.kafka.request_formats import enabled_formats
from timers.machines.firing.breaker import DeliveryProblem
from timers.machines.firing.policy import policy_of
from timers.machines.firing.ports import FirstRecord
from timers.machines.firing.transaction import Transaction
from timers.machines.partition import PartitionSpec
from timers.machines.store.memory import MemoryStore
from timers.outbox import rows as outbox_rows
from timers.process.config.settings import Settings
from timers.wire import dead_letter, topics, verdict
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire.checks import MAX_DUE_S
from timers.wire.formats import RequestFormat, RequestRecord, future_by_id
from timers.wire.headers import Header
from timers.wire.targets import DEFAULT_RELEASE_S
from timers.wire.verdict import VerdictMessage

EPOCH_S = 1_700_000_000
"""Default start of simulated time: 14 November 2023, 22:13:20 UTC."""


class SimClock:
    """The brokers' clock.

    Attributes:
        now_ms: epoch milliseconds.
    """

    def __init__(self, now_s: float = EPOCH_S) -> None:
        self.now_ms = round(now_s * 1000)

    @property
    def now_s(self) -> int:
        """The epoch second that has begun."""
        return self.now_ms // 1000


class SimRecord(NamedTuple):
    """One record of partition 0 of a topic."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    """Epoch milliseconds at which it was appended."""
    timestamp_type: int = 1
    """Kafka's: the broker set the timestamp."""


class SimBatch:
    """Implements :class:`timers.machines.firing.ports.Batch`; it is never full.

    Attributes:
        records: (timestamp ms, key, value, headers) of each record.
    """

    def __init__(self, first: FirstRecord) -> None:
        self.records: list[tuple[int, bytes | None, bytes | None, Sequence[Header]]] = [first]
        self.offsets: list[int | None] = []

    def add(
        self, place: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
    ) -> bool:
        assert place == len(self.records)
        self.records.append((timestamp_ms, key, value, headers))
        return True


class SimKafka:
    """Topics with one partition each. Each record is visible at once, since only one thread of one worker reads them.

    Implements ``Producer``, ``Topics`` and ``Requests`` of :mod:`timers.machines.firing.ports` for all machines.

    Args:
        formats: request topic -> request format.
        missing: topics that do not exist; all others do.

    Attributes:
        records: all records, in the order in which they were appended.
    """

    throttled_s = 0.0
    write_callbacks = None
    size_alone = staticmethod(dead_letter.size)
    usable: ClassVar[Mapping[str, int]] = {}
    max_message_bytes: ClassVar[Mapping[str, int]] = {}
    own: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, clock: SimClock, formats: Mapping[str, RequestFormat], missing: Collection[str]) -> None:
        self.records: list[SimRecord] = []
        self._clock = clock
        self._formats = formats
        self.missing = missing
        self._logs: defaultdict[str, list[SimRecord]] = defaultdict(list)

    def append(self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()) -> str:
        """Append a record, and return its ``<topic>/<partition>/<offset>``."""
        log = self._logs[topic]
        record = SimRecord(topic, len(log), key, value, tuple(headers), self._clock.now_ms)
        log.append(record)
        self.records.append(record)
        return topics.source(topic, 0, record.offset)

    def fetch(self, topic: str, from_offset: int) -> Fetched:
        """Return the records from an offset on."""
        records = self._logs[topic][from_offset:]
        return Fetched(from_offset, from_offset + len(records), records)

    def end(self, topic: str) -> int:
        return len(self._logs[topic])

    def progress(self, topic: str, machine: TopicPartition) -> Progress:
        key = progress_record.encode_key(*machine)
        value = next((each.value for each in reversed(self._logs[topic]) if each.key == key), None)
        return progress_record.decode(value)[0] if value else Progress()

    # ---- sends ----------------------------------------------------------------------------------------------------

    @property
    def held_from(self) -> set[int]:
        """A transaction ends before another record or tick is appended."""
        return set()

    def _do_nothing(self, *_: object, **__: object) -> None:
        """There is no former owner and no throttling broker, a topic exists or does not, and none fails."""

    open = close = await_quota = wait = refresh = open_circuit = _do_nothing
    note_worked = note_failed = note_silent = note_timestamps_refused = _do_nothing

    def beat_and_may_wait(self) -> bool:
        return True

    def batch(self, max_bytes: int, first: FirstRecord) -> SimBatch:
        return SimBatch(first)

    def transact(
        self, batches: Sequence[tuple[str, int, SimBatch]], offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> bool:
        for topic, _, batch in batches:
            for _, key, value, headers in batch.records:
                self.append(topic, key, value, headers)
        return bool(offsets)

    # ---- answers about topics ---------------------------------------------------------------------------------------

    def route(self, topic: str, *, retried: bool) -> int | DeliveryProblem:
        return DeliveryProblem.unknown(topic) if topic in self.missing else 1

    def limit_now(self, topic: str) -> int | None:
        return self.max_message_bytes.get(topic)

    def partitions(self, topic: str) -> int:
        return 1

    def available(self, topic: str, partition: int) -> int:
        return partition

    def was_moved(self, topic: str, partition: int) -> bool:
        return False

    # ---- requests, read again -----------------------------------------------------------------------------------

    def find(
        self, timers: Iterable[tuple[Row, Origin]], may_wait: Callable[[], bool]
    ) -> dict[str, RequestRecord | None]:
        found: dict[str, RequestRecord | None] = {}
        for _, origin in timers:
            place = topics.parse_source(origin.request)
            assert place is not None
            record = self._logs[place[0]][place[2]]
            sent = RequestRecord(record.offset, record.key, record.value, record.headers, record.timestamp)
            found[origin.request] = sent
        return found

    def read_again(self, sources: Iterable[str], may_wait: Callable[[], bool]) -> dict[str, RequestRecord | Deleted]:
        places = {source: topics.parse_source(source) for source in sources}
        found = {source: self._logs[place[0]][place[2]] for source, place in places.items() if place is not None}
        return {
            source: RequestRecord(each.offset, each.key, each.value, each.headers, each.timestamp)
            for source, each in found.items()
        }

    def request_format(self, source: str) -> RequestFormat:
        return self._formats[source.rsplit("/", 2)[0]]


class Fired(NamedTuple):
    """One callback, as a receiver reads it."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[Header]
    """All headers: those of the request, then ``timer-id``, ``timer-due`` and ``timer-fired``."""
    timer_id: str
    """The id that :meth:`SimTimers.schedule` returned."""
    due_s: int
    """Due second of the timer."""
    at_ms: int
    """Epoch milliseconds at which the broker appended it."""

    def partition(self) -> int:
        """For :meth:`SimTimers.retry_later`, which takes the message of any consumer."""
        return 0

    def offset(self) -> int:
        """As :meth:`partition`."""
        return 0


class Held(NamedTuple):
    """A timer whose due second is over, and whose callback topic is paused."""

    topic: str
    key: bytes | None
    value: bytes
    timer_id: str
    """The id that :meth:`SimTimers.schedule` returned."""
    due_s: int
    """Its due second."""


class DeadLetter(NamedTuple):
    """A request that could not be read or sent, or a message of a :class:`SimQueue` that was given up."""

    code: str
    message: str
    source: str
    """``<topic>/<partition>/<offset>`` of the request or message."""
    key: bytes | None
    value: bytes | None
    """Both as on the topic of dead letters, where the key of a timer without an id is its due second; of a queue's
    message, its own."""
    topic: str = topics.DEAD_LETTER
    """Where it is: ``retry_later`` may name another topic."""


def _check_wait(timeout_s: float | None) -> None:
    """Refuse the times to wait that clients refuse."""
    if timeout_s is not None:
        seconds("timeout_s", timeout_s, 0, LONGEST_WAIT_S, DEFAULT_TIMEOUT_S)


class SimTimers(TimerCalls[TimerId, VerdictMessage, str | None]):
    """A timer service in memory.

    Args:
        now_s: epoch second at which its clock starts.
        missing_topics: topics of callbacks and of ``retry_later`` that do not exist; all others do.

    Attributes:
        fired: all callbacks so far, in order. A test may clear it.
        dead_letters: all dead letters so far.
        clock: its clock; :meth:`advance` moves it.
    """

    def __init__(self, now_s: float = EPOCH_S, missing_topics: Iterable[str] = ()) -> None:
        self.clock = SimClock(now_s)
        self._lock = threading.RLock()
        self._is_closed = False
        self.fired: list[Fired] = []
        self.dead_letters: list[DeadLetter] = []
        self._settings = settings = Settings(id_topic=topics.ID_REQUEST)
        self._own_topics = settings.own_topics  # a new dict each time
        self._formats = enabled_formats(settings)
        self._kafka = SimKafka(self.clock, self._formats, frozenset(missing_topics))
        self._stores: dict[TopicPartition, MemoryStore] = {}
        self._loops: dict[TopicPartition, Loop] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._read_count = 0
        self._verdicts: dict[str, VerdictMessage] = {}
        self._commands: dict[str, Command] = {}
        self._encode = Encoder(settings.max_request_bytes, settings.own_topics, tracing.Current())
        self.restart()

    def schedule_request(
        self, request: TimerRequest, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> TimerId:
        """Request a timer; ``delay`` counts from the simulated time. An overdue timer fires before this returns."""
        if if_absent:
            return TimerId.told(self.update_if(request, ABSENT, timeout_s=timeout_s))
        _check_wait(timeout_s)
        with self._call():
            if request.id is not None or request.repeat is not None:
                self._set(request)
                return TimerId(request.id or "")
            due_s, payload, headers = self._encoded(request)
            return TimerId(self.produce(b"%d" % due_s, payload, headers))

    @contextmanager
    def _call(self) -> Iterator[None]:
        """A call of the client: one at a time, and none after its end."""
        with self._lock:
            if self._is_closed:
                raise PublishError(CLOSED)
            yield

    def update_if(
        self, request: TimerRequest, condition: str | None, *, timeout_s: float | None = None
    ) -> VerdictMessage:
        """Request a timer with an id, and return the verdict. ``timeout_s`` has no effect here, but is checked."""
        _check_wait(timeout_s)
        with self._call():
            source = self._set(request, answered_headers(request, condition))
            verdict = self._verdict(request.id or "", source)
        is_told = condition is not None or verdict.verdict == UNCHANGED
        return verdict if is_told else verdict._replace(version=source)

    def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> VerdictMessage:
        """Cancel a timer with an id, and return the verdict. ``timeout_s`` has no effect here, but is checked."""
        _check_wait(timeout_s)
        with self._call():
            condition = condition_headers(if_source)
            return self._verdict(id, self._append(self._settings.id_topic, id_key(id), None, condition))

    def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> Any:
        """Request many timers; see :meth:`timers.client.TimersClient.schedule_many`."""
        with self._call():
            scheduled: list[str] = []
        for index, request in enumerate(requests):
            try:
                if not isinstance(request, TimerRequest):
                    with self._call():
                        self._encode(request)  # a plain tuple serves, too, and all else is refused
                    request = TimerRequest(*request)
                scheduled.append(str(self.schedule_request(request)))
            except InvalidTimerError as error:
                wrong = type(error)(wrong_request(index, error))
                wrong.ids = scheduled
                raise wrong from error
        return scheduled if ids else len(scheduled)

    def _send_again(self, retry: MakeRetry) -> str | None:
        record = retry(self._settings.dead_letter_topic)
        if isinstance(record, TimerRequest):
            return self.schedule_request(record)
        with self._call():
            if record[0] in self._kafka.missing:
                raise PublishError(f"topic {record[0]!r} does not exist")
            self._kafka.append(*record)
            self._note_dead_letter(self._kafka.records[-1])
            self._read_count += 1
        return None

    def close(self, timeout_s: float | None = None) -> None:
        """End the client: its calls then raise :class:`~timers.errors.PublishError`. The timers go on. A ``with`` block
        begins the next client: a program that opens one each time may get this object each time."""
        _check_wait(timeout_s)
        self._is_closed = True

    def __enter__(self) -> Self:
        self._is_closed = False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set(self, request: TimerRequest, more: Sequence[Header] = ()) -> str:
        if request.repeat is not None:
            key, payload, own = self._encode.definition(request, self.clock.now_s)
            return self._append(self._settings.id_topic, key, payload, [*(own or ()), *more])
        key = id_key("" if request.id is None else request.id)
        due_s, payload, headers = self._encoded(request)
        own = [*headers, *future_by_id.encode_headers(due_s), *more]
        return self._append(self._settings.id_topic, key, payload, own)

    def _verdict(self, id: str, source: str) -> VerdictMessage:
        return self._verdicts.pop(source, VerdictMessage(id, UNKNOWN, None))

    def _encoded(self, request: TimerRequest) -> tuple[int, bytes, list[Header]]:
        due_s = due_second(request.at, request.delay, now_ns=self.clock.now_ms * 1_000_000)
        _, payload, headers = self._encode(request._replace(at=datetime.fromtimestamp(due_s, UTC), delay=None, id=None))
        return due_s, payload, headers or []

    def produce(self, key: bytes | None, value: bytes | None, headers: Iterable[Header] = ()) -> str:
        """Write any record to the request topic, as a producer without the client does.

        Returns:
            Its ``<topic>/<partition>/<offset>``: the ``timer-id`` of its callback, or the source of its dead letter.
        """
        return self._append(self._settings.request_topic, key, value, headers)

    def relay(self, connection: Any, table: str = DEFAULT_TABLE) -> list[str]:
        """Send the rows of an outbox, as ``timers outbox run`` does after each commit, and delete them.

        Rows have real times: begin with ``SimTimers(now_s=time.time())``.

        Args:
            connection: of sqlite3 or psycopg, without an open transaction. The deletion is committed.

        Returns:
            The ids of their timers, in the order of their numbers.

        Raises:
            InvalidTimerError: SQL has written a row that is no timer. It stays, as a relay lets it stay with this
                reason, and the others are sent.
        """
        cursor = connection.cursor()
        columns = ", ".join(outbox_rows.READ_COLUMNS)
        cursor.execute(f"SELECT {columns} FROM {checked_table(table)} WHERE reason IS NULL ORDER BY number")
        rows = [outbox_rows.Row(*each) for each in cursor.fetchall()]
        wrong: InvalidTimerError | None = None
        for row in rows:
            try:
                request = outbox_rows.request_of(row, self.clock.now_ms, self._settings.max_request_bytes)
            except InvalidTimerError as error:
                wrong = wrong or error
                continue
            self._append(self._settings.id_topic, request.key, request.value, request.headers)
            cursor.execute(f"DELETE FROM {table} WHERE number = {row.number}")
        connection.commit()
        if wrong is not None:
            raise wrong
        return [row.aggregateid for row in rows]

    def _append(self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> str:
        with self._lock:
            source = self._kafka.append(topic, key, value, headers)
            self._run()
            return source

    def advance(self, seconds: float | timedelta) -> list[Fired]:
        """Move the clock forward, and fire each timer at its due second.

        Returns:
            The callbacks of that time.
        """
        passed_ms = round(_seconds(seconds, "time passes forward, by") * 1000)
        with self._lock:
            before, end_ms = len(self.fired), self.clock.now_ms + passed_ms
            while (due_s := self._next_s()) is not None:
                if due_s * 1000 > end_ms:
                    break
                self.clock.now_ms = max(self.clock.now_ms, due_s * 1000)
                self._tick()
            self.clock.now_ms = end_ms
            self._tick()
            return self.fired[before:]

    def pause(self, topic: str, for_s: float | timedelta | None = None) -> None:
        """Pause a callback topic: what comes due for it is held, as by ``timers targets pause``.

        Args:
            topic: the callback topic.
            for_s: the pause ends by itself after so many seconds, and what is held then is released over ten minutes;
                None: it lasts until :meth:`resume`.
        """
        seconds = None if for_s is None else _seconds(for_s, "a pause lasts for")
        until_s = 0 if seconds is None else math.ceil(self.clock.now_ms / 1000 + seconds)
        self._command(topic, is_paused=True, until_s=until_s, over_s=DEFAULT_RELEASE_S)

    def resume(self, topic: str, over_s: float | timedelta | None = None) -> None:
        """End the pause of a callback topic, as ``timers targets resume`` does.

        Args:
            topic: the callback topic.
            over_s: what is held is released evenly over so many seconds; None: at once, before this returns.
        """
        seconds = 0.0 if over_s is None else _seconds(over_s, "a release takes")
        self._command(topic, is_paused=False, over_s=math.ceil(seconds))

    def _command(self, topic: str, *, is_paused: bool, until_s: int = 0, over_s: int) -> None:
        if not topics.is_legal(topic):
            raise InvalidTimerError(
                f"a callback topic has a legal name, such as 'order-timeouts', not {quoted(topic):.100}"
            )
        with self._lock:
            number = max((each.number for each in self._commands.values()), default=0) + 1
            self._commands[topic] = Command(number, topic, is_paused, until_s, over_s)
            self._tick()

    @property
    def held(self) -> list[Held]:
        """The timers that pauses hold, in the order of their due seconds. They are pending, too."""
        with self._lock:
            return sorted(self._held(), key=lambda each: each.due_s)

    def _held(self) -> Iterator[Held]:
        for (topic, _), loop in self._loops.items():
            for (due_s, _), rows in loop.machine.waiting(NOTHING_FIRED):
                for offset, target, key, value, _, origin in rows:
                    progress, at = loop.machine.progress, (due_s, offset)
                    if progress.is_past(at) and progress.hold_of(at, target) is not None:
                        timer_id = topics.source(topic, 0, offset) if origin is None else origin.timer_id
                        yield Held(target, key_bytes(key), value, timer_id, due_s)

    @property
    def pending(self) -> int:
        """Number of pending timers, with those that are held."""
        with self._lock:
            return sum(len(rows) for machine in self._machines() for _, rows in machine.waiting(NOTHING_FIRED))

    def _machines(self) -> list[Machine]:
        """The machines of requests, without the one of timers that are tried again."""
        return [loop.machine for (topic, _), loop in self._loops.items() if topic != self._settings.retry_topic]

    def _next_s(self) -> int | None:
        """The next second in which a timer may fire."""
        seconds = [each.oldest_due_s for each in self._machines() if each.oldest_due_s is not None]
        for holds in (loop.machine.progress.holds for loop in self._loops.values()):
            seconds += [hold.until_s for hold in holds if hold.is_paused and hold.until_s]
            released = (hold for hold in holds if not holds.pauses(hold.target))
            seconds += [max(hold.next_s, self.clock.now_s + 1) for hold in released]
        return min(seconds, default=None)

    def restart(self, *, lose_disk: bool = False) -> None:
        """Kill the worker and start it again, with ``lose_disk`` on an empty disk. All timers are kept."""
        with self._lock:
            if lose_disk:
                self._stores.clear()
            # A timer that cannot be sent goes to the retry topic before it becomes a dead letter: that one comes last.
            for topic in (self._settings.request_topic, self._settings.id_topic, self._settings.retry_topic):
                self._open((topic, 0))
            self._tick()

    def _open(self, machine: TopicPartition) -> None:
        settings = self._settings
        limits = Limits(settings.chunk_timers, settings.chunk_bytes, settings.max_request_bytes)
        spec = PartitionSpec(machine, self._formats[machine[0]], limits, hot_horizon_s=settings.hot_horizon_s)
        progress = self._kafka.progress(settings.progress_topic, machine)
        if machine not in self._stores or not spec.catch_up(self._stores[machine], progress):
            self._stores[machine] = MemoryStore()
        if progress == Progress():
            progress = Progress.first(levels.RAISED_TO_LEVEL)
        counters = Counters()
        clocks = lambda: (self.clock.now_ms + 0.5) / 1000, lambda: 0.0
        kafka = self._kafka
        rest = counters, ChunkSize(), threading.Lock(), *clocks
        transaction = Transaction(settings, machine, kafka, kafka, kafka, *rest)
        policy = policy_of(settings, kafka, transaction)
        policy.transaction.bind(b"simulated topic.", 0)
        loop = Loop(spec.machine(progress, self._stores[machine], policy, counters))
        self._loops[machine], self._positions[machine] = loop, loop.machine.position

    def _tick(self) -> None:
        for (topic, _), loop in self._loops.items():
            loop.commands = sorted(self._commands.values())
            loop.add_tick(Tick(self.clock.now_ms), self._kafka.end(topic))
        self._run()

    def _run(self) -> None:
        for machine, loop in self._loops.items():
            is_idle = False
            while not is_idle:
                fetched = self._kafka.fetch(machine[0], self._positions[machine])
                if fetched.records:
                    loop.add_fetch(fetched)
                read_again_from = loop.step().read_again_from
                self._positions[machine] = fetched.to_offset if read_again_from is None else read_again_from
                is_idle = loop.idle and self._positions[machine] >= self._kafka.end(machine[0])
        for record in self._kafka.records[self._read_count :]:
            self._read(record)
        self._read_count = len(self._kafka.records)

    def _read(self, record: SimRecord) -> None:
        if record.topic == self._settings.dead_letter_topic:
            self._note_dead_letter(record)
            return
        # Header values of a request may be any bytes; those that the engine adds are text.
        values = {
            name: (value or b"").decode(errors="replace") for name, value in record.headers if name.startswith(h.PREFIX)
        }
        if record.topic == self._settings.verdict_topic:
            if h.TIMER_SOURCE not in values:
                return  # it is about occurrences that were missed
            self._verdicts[values[h.TIMER_SOURCE]] = verdict.decode(record.value or b"")
            return
        if record.topic in self._own_topics:
            return
        sent = record.topic, record.key, record.value or b"", list(record.headers)
        self.fired.append(Fired(*sent, values[h.TIMER_ID], int(values[h.TIMER_DUE]), record.timestamp))

    def _note_dead_letter(self, record: SimRecord) -> None:
        letter = dead_letter.decode(record.headers)
        assert letter is not None, "the engine or the client has written it"
        self.dead_letters.append(
            DeadLetter(letter.code, letter.message, letter.source, record.key, record.value, record.topic)
        )


def _seconds(value: float | timedelta, what: str) -> float:
    """Returns a duration in seconds; ``what`` it is, for the error."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds) or not 0 <= seconds <= MAX_DUE_S:
        raise InvalidTimerError(f"{what} a timedelta or seconds, not {quoted(value):.100}")
    return float(seconds)


class AsyncSimTimers(
    TimerCalls[Coroutine[Any, Any, TimerId], Coroutine[Any, Any, VerdictMessage], Coroutine[Any, Any, str | None]]
):
    """Simulated timers for code that awaits an :class:`~timers.client.AsyncTimersClient`.

    Attributes:
        sim: the timers, whose clock your test moves.
    """

    def __init__(self, sim: SimTimers | None = None) -> None:
        self.sim = SimTimers() if sim is None else sim

    async def schedule_request(
        self, request: TimerRequest, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> TimerId:
        return self.sim.schedule_request(request, if_absent=if_absent, timeout_s=timeout_s)

    async def update_if(
        self, request: TimerRequest, condition: str | None, *, timeout_s: float | None = None
    ) -> VerdictMessage:
        return self.sim.update_if(request, condition, timeout_s=timeout_s)

    async def cancel(self, id: str, *, if_source: str | None = None, timeout_s: float | None = None) -> VerdictMessage:
        return self.sim.cancel(id, if_source=if_source, timeout_s=timeout_s)

    async def schedule_many(self, requests: Iterable[TimerRequest], *, ids: bool = True) -> Any:
        """As :meth:`SimTimers.schedule_many`."""
        return self.sim.schedule_many(requests, ids=ids)

    async def _send_again(self, retry: MakeRetry) -> str | None:
        return self.sim._send_again(retry)

    async def close(self, timeout_s: float | None = None) -> None:
        """As :meth:`SimTimers.close`."""
        self.sim.close(timeout_s)

    async def __aenter__(self) -> Self:
        self.sim.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
