"""``timers export``: writes all that is pending of an app to a file, and moves it out of the app if it is told to.

A move is exact because it is one committed position for each partition. In one transaction, with the transactional id
of the machine, so that its worker is fenced, the progress notes a hole [I24] over all that was accepted: the app fires
nothing of it any more. What the progress says just before is noted in a file first, and what was pending by *that*
progress is exported. So each timer has fired before the move, or is in the file, or was accepted after the move and
fires in the app. An interrupted export is continued: the former progress of each partition that was moved is known.

``timers import-pending``: sets the timers of an export in this app, each once. Requests go in transactions. Each of
them also commits how many timers of the file are set, in a record on the progress topic under the number of the export.
So an import that was interrupted goes on behind the last timer that is set, and one that is repeated does nothing, also
after years: the topic is compacted. A timer with an id is set only if this app has and had none of this id: what was
set or cancelled here is newer.

The file of pending timers is JSON, one object a line. The first line says where the timers come from, and the last one
how many there are, with a hash of all lines before it. So a file that is cut off or was changed is refused. A line in
between is one timer::

    {"topic": "orders", "key": "order-17", "value": "expired", "at": 1899999999, "headers": [["trace", "abc"]],
     "id": "order-17", "source": "timer-request-by-id/0/4711"}        (in the file this is one line)

Bytes that are not text are ``{"base64": "..."}``. ``id`` is only there if the sender gave one, ``failed`` (a number of
attempts) only if the timer has been tried and waits for another attempt. A timer that repeats is the line of its next
occurrence, whose first headers have its rule: it is set as a timer that repeats again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaException, Message

from timers.client.timer_lines import data_of, parse_object
from timers.core.grouping import groups
from timers.core.keys import NOTHING_FIRED
from timers.core.machine import Machine
from timers.core.operation import ABSENT
from timers.core.ports import Lost
from timers.core.printable import json_value
from timers.core.progress import COLD_SEAL, History, Progress
from timers.core.repeating import is_occurrence, occurrence_of, target_of
from timers.core.timer import DueRows, Origin, Row, TopicPartition, key_bytes, origin_of
from timers.errors import InvalidTimerError, TimersError
from timers.kafka.clients import librdkafka, max_message_bytes
from timers.kafka.error_codes import NOT_ALLOWED, code_of
from timers.kafka.progress_log import APP_PARTITION, ProgressLog, commit_change
from timers.kafka.records import Record, TopicReader, TransactionalWriter, headers_of
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topics import Cluster
from timers.machines.partition import spec_of
from timers.machines.store.failures import Condemnations
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.opening import Opened, Stores, may_restore, restore
from timers.machines.store.rocks import RocksStore
from timers.machines.verifying import replayed
from timers.process.config.settings import Settings
from timers.wire import checks, future, progress, topics, verdict
from timers.wire import headers as h
from timers.wire import progress as progress_record
from timers.wire.checks import InvalidRequestError
from timers.wire.formats import future_by_id
from timers.wire.key_partition import partition_of
from timers.wire.repeat import Repeat, RepeatError
from timers.wire.topics import partition_name, source

MEMORY_BYTES = 128 * 1024 * 1024
"""Memory of the stores."""


class PendingReader:
    """Reads what is pending of the partitions of an app. It sends nothing, and no worker notices it.

    Args:
        directory: for its stores. A store that is there already is read on, as that of a worker is.
        check: called often; may raise to stop.
    """

    def __init__(self, settings: Settings, cluster: Cluster, directory: Path, check: Callable[[], None]) -> None:
        self._settings = replace(settings, data_dir=directory, worker_id="export")
        self._check, self._formats = check, enabled_formats(settings)
        self._stores = Stores(self._settings, cluster, RocksMemory(MEMORY_BYTES), Condemnations(), self._formats)
        self._log = ProgressLog(settings, cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._log.close()

    def progress(self, tps: list[TopicPartition]) -> dict[TopicPartition, Progress]:
        """Returns the committed progress of partitions.

        It is not compared with the group's copy: a worker that runs has written a newer one meanwhile.
        """
        return _committed(self._log, tps)

    def read_up(self, tp: TopicPartition, progress: Progress) -> None:
        """Bring the store of a partition up to a progress, so that :meth:`pending` takes less time later."""
        with closing(self._store(tp, progress)) as store:
            self._replay(tp, progress, store)

    def pending(self, tp: TopicPartition, progress: Progress) -> Iterator[DueRows]:
        """Yields what is pending by a progress, in the order in which it fires."""
        with closing(self._store(tp, progress)) as store:
            machine = self._replay(tp, progress, store)
            for (due_s, _), rows in machine.waiting(NOTHING_FIRED):
                self._check()
                yield due_s, list(rows)

    def opening(self, tp: TopicPartition, progress: Progress) -> tuple[int, Iterator[DueRows]] | None:
        """What was pending at the older one of the named snapshots, which the log goes back to.

        Returns:
            The offset of the snapshot, and the rows; None: no snapshot is named.
        """
        named = progress.older_snapshot or progress.snapshot
        if named is None:
            return None
        below = History(each for each in progress.settings if each.from_offset < named.applied)
        late = progress.late_changes
        known = Progress(named.applied, settings=below, snapshot=named, late_changes=late)
        return named.applied, self.pending(tp, known)

    def _store(self, tp: TopicPartition, progress: Progress) -> RocksStore:
        """Returns a store that may be read on from where it ends."""
        store = self._stores.open(tp)
        try:
            low = self._log.ends(*tp)[0]
            spec = spec_of(self._settings, tp, self._formats[tp[0]], 0)
            is_short = store.applied < progress.next_offset and store.applied < low
            if store.applied > progress.next_offset or is_short or not spec.catch_up(store, progress):
                store = self._stores.emptied(tp, store)
        except BaseException:
            store.close()
            raise
        opened = Opened(progress, store, low)
        if store.applied < progress.next_offset and may_restore(opened):
            try:
                store = restore(self._stores, tp, opened, self._check).store
            except Lost as lost:
                raise TimersError(f"{partition_name(*tp)}: {lost}; use the command again") from lost
        if store.applied < low < progress.next_offset:
            store.close()
            raise TimersError(
                f"{partition_name(*tp)} begins at offset {low}, and no snapshot says what was pending there: only the "
                "store of its worker may know it"
            )
        return store

    def _replay(self, tp: TopicPartition, progress: Progress, store: RocksStore) -> Machine:
        """Returns a machine whose store holds what it holds at ``next_offset`` of the progress."""
        try:
            return replayed(self._settings, self._formats[tp[0]], tp, progress, store, self._check)
        except Lost as lost:
            raise TimersError(f"{lost}; if a newer snapshot replaces what was deleted, use the command again") from lost


VERSION = 1


def _committed(log: ProgressLog, tps: list[TopicPartition]) -> dict[TopicPartition, Progress]:
    records = log.read(tps, after_fence=False)
    return {tp: log.decoded(tp, records[tp]) if tp in records else Progress() for tp in tps}


class Head(NamedTuple):
    """The first line of a file."""

    export: int
    """Number of the export: what was imported of it is remembered under this number."""
    app: str
    cluster: str
    moved: bool
    """Whether the app does not fire these timers any more."""


class PendingTimer(NamedTuple):
    """One timer of a file."""

    row: Row
    origin: Origin


class Writer:
    """Writes a file.

    Args:
        file: open for writing bytes.
    """

    def __init__(self, file: Any, head: Head) -> None:
        self.count = 0
        self._file, self._hash = file, hashlib.sha256()
        self._add({"timers-export": VERSION, **head._asdict()})

    def _add(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        self._hash.update(line)
        self._file.write(line)

    def add(self, row: Row, origin: Origin) -> None:
        """Add a timer. One that has failed before has no id: the id may be that of a newer timer by now."""
        _, _, key, value, headers, _ = row
        fields: dict[str, Any] = {
            "topic": target_of(row),
            "key": json_value(key_bytes(key)),
            "value": json_value(value),
            "at": origin.due_s,
        }
        if headers:
            fields["headers"] = [[name, json_value(data)] for name, data in headers]
        if origin.attempt:
            fields["failed"] = origin.attempt
        elif origin.has_id:
            fields["id"] = origin.timer_id
        self._add({**fields, "source": origin.request})
        self.count += 1

    def end(self) -> None:
        """Write the last line."""
        line = json.dumps({"timers": self.count, "sha256": self._hash.hexdigest()})
        self._file.write(line.encode() + b"\n")


class Reader:
    """Reads a file.

    Args:
        lines: of the file.

    Raises:
        TimersError: the first line is that of no export.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self._hash = hashlib.sha256()
        self.count = 0
        first = next(self._lines, b"")
        self._hash.update(first)
        try:
            fields = parse_object(first)
            version = fields["timers-export"]
            self.head = Head(*(fields[name] for name in Head._fields))
        except (InvalidTimerError, KeyError):
            raise TimersError("this is no file of `timers export`: its first line names no export") from None
        if version != VERSION:
            raise TimersError(f"the file has version {version} of exports, and this version of timers reads {VERSION}")

    def __iter__(self) -> Iterator[PendingTimer]:
        """Yields the timers.

        Raises:
            TimersError: a line cannot be read, or the file is not whole: the sentence names the line.
        """
        for line in self._lines:
            try:
                fields = parse_object(line)
                if "sha256" in fields:
                    self._check_end(fields)
                    return
                timer = _timer(fields)
            except (InvalidTimerError, KeyError, TypeError, ValueError) as error:
                raise TimersError(f"line {self.count + 2} of the file is no timer: {error}") from None
            self._hash.update(line)
            self.count += 1
            yield timer
        raise TimersError(f"the file is cut off after {self.count:,} timers: it has no last line")

    def _check_end(self, fields: dict[str, Any]) -> None:
        if (fields["timers"], fields["sha256"]) != (self.count, self._hash.hexdigest()):
            raise TimersError(
                f"the file was changed: its last line says {fields['timers']:,} timers and a hash of them, and there "
                f"are {self.count:,} timers with another hash"
            )


def _timer(fields: dict[str, Any]) -> PendingTimer:
    """The timer of one line. Inverse of :meth:`Writer.add`."""
    source, due_s = fields["source"], fields["at"]
    if topics.parse_source(source) is None or type(due_s) is not int:
        raise InvalidTimerError(f"its source {source!r} or its second {due_s!r} is none")
    headers = [(str(name), _bytes(data)) for name, data in fields.get("headers", ())]
    origin = Origin(fields.get("id", source), due_s, fields.get("failed", 0), source)
    row = (0, str(fields["topic"]), data_of("key", fields["key"]), _bytes(fields["value"]) or b"", headers, None)
    return PendingTimer(row, origin)


def _bytes(value: Any) -> bytes | None:
    data = data_of("value", value)
    return data.encode() if isinstance(data, str) else data


MOVING_S = 60.0
"""How long to try to move a partition that a worker opens again and again meanwhile."""

AGAIN_S = 0.2


class ExportedPartition(NamedTuple):
    """What was exported of one partition."""

    name: str
    """``<topic>/<partition>``"""
    timers: int
    offset: int
    """All requests below it were judged; what is pending of them is in the file."""
    may_be_cold: bool
    """Whether timers of it may be in the cold tier, which is not exported."""


def exported_topics(settings: Settings) -> list[str]:
    """The topics whose timers are exported, in the order in which they are moved.

    The retry topic is the last: a timer that fails meanwhile goes there, so it is moved from there or stays in the app.
    """
    return [topic for topic in (settings.request_topic, settings.id_topic, settings.retry_topic) if topic]


def export(
    settings: Settings,
    cluster: Cluster,
    target: Path,
    *,
    move: bool,
    check: Callable[[], None],
    report: Callable[[ExportedPartition], None],
) -> int:
    """Write all that is pending of an app to a file. Blocks. Returns the number of timers.

    Args:
        target: the file; it must not exist. Until it is whole, a directory of this name with ``.part`` stands beside
            it. A move that was interrupted is continued from there.
        move: whether the app must not fire these timers any more.
        check: called often; may raise to stop.
        report: called for each partition when its timers are written.

    Raises:
        TimersError: the file exists, or something that is pending cannot be read.
        KafkaException: the brokers do not answer, or refuse.
    """
    if target.exists():
        raise TimersError(f"{target} exists: name another file, or delete this one")
    directory = target.with_name(f"{target.name}.part")
    part = directory / "timers"
    moves = Moves(directory / "moves")
    if directory.exists() and not (move and part.exists()):  # without this file, a former export has ended
        if part.exists() and moves.former:
            raise TimersError(
                f"{directory} is the only place of timers that an interrupted export has moved out of the app: use "
                "--move again, which continues it, or name another file"
            )
        shutil.rmtree(directory)
        moves = Moves(directory / "moves")
    directory.mkdir(mode=0o700, exist_ok=True)
    tps = [(t, p) for t in exported_topics(settings) for p in range(cluster.partitions.get(t, 0))]
    with (
        open(part, "wb", opener=_private) as file,
        PendingReader(settings, cluster, directory / "stores", check) as read,
    ):
        if not moves.number:
            moves.begin()
        _sync(directory.parent, directory)
        writer = Writer(file, Head(moves.number, settings.app_id, cluster.cluster_id, move))
        for tp in tps:
            progress = read.progress([tp])[tp]  # not for all at once: workers delete what an old progress names
            if move:
                if tp not in moves.former:
                    read.read_up(tp, progress)  # so that little is left to read after the move
                progress = moves.move(settings, cluster, tp)
            before = writer.count
            for due_s, rows in read.pending(tp, progress):
                for row in rows:
                    if row[1] != settings.canary_topic:
                        writer.add(row, origin_of(row, due_s, source(*tp, row[0], progress.cuts)))
            may_be_cold = progress.setting_at(COLD_SEAL, progress.next_offset, 0) > 0
            report(ExportedPartition(partition_name(*tp), writer.count - before, progress.next_offset, may_be_cold))
        writer.end()
        file.flush()
        os.fsync(file.fileno())
    part.rename(target)
    _sync(target.parent)
    shutil.rmtree(directory)
    return writer.count


def _sync(*directories: Path) -> None:
    """Write the names of the files of directories to the disk."""
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Moves:
    """What was moved out of an app by an export, in a file that is on the disk before each move is committed.

    Attributes:
        number: of the export, which the holes name; 0: it has not begun.
        former: partition -> its progress just before the move.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.number = 0
        self.former: dict[TopicPartition, Progress] = {}
        if path.exists():
            text = path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            if whole != text:  # else the next line would be joined to one that was not written whole
                os.truncate(path, len(whole))
            number, *lines = whole.decode().split("\n")[:-1] or ["0"]
            self.number = int(number)
            for line in lines:
                name, value = json.loads(line)
                self.former[progress_record.decode_key(name.encode())] = progress_record.decode(
                    base64.b64decode(value)
                )[0]

    def begin(self) -> None:
        """Choose the number."""
        self._add(str(number := secrets.randbits(63) | 1))
        self.number = number

    def _add(self, line: str) -> None:
        with open(self._path, "a", opener=_private) as file:  # a progress has the seal of the cold tier
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def move(self, settings: Settings, cluster: Cluster, tp: TopicPartition) -> Progress:
        """Move all that is pending of a partition out of its app, unless it was. Returns its progress just before.

        Raises:
            KafkaException: the brokers do not answer, or refuse.
        """

        def moved(progress: Progress) -> Progress:
            if progress.was_moved(self.number):
                return progress
            value = progress_record.encode(progress, cluster.topic_ids[tp[0]], "")
            self._add(json.dumps([partition_name(*tp), base64.b64encode(value).decode()]))
            self.former[tp] = progress
            return progress.moved(self.number)

        deadline = monotonic() + MOVING_S
        while True:
            try:
                commit_change(settings, cluster, tp, moved)
                return self.former[tp]
            except KafkaException as error:
                # The partition's worker was faster, or a leader moves. The change may be committed all the same: then
                # the next attempt finds its hole in the progress, and changes nothing.
                if code_of(error) in NOT_ALLOWED or monotonic() > deadline:
                    raise
            sleep(AGAIN_S)


MAX_TIMERS = 1000
MAX_BYTES = 8 * 1024 * 1024
"""Limits of one transaction: workers wait for its end."""

ENDS_S = 10
"""The request for a timer that repeats is appended so many seconds after it is made at most."""

SILENT_S = 10.0
"""Seconds without a verdict after which no more are waited for."""


class Contents(NamedTuple):
    """What a file holds."""

    head: Head
    timers: int
    by_topic: Counter[str]
    """Callback topic -> timers."""
    with_id: int
    failed: int
    """Timers that have failed in their app, and are sent at once."""
    first_s: int | None
    last_s: int | None
    """The first and the last due second."""
    ended: int
    """Timers that repeated, and have come to the end of their rule: each is set as a single one."""


def look(path: Path, settings: Settings, now_s: int) -> Contents:
    """Returns what a file holds. All of it is checked.

    Args:
        now_s: epoch second.

    Raises:
        TimersError: it is not whole, or this app would refuse a timer of it.
    """
    by_topic: Counter[str] = Counter()
    with_id, failed, ended = 0, 0, 0
    first_s: int | None = None
    last_s: int | None = None
    with path.open("rb") as file:
        reader = Reader(file)
        for timer in reader:
            due_s = timer.origin.due_s
            by_topic[timer.row[1]] += 1
            with_id += timer.origin.has_id
            failed += timer.origin.attempt > 0
            ended += _has_ended(timer, now_s)
            first_s = due_s if first_s is None else min(first_s, due_s)
            last_s = due_s if last_s is None else max(last_s, due_s)
            try:
                checks.check_topic(timer.row[1], "topic")
                record = _record(timer, 0, 1, settings, now_s)
                checks.check_size(record.value or b"", settings.max_request_bytes)
            except InvalidRequestError as error:
                raise TimersError(f"line {reader.count + 1} of the file would be a dead letter here: {error}") from None
        head = reader.head
    if with_id and not settings.id_topic:
        raise TimersError(f"{with_id:,} timers of the file have an id, and TIMERS_ID_TOPIC is empty")
    return Contents(head, reader.count, by_topic, with_id, failed, first_s, last_s, ended)


def moved_out(settings: Settings, cluster: Cluster) -> list[str]:
    """Returns the partitions of which timers with an id were moved to another app. This app knows their ids still."""
    tps = [(settings.id_topic, partition) for partition in range(cluster.partitions.get(settings.id_topic, 0))]
    with closing(ProgressLog(settings, cluster)) as log:
        return [partition_name(*tp) for tp, progress in _committed(log, tps).items() if progress.moves]


def imported(settings: Settings, cluster: Cluster, head: Head) -> int:
    """Returns how many timers of an export are set in this app already."""
    with closing(ProgressLog(settings, cluster)) as log:
        return _imported(log, head, after_fence=False)


def _imported(log: ProgressLog, head: Head, *, after_fence: bool) -> int:
    value = log.of_app(progress.import_key(head.export), after_fence=after_fence)
    return 0 if value is None else progress.decode_number(progress.IMPORTED, value)


class Answers:
    """Counts the verdicts on the requests of an import, also after their log was cut: as :mod:`timers.client.by_id`."""

    def __init__(self, settings: Settings) -> None:
        self._offsets: defaultdict[tuple[str, int], array[int]] = defaultdict(lambda: array("q"))
        """Of the requests that were sent, by partition, ascending: 8 bytes for each."""
        self._unanswered = 0
        # Verdicts are read when all is sent, which may take hours.
        self._reader = TopicReader(settings, settings.verdict_topic, is_polled=False)
        self._failed: TimersError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    def begin(self) -> None:
        """Read each verdict from now on."""
        try:
            self._reader.assign_partitions()
        except TimersError as error:
            self._failed = error

    def expect(self, sources: Iterable[str]) -> None:
        """Note requests that are sent."""
        for topic, partition, offset in filter(None, map(topics.parse_source, sources)):
            self._offsets[topic, partition].append(offset)
            self._unanswered += 1

    def wait(self) -> tuple[Counter[str], int]:
        """Returns how often each verdict came, and how many requests have none, after some seconds without one.

        Raises:
            TimersError: the verdicts cannot be read.
        """
        if self._failed is not None:
            raise self._failed
        verdicts: Counter[str] = Counter()
        deadline = monotonic() + SILENT_S
        for message in self._reader if self._unanswered else ():
            decoded = None if message is None else self._verdict(message)
            if decoded is not None:
                verdicts[decoded] += 1
                self._unanswered -= 1
                deadline = monotonic() + SILENT_S
            if not self._unanswered or monotonic() > deadline:
                break
        return verdicts, self._unanswered

    def _verdict(self, message: Message) -> str | None:
        """The verdict on a request of the import; None: the record is no such verdict. Each has one at most."""
        source = h.last(headers_of(message), h.TIMER_SOURCE) or b""
        topic, partition, offset = topics.parse_source(source.decode("ascii", "replace")) or ("", 0, -1)
        offsets = self._offsets.get((topic, partition), ())
        found = bisect_left(offsets, offset)
        if found < len(offsets) and offsets[found] == offset:
            with suppress(ValueError):
                return verdict.decode(message.value() or b"").verdict
        return None


def send(
    path: Path,
    settings: Settings,
    cluster: Cluster,
    clock_s: Callable[[], float],
    answers: Answers,
    report: Callable[[int], None],
) -> int:
    """Set the timers of a file that are not set yet. Blocks. Returns how many requests it has sent.

    Args:
        path: of a file that :func:`look` has checked.
        clock_s: returns the epoch second: a large file takes minutes, and rules come to their end meanwhile.
        answers: waits for the verdicts on what is sent.
        report: called after each transaction with the number of timers of the file that are set.

    Raises:
        KafkaException: the brokers do not answer, or refuse; or another import has begun. What is set is known: use
            it again.
    """
    writer = TransactionalWriter(librdkafka(settings), topics.importer_id(settings.app_id), max_message_bytes(settings))
    with path.open("rb") as file, closing(ProgressLog(settings, cluster)) as log:
        reader = Reader(file)
        first = done = _imported(log, reader.head, after_fence=True)
        key = progress.import_key(reader.head.export)
        answers.begin()
        for records in groups(_records(reader, first, settings, cluster, clock_s), _size, MAX_TIMERS, MAX_BYTES):
            done += len(records)
            cursor = Record(
                settings.progress_topic, APP_PARTITION, key, progress.encode_number(progress.IMPORTED, done), []
            )
            with writer.transaction() as send_records:
                sources = send_records([*records, cursor])
            answers.expect(compress(sources, (each.topic == settings.id_topic for each in records)))
            report(done)
    return done - first


def _records(
    reader: Reader, first: int, settings: Settings, cluster: Cluster, clock_s: Callable[[], float]
) -> Iterator[Record]:
    """The requests of the timers from number ``first`` on."""
    for number, timer in enumerate(reader):
        if number >= first:
            topic = settings.id_topic if timer.origin.has_id else settings.request_topic
            yield _record(timer, number, cluster.partitions[topic], settings, int(clock_s()))


def _record(timer: PendingTimer, number: int, partitions: int, settings: Settings, now_s: int) -> Record:
    """The request of a timer, for a topic of so many partitions."""
    row, origin = timer
    if origin.has_id:
        row = occurrence_of(row).row if _has_ended(timer, now_s) else row
        key, value, headers = future_by_id.rebuild_request(row, origin)
        sent = [*headers, *future_by_id.encode_condition(ABSENT)]
        return Record(settings.id_topic, partition_of(key or b"", partitions), key, value, sent)
    key, value, headers = future.rebuild_request(row, origin)
    return Record(settings.request_topic, number % partitions, key, value, headers)


def _has_ended(timer: PendingTimer, now_s: int) -> bool:
    """Whether the last second of a timer's rule is over, or nearly. A request for a timer that repeats would be a dead
    letter, so what it has not sent yet is set as a single one."""
    if not timer.origin.has_id or not is_occurrence(timer.row):
        return False
    occurrence = occurrence_of(timer.row)
    with suppress(RepeatError):
        until_s = Repeat.of_header(occurrence.rule).until_s
        return occurrence.nominal_s is not None and until_s is not None and until_s < now_s + ENDS_S
    return False


def _size(record: Record) -> int:
    headers: list[h.Header] = [(name, data if isinstance(data, bytes) else None) for name, data in record.headers]
    return len(record.key or b"") + len(record.value or b"") + sum(len(data or b"") for _, data in headers)
