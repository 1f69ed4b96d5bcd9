"""The requests of a simulation: valid, late, invalid, many for one second, far ahead."""

from collections.abc import Callable, Sequence
from random import Random

from tests.simulation.kit.log import SimLog, SimTransaction
from tests.simulation.kit.next_level import SHIFT
from timers.core.operation import ABSENT
from timers.wire import future
from timers.wire.formats import future_by_id, schedule
from timers.wire.headers import DEPTH, TIMER_FIRED_OFFSET, TIMER_IF, TIMER_KEY, TIMER_PROMOTED, TIMER_SEAL, Header

FAR_S = 10 * 365 * 86_400
LEAST_FAR_S = 60
"""What is due later than this is not waited for at the end of a run."""

SCHEDULE_IDS = (b"vid1-online", b"vid2-online", b"\xff\xfe", b"s")

TARGETS = ("orders", "mails", "flaky")
"""Callback topics; the last one fails at times."""

UNKNOWN_FIELD = b"\x7a\x01x"
"""Field 15 of a ``Future``; the client does not write it."""


class Workload:
    """Writes random requests.

    Args:
        id_topic: request topic of timers with an id; empty: none.
        schedule_topic: request topic of schedules; empty: none.
        without_key: whether some topics refuse callbacks without a key, and some requests have such callbacks.
        many_late: whether many late requests come together.
        large: whether some topics have limits, so that some requests are too large.
        level_random: random source of headers that only the next feature level reads; None: no request has one.
        condition_random: random source of conditions on timers with an id; None: no request has one.
        late_random: random source of changes that are readable late; None: there are no more than others make.
    """

    def __init__(
        self,
        random: Random,
        log: SimLog,
        topic: str,
        id_topic: str = "",
        schedule_topic: str = "",
        *,
        large: bool = False,
        without_key: bool = False,
        many_late: bool = False,
        level_random: Random | None = None,
        condition_random: Random | None = None,
        late_random: Random | None = None,
    ) -> None:
        self._random = random
        self._level_random, self._condition_random = level_random, condition_random
        self._log = log
        self._topic = topic
        self._id_topic = id_topic
        self._schedule_topic = schedule_topic
        self._ids = [b"id-%d" % number for number in range(random.choice([1, 2, 5]))]
        self._open_transactions: list[SimTransaction] = []
        self.latest_due_s = 0
        self._far: Sequence[int] = (FAR_S,)
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self.near, 12),
            (self.burst, 4),
            (self.late, 5),
            (self.wrong, 4),
            (self.far, 1),
            (self.chain, 2),
            (self.begin_transaction, 2),
            (self.end_transaction, 3),
        ]
        if large:
            self._kinds += [(self.large, 6)]
        if without_key:
            self._kinds += [(self.without_key, 6)]
        if many_late:
            self._kinds += [(self.many_late, 4)]
        if id_topic:
            factor = random.choice([1, 4]) * (1 if condition_random is None else condition_random.choice([1, 5]))
            self._kinds += [(self.set_by_id, 8 * factor), (self.cancel, 3 * factor), (self.wrong_by_id, 1)]
            if condition_random is not None:
                self._kinds += [(self.wrong_condition, 1)]
            self._late_random = Random(0) if late_random is None else late_random
            if late_random is not None:
                self._kinds += [(self.change_late, 6 * late_random.choice([1, 4])), (self.end_transaction, 6)]
        if schedule_topic:
            factor = random.choice([1, 4])
            self._kinds += [
                (self.set_schedule, 10 * factor),
                (self.overtake, 2 * factor),
                (self.delete_schedule, 3 * factor),
                (self.wrong_schedule, 1),
            ]

    def produce(self) -> str:
        """Do one of the actions below, and return its name."""
        kinds, weights = zip(*self._kinds, strict=True)
        kind: Callable[[], None] = self._random.choices(kinds, weights)[0]
        kind()
        return kind.__name__

    def live_long(self, far: Sequence[int]) -> None:
        """Let far timers be due after one of these numbers of seconds, and write more of them."""
        self._far = far
        self._kinds.append((self.far, 5))

    def renew_ids(self, number: int) -> None:
        """Use other ids from now on: so the former ones are over some time."""
        self._ids = [b"id-%d.%d" % (each, number) for each in range(len(self._ids))]

    def _far_s(self) -> int:
        return self._far[0] if len(self._far) == 1 else self._random.choice(self._far)

    def several(self, due_s: int, partition: int) -> None:
        """Write timers of one due second, of which compaction keeps one."""
        for _ in range(3):
            self._send(due_s, partition)

    def near(self) -> None:
        """Write a timer that is due during the simulation."""
        self._send(self._log.clock.now_s + self._random.randint(0, 12))

    def burst(self) -> None:
        """Write many timers for one second."""
        due_s = self._log.clock.now_s + self._random.randint(0, 6)
        partition = self._random.randrange(self._log.partitions)
        for _ in range(self._random.randint(4, 14)):
            self._send(due_s, partition)

    def large(self) -> None:
        """Write a timer that is too large for some topics."""
        due_s = self._log.clock.now_s + self._random.randint(-1, 6)
        value = future.encode(self._random.choice([*TARGETS, "mails", "missing"]), "k", b"v")
        headers: list[Header] = [("large", b"x" * self._random.choice([120, 300]))]
        self._append(b"%d" % due_s, value, self._random.randrange(self._log.partitions), headers)
        self.latest_due_s = max(self.latest_due_s, due_s)

    def without_key(self) -> None:
        """Write a timer whose callback has no key."""
        due_s = self._log.clock.now_s + self._random.randint(-1, 6)
        value = future.encode(self._random.choice(["orders", "mails"]), "", b"%d" % self._random.randrange(3))
        self._append(b"%d" % due_s, value, self._random.randrange(self._log.partitions), [(TIMER_KEY, None)])
        self.latest_due_s = max(self.latest_due_s, due_s)

    def late(self) -> None:
        """Write a timer whose due second is over."""
        self._send(max(0, self._log.clock.now_s - self._random.choice([1, 1, 2, 5, 1000])))

    def many_late(self) -> None:
        """Write many timers of one partition whose due second is over."""
        partition = self._random.randrange(self._log.partitions)
        for _ in range(self._random.randint(8, 14)):
            self._send(max(0, self._log.clock.now_s - 1), partition)

    def far(self) -> None:
        """Write a timer that is due after the simulation."""
        self._send(self._log.clock.now_s + self._far_s(), far=True)

    def chain(self) -> None:
        """Write a timer whose callback is a request, and so on; some of these requests are refused."""
        random = self._random
        due_s = self._log.clock.now_s + random.randint(2, 14)
        self.latest_due_s = max(self.latest_due_s, due_s)
        key, value = b"%d" % due_s, future.encode("orders", "last", b"")
        for _ in range(random.randint(1, 4)):
            value = future.encode(self._topic, random.choice([key.decode()] * 6 + ["soon"]), value)
            due_s -= random.choice([0, 1, 1, 1, 1, 2, 2, 3])
            key = b"%d" % due_s
        headers: list[Header] = [("a", b"1"), *random.choice([[], [], [(DEPTH, b"1")], [(DEPTH, b"soon")]])]
        self._append(key, value, random.randrange(self._log.partitions), headers)

    def wrong(self) -> None:
        """Write a record that must become a dead letter."""
        due = b"%d" % (self._log.clock.now_s + self._random.randint(0, 9))
        valid = future.encode("orders", "k", b"v")
        internal = ("timer-dead-letter", "other-progress")[int(due) % 2]
        key, value = self._random.choice(
            [
                (None, valid),
                (b"soon", valid),
                (b"-5", valid),
                (due + b"000", valid),
                (due, None),
                (due, b"\xff\xff"),
                (due, future.encode("", "k", b"v")),
                (due, future.encode("no topic!", "k", b"v")),
                (due, future.encode("orders", "k", b"v" * 5000)),
                (due, future.encode(internal, "k", b"v")),
                (due, future.encode("missing", "k", b"v")),
                (b"0" + due, future.encode("missing", "k", b"v") + UNKNOWN_FIELD),
            ]
        )
        headers: list[Header] = self._random.choice([[], [("a", None), ("timer-id", b"forged")]])
        self._append(key, value, self._random.randrange(self._log.partitions), headers)

    def forge(self, random: Random) -> str:
        """Write a request that looks like a promoted copy, with a wrong seal."""
        partition = random.randrange(self._log.partitions)
        named = f"{self._topic}/{partition}/{random.randrange(self._log.end(self._topic, partition) + 1)}"
        headers: list[Header] = [(TIMER_PROMOTED, named.encode()), (TIMER_SEAL, b"0" * 32)]
        due_s = self._log.clock.now_s + random.randint(-1, 2)
        self._append(b"%d" % due_s, future.encode("orders", "forged", b""), partition, headers)
        self.latest_due_s = max(self.latest_due_s, due_s)
        return named

    def set_by_id(self, transaction: SimTransaction | None = None) -> None:
        """Write a timer with an id, or a new version of one."""
        random = self._random
        due_s = max(0, self._log.clock.now_s + random.choice([*range(-2, 10), -1000, self._far_s()]))
        target = random.choices([*TARGETS, "missing"], [12, 6, 3, 1])[0]
        value = future.encode(target, "k", b"%d" % self._log.seq)  # each version has another value
        headers: list[Header] = random.choice([[], [("a", None), ("timer-id", b"forged")]])
        self._by_id(value, [*headers, *future_by_id.encode_headers(due_s)], transaction)
        if due_s < self._log.clock.now_s + LEAST_FAR_S:
            self.latest_due_s = max(self.latest_due_s, due_s)

    def cancel(self) -> None:
        self._by_id(None, [])

    def wrong_by_id(self) -> None:
        """Write a record without an id or without a due second."""
        valid = future.encode("orders", "k", b"%d" % self._log.seq)
        key, headers = self._random.choice(
            [(None, [("timer-due", b"7")]), (b"id-0", [("timer-due", b"soon")]), (b"x", [])]
        )
        self._log.append(self._id_topic, key, valid, headers)

    def wrong_condition(self) -> None:
        """Write a request whose condition cannot be read, or whose timer has no id."""
        random, due = self._random, b"%d" % (self._log.clock.now_s + 2)
        valid = future.encode("orders", "k", b"%d" % self._log.seq)
        if random.random() < 0.3:
            self._append(due, valid, random.randrange(self._log.partitions), [(TIMER_IF, b"absent")])
            return
        value, text = random.choice([(None, b"absent"), (valid, b"Absent"), (valid, b"7"), (valid, None)])
        self._log.append(self._id_topic, random.choice(self._ids), value, [("timer-due", due), (TIMER_IF, text)])

    def change_late(self) -> None:
        """Write a change of a timer, mostly in time, that is readable when a transaction before it has ended."""
        random, now_s, partition = self._late_random, self._log.clock.now_s, None
        id, due_s = random.choice(self._ids), now_s + random.choice([1, 1, 2, 4])
        first = future.encode(random.choice(TARGETS), "k", b"%d" % self._log.seq)
        version = self._log.append(self._id_topic, id, first, future_by_id.encode_headers(due_s))
        transaction = self._log.begin(f"user-{version.seq}", self._log.new_epoch(f"user-{version.seq}"))
        self._open_transactions.append(transaction)
        if is_inside := random.random() < 0.3:
            partition = version.partition
        else:  # it stands behind the transaction of another producer
            self._log.append(self._id_topic, None, b"", (), version.partition, transaction)
        if random.random() < 0.3:
            self._log.clock.advance_ms(random.choice([500, 1500]))
        headers = future_by_id.encode_condition(version.source)
        later_s = max(now_s, due_s + random.choice([-1, 1, 3, 8]))
        value = None if random.random() < 0.3 else future.encode(random.choice(TARGETS), "k", b"%d" % self._log.seq)
        if value is not None:
            headers = [*headers, *future_by_id.encode_headers(later_s)]
        self._log.append(self._id_topic, id, value, headers, partition, transaction if is_inside else None)
        self.latest_due_s = max(self.latest_due_s, due_s, later_s)

    def _by_id(self, value: bytes | None, headers: list[Header], transaction: SimTransaction | None = None) -> None:
        id = self._random.choice(self._ids)
        condition = self._condition(id, is_cancel=value is None)
        self._log.append(self._id_topic, id, value, [*headers, *condition], None, transaction)

    def change_promoted(self) -> None:
        """Write a change of a timer that came back from the cold tier, made for the version as it was requested."""
        logs = [self._log.fetch(self._id_topic, each, 0).records for each in range(self._log.partitions)]
        copies = [record for log in logs for record in log if TIMER_PROMOTED in dict(record.headers)]
        if not copies or self._condition_random is None:
            return
        copy = max(copies, key=lambda record: record.seq)
        condition: Header = (TIMER_IF, dict(copy.headers)[TIMER_PROMOTED])
        if self._random.random() < 0.5:
            self._log.append(self._id_topic, copy.key, None, [condition])
            return
        due_s = self._log.clock.now_s + self._random.randint(0, 9)
        value = future.encode("orders", "k", b"%d" % self._log.seq)
        self._log.append(self._id_topic, copy.key, value, [*future_by_id.encode_headers(due_s), condition])
        self.latest_due_s = max(self.latest_due_s, due_s)

    def set_absent(self) -> None:
        """Write a request for each id that counts only if the id is absent."""
        for id in self._ids:
            due_s = self._log.clock.now_s + 9
            value = future.encode("orders", "k", b"%d" % self._log.seq)
            condition = future_by_id.encode_condition(ABSENT)
            self._log.append(self._id_topic, id, value, [*future_by_id.encode_headers(due_s), *condition])
            self.latest_due_s = max(self.latest_due_s, due_s)

    def _condition(self, id: bytes, *, is_cancel: bool) -> list[Header]:
        """A condition: mostly one that is true or was true a short time ago."""
        random = self._condition_random
        if random is None or random.random() < 0.4:
            return []
        logs = [self._log.fetch(self._id_topic, each, 0).records for each in range(self._log.partitions)]
        records = [record for log in logs for record in log]
        of_id = [record for record in records if record.key == id][-4:]
        if not is_cancel and (not of_id or random.random() < 0.4):
            return future_by_id.encode_condition(ABSENT)
        sources = [record.source for record in of_id]
        originals = [record.source for record in of_id if TIMER_PROMOTED not in dict(record.headers)]
        named = originals[-1:] * 4 + sources or [f"{self._id_topic}/0/999999"]
        return future_by_id.encode_condition(random.choice(named))

    def set_schedule(self, transaction: SimTransaction | None = None, id: bytes | None = None) -> None:
        """Write a schedule, or a new version of one, with a timestamp of its producer."""
        random, now_s = self._random, self._log.clock.now_s
        due_s = max(0, now_s + random.choice([*range(-2, 10), *range(4), -1000, self._far_s()]))
        target = random.choices([*TARGETS, "missing"], [12, 6, 3, 1])[0]
        headers = [*schedule.encode_headers(due_s, target, random.choice([b"k", b"", b"\xff", None]))]
        headers[1:1] = random.choice([[], [("a", None), ("timer-id", b"forged"), ("scheduler-key", b"forged")]])
        timestamp_ms = (now_s + random.choice([0, 0, 0, -5, 5])) * 1000 + 7
        self._schedule(id, b"%d" % self._log.seq, headers, transaction, timestamp_ms)
        if due_s < now_s + LEAST_FAR_S:
            self.latest_due_s = max(self.latest_due_s, due_s)

    def overtake(self) -> None:
        """Write several versions of one id; some fire before the next one is read."""
        id = self._random.choice(SCHEDULE_IDS)
        for _ in range(self._random.randint(2, 4)):
            self.set_schedule(id=id)

    def delete_schedule(self) -> None:
        """Write a null value, which deletes a schedule. Users may copy the headers of a tombstone."""
        forged = (TIMER_FIRED_OFFSET, b"%d" % self._random.randrange(40))
        self._schedule(None, None, self._random.choice([[], [], [], [forged]]))

    def wrong_schedule(self) -> None:
        """Write a schedule without a due second or target; compaction may then remove a valid one."""
        headers = self._random.choice([[], [("scheduler-epoch", b"soon")], [("scheduler-epoch", b"7")]])
        self._schedule(None, b"%d" % self._log.seq, headers)

    def _schedule(
        self,
        id: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        transaction: SimTransaction | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        key = id or self._random.choice(SCHEDULE_IDS)
        self._log.append(self._schedule_topic, key, value, headers, None, transaction, timestamp_ms)

    def begin_transaction(self) -> None:
        """Write some requests in a transaction of a user, which stays open."""
        number = self._log.seq
        transaction = self._log.begin(f"user-{number}", self._log.new_epoch(f"user-{number}"))
        self._open_transactions.append(transaction)
        for _ in range(self._random.randint(1, 3)):
            if self._schedule_topic and self._random.random() < 0.5:
                self.set_schedule(transaction)
            elif self._id_topic and self._random.random() < 0.5:
                self.set_by_id(transaction)
            else:
                self._send(self._log.clock.now_s + self._random.randint(-2, 9), transaction=transaction)

    def end_transaction(self) -> None:
        """Commit or abort one open transaction."""
        if self._open_transactions:
            transaction = self._open_transactions.pop(self._random.randrange(len(self._open_transactions)))
            self._log.finish(transaction, commit=self._random.random() < 0.5)

    def end_all_transactions(self) -> None:
        """Commit or abort all open transactions."""
        while self._open_transactions:
            self.end_transaction()

    def _send(
        self, due_s: int, partition: int | None = None, transaction: SimTransaction | None = None, *, far: bool = False
    ) -> None:
        random = self._random
        if partition is None:
            partition = random.randrange(self._log.partitions)
        headers: list[Header] = []
        for _ in range(random.choice([0, 0, 1, 3])):
            headers.append(
                (random.choice(["a", "b", "timer-id", "timer-due"]), random.choice([None, b"", b"\x00\xff"]))
            )
        value = future.encode(
            random.choices(TARGETS, [6, 3, 2])[0],
            random.choice(["", "key", "ключ"]),
            random.randbytes(random.randint(0, 9)),
        )
        shift_s = 0 if self._level_random is None else self._level_random.choice([0, 1, 3])
        if shift_s:
            headers.append((SHIFT, b"%d" % shift_s))
        self._append(str(due_s).encode(), value, partition, headers, transaction)
        if not far:
            self.latest_due_s = max(self.latest_due_s, due_s + shift_s)

    def _append(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        headers: list[Header] | None = None,
        transaction: SimTransaction | None = None,
    ) -> None:
        self._log.append(self._topic, key, value, headers or (), partition, transaction)
