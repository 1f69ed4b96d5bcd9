"""Encodes and decodes progress records: key ``<topic>/<partition>``, value :class:`timers.v1.progress_pb2.Progress`."""

from itertools import accumulate
from operator import sub
from struct import Struct
from zlib import crc32

from google.protobuf.message import DecodeError

from timers.core import levels
from timers.core.fired import NOISY, PAUSE, Hold, Holds, Moment
from timers.core.keys import NOTHING_FIRED, OrderKey
from timers.core.lineage import Batch, Lineage, RecordCount
from timers.core.progress import (
    HOLE_DUE_S,
    HOLE_OFFSET,
    Doubt,
    History,
    NamedSnapshot,
    Progress,
    Rescue,
    SettingChange,
    Witness,
)
from timers.core.timer import TopicPartition
from timers.errors import LevelTooHigh, LogMismatch
from timers.v1 import progress_pb2, snapshot_pb2, targets_pb2
from timers.wire.topics import partition_name

APP_KEY = b"#app/0"
"""Key of the record that holds what applies to all machines of the app. No topic has this name."""

ENGINE_KEY = b"#engine/0"
"""Key of the record that names the newest run of the engine on Spark."""

ANY_LEVEL = 2**32
"""As ``supported`` of :func:`decode`: reads what all levels have in common."""

_CHECKSUM = Struct("<BI")
"""The field ``checksum`` in the encoding of Protocol Buffers: its tag, and a number of 32 bits."""

_CHECKSUM_TAG = progress_pb2.Progress.CHECKSUM_FIELD_NUMBER << 3 | 5

ALLOWED_LEVEL = "allowed-feature-level"
"""In the record of the app: the feature level that its machines may be raised to."""

ENGINE_RUN = "engine-run"
"""In the record of the engine: a number that each run of it chooses."""

IMPORTED = "imported-timers"
"""In the record of an import: how many timers of the file are set."""


def encode_key(topic: str, partition: int) -> bytes:
    """Return the key of a machine's progress record. Inverse: :func:`decode_key`."""
    return partition_name(topic, partition).encode()


def decode_key(key: bytes) -> TopicPartition:
    """Return the machine of a progress record."""
    topic, _, partition = key.decode().rpartition("/")
    return topic, int(partition)


def machine_name(app_id: str, topic: str, partition: int) -> str:
    """Return the name of a machine in its progress records."""
    return f"{app_id}/{partition_name(topic, partition)}"


def encode(progress: Progress, topic_id: bytes, machine: str = "") -> bytes:
    """Return the value of a progress record. Inverse: :func:`decode`. ``machine``: see :func:`machine_name`."""
    message = progress_pb2.Progress(
        version=progress.settings.level, topic_id=topic_id, next_offset=progress.next_offset, machine=machine
    )
    if progress.fired_through != NOTHING_FIRED:
        message.fired_due_s, message.fired_offset = progress.fired_through
    for change in progress.settings:
        message.settings.add(name=change.name, from_offset=change.from_offset, value=str(change.value))
    lineage = progress.lineage
    for epoch, first_offset in lineage.epochs:
        message.lineage.epochs.add(epoch=epoch, first_offset=first_offset)
    if lineage.end:
        message.lineage.end = lineage.end
    if lineage.batch is not None:
        message.lineage.batch.CopyFrom(progress_pb2.Batch(**lineage.batch._asdict()))
    if (count := lineage.counted) is not None:
        message.lineage.count.CopyFrom(progress_pb2.Count(since=count.since, to=count.to, records=count.records))
    for from_offset, next_offset, fired_through, through, holds in progress.rescues:
        rescue = message.rescues.add(from_offset=from_offset, next_offset=next_offset, through=through)
        if fired_through != NOTHING_FIRED:
            rescue.fired_due_s, rescue.fired_offset = fired_through
        rescue.holds.extend(map(_hold_message, holds))
    if progress.doubt is not None:
        message.doubt.before_offset, message.doubt.worker = progress.doubt
    if progress.snapshot is not None:
        message.snapshot.CopyFrom(progress_pb2.Snapshot(**progress.snapshot._asdict()))
    if progress.older_snapshot is not None:
        message.older_snapshot.CopyFrom(progress_pb2.Snapshot(**progress.older_snapshot._asdict()))
    if late := progress.late_changes:
        message.late_changes.extend(map(sub, late, (0, *late)))
    message.holds.extend(map(_hold_message, progress.holds))
    message.taken_command = progress.taken
    return with_checksum(message)


def _hold_message(hold: Hold) -> progress_pb2.Hold:
    message = progress_pb2.Hold(
        target=hold.target,
        reason=_REASONS[hold.reason],
        number=hold.number,
        begin=_moment_message(hold.begin),
        end=None if hold.end is None else _moment_message(hold.end),
        **{name: getattr(hold, name) for name in _HOLD_NUMBERS},
    )
    if hold.released != NOTHING_FIRED:
        message.released_due_s, message.released_offset = hold.released
    return message


def _moment_message(moment: Moment) -> progress_pb2.Moment:
    message = progress_pb2.Moment(next_offset=moment.next_offset, holes=moment.holes)
    if moment.fired_through != NOTHING_FIRED:
        message.fired_due_s, message.fired_offset = moment.fired_through
    return message


def _hold(message: progress_pb2.Hold) -> Hold:
    return Hold(
        message.target,
        _REASON_NAMES.get(message.reason, PAUSE),
        message.number,
        _moment(message.begin),
        end=_moment(message.end) if message.HasField("end") else None,
        released=(message.released_due_s, message.released_offset)
        if message.HasField("released_due_s")
        else NOTHING_FIRED,
        **{name: getattr(message, name) for name in _HOLD_NUMBERS},
    )


def _moment(message: progress_pb2.Moment) -> Moment:
    return Moment(message.next_offset, fired_through_of(message), message.holes)


_REASONS = {PAUSE: progress_pb2.Hold.PAUSE, NOISY: progress_pb2.Hold.NOISY}
_REASON_NAMES = {number: reason for reason, number in _REASONS.items()}
_HOLD_NUMBERS = ("since_s", "until_s", "over_s", "resumed_s", "rows", "gone")
"""Fields with the same name and value in a hold and in its message."""


def with_checksum(message: progress_pb2.Progress | snapshot_pb2.SnapshotFooter | targets_pb2.Target) -> bytes:
    """Return the bytes of a message, followed by a checksum over them."""
    message.ClearField("checksum")
    value: bytes = message.SerializeToString()
    return value + _CHECKSUM.pack(_CHECKSUM_TAG, crc32(value))


def has_checksum(value: bytes) -> bool:
    """Whether the bytes of a message end with a checksum over those before it."""
    return value[-_CHECKSUM.size :] == _CHECKSUM.pack(_CHECKSUM_TAG, crc32(value[: -_CHECKSUM.size]))


def decode(
    value: bytes, supported: int | None = None, name: str = "a partition", machine: str | None = None
) -> tuple[Progress, bytes]:
    """Return the progress and the id of its request topic.

    Args:
        supported: the highest feature level that may be read; by default that of this version of the project.
        name: of the partition, for the error.
        machine: name of the machine that must have written it; None: any.

    Raises:
        LevelTooHigh: the machine was raised to a higher feature level.
        LogMismatch: the record cannot be read, has a version below the first level, or another machine wrote it.
    """
    message = _message(value, levels.FIRST_LEVEL, levels.SUPPORTED if supported is None else supported, name)
    if machine is not None and message.machine != machine:
        raise LogMismatch(
            f"the progress record of {name} was written by the machine {message.machine!r}, not by {machine!r}: was it "
            "copied?"
        )
    settings = _history(message)
    progress = _progress(message, settings)
    names = [each.name for each in settings]
    if names.count(HOLE_DUE_S) != names.count(HOLE_OFFSET):
        raise LogMismatch("a progress record holds half of a hole: was it written by this app?")
    if progress.level != message.version:
        raise LogMismatch(
            f"a progress record has version {message.version}, but its settings say feature level {progress.level}: "
            "was it written by this app?"
        )
    return progress, message.topic_id


def _message(value: bytes, lowest: int, highest: int, name: str) -> progress_pb2.Progress:
    """Return a record whose version is in a range.

    Raises:
        LevelTooHigh, LogMismatch: as :func:`decode`.
    """
    try:
        message = progress_pb2.Progress.FromString(value)
    except DecodeError:
        raise LogMismatch("a progress record cannot be read: the progress topic holds other data") from None
    if message.version > highest:
        raise LevelTooHigh(message.version, highest, name)
    if message.version < lowest:
        raise LogMismatch(
            f"the progress record of {name} has version {message.version}, which no released version of timers wrote: "
            f"this one reads {levels.FIRST_LEVEL} and higher. First run commit aa3045c5 of timers until all partitions "
            f"have level {levels.FIRST_LEVEL}, which `timers levels --raise {levels.FIRST_LEVEL}` allows there"
        )
    if not has_checksum(value):
        raise LogMismatch(
            f"the progress record of {name} has no valid checksum: was it damaged, or written by another program?"
        )
    return message


def _history(message: progress_pb2.Progress) -> History:
    try:
        return History(SettingChange(each.name, each.from_offset, int(each.value)) for each in message.settings)
    except ValueError:
        raise LogMismatch(
            "a progress record holds a setting that is not a number: was it written by this app?"
        ) from None


def topic_id_of(value: bytes) -> bytes:
    """Return the id of the request topic in the value of a progress record that can be read."""
    found: bytes = progress_pb2.Progress.FromString(value).topic_id
    return found


def fired_through_of(
    message: progress_pb2.Progress | progress_pb2.Rescue | progress_pb2.Moment | snapshot_pb2.SnapshotFooter,
) -> OrderKey:
    """Return the key up to which a machine had fired."""
    return (message.fired_due_s, message.fired_offset) if message.HasField("fired_due_s") else NOTHING_FIRED


def _progress(message: progress_pb2.Progress, settings: History) -> Progress:
    known, batch, count = message.lineage, message.lineage.batch, message.lineage.count
    return Progress(
        message.next_offset,
        fired_through_of(message),
        settings,
        Lineage(
            tuple((each.epoch, each.first_offset) for each in known.epochs),
            Batch(batch.base_offset, batch.last_offset, batch.max_timestamp_ms, batch.crc)
            if known.HasField("batch")
            else None,
            known.end,
            RecordCount(count.since, count.to, count.records, count.to) if known.HasField("count") else None,
        ),
        tuple(
            Rescue(
                each.from_offset, each.next_offset, fired_through_of(each), each.through, tuple(map(_hold, each.holds))
            )
            for each in message.rescues
        ),
        Doubt(message.doubt.before_offset, message.doubt.worker) if message.HasField("doubt") else None,
        _snapshot(message.snapshot) if message.HasField("snapshot") else None,
        _snapshot(message.older_snapshot) if message.HasField("older_snapshot") else None,
        tuple(accumulate(message.late_changes)),
        Holds(map(_hold, message.holds)),
        message.taken_command,
    )


def _snapshot(message: progress_pb2.Snapshot) -> NamedSnapshot:
    return NamedSnapshot(*(getattr(message, name) for name in NamedSnapshot._fields))


# ---- the second witness of a progress: text beside the offset that a machine commits for its consumer group [I8] -----
#
# The progress topic may lose its newest records, or get an older record as its newest one. Then timers would fire
# again. The group's offsets are on another topic, mostly on other brokers. So they also hold the values that a later
# opening compares. They hold neither the settings history nor a seal: anyone who may read the group may read them.

_WITNESS = "timers-progress-1"
"""First word of the text; a reader of another version reads nothing from it."""

_WITNESS_END = "\0"
"""librdkafka 2.16 copies the text without an end, and confluent-kafka reads on to the next NUL: then random bytes
follow the text, or it is no UTF-8."""


def encode_witness(progress: Progress, topic_id: bytes) -> str:
    """Return the text of the witness of a progress, with the id of the request topic. Inverse:
    :func:`decode_witness`."""
    history = progress.settings
    held_from = progress.witness.held_from or ()
    values = (progress.next_offset, *progress.fired_through, history.level, history.cut, len(history.holes), *held_from)
    return " ".join((_WITNESS, topic_id.hex(), *map(str, values))) + _WITNESS_END


def decode_witness(text: str | None) -> tuple[Witness, bytes] | None:
    """Return a witness, and the id of its request topic; None if the text is none: any client may write there."""
    begin, *values = (text or "").partition(_WITNESS_END)[0].split(" ")
    if begin != _WITNESS or len(values) not in (7, 9):
        return None
    try:
        next_offset, due_s, offset, level, cut, holes, *held_from = map(int, values[1:])
        held = (held_from[0], held_from[1]) if held_from else None
        return Witness(next_offset, (due_s, offset), level, cut, holes, held), bytes.fromhex(values[0])
    except ValueError:
        return None


# ---- records that are about no machine ---------------------------------------------------------------------------


_VERSION_OF_NUMBERS = 4
"""Workers of each level read these records."""


def encode_number(name: str, number: int) -> bytes:
    """Return the value of such a record: one number under a name. Inverse: :func:`decode_number`."""
    message = progress_pb2.Progress(version=_VERSION_OF_NUMBERS)
    message.settings.add(name=name, value=str(number))
    return with_checksum(message)


def decode_number(name: str, value: bytes, without: int = 0) -> int:
    """Return the number under a name; ``without`` if the record has none.

    Raises:
        LogMismatch: the record cannot be read.
    """
    history = _history(_message(value, _VERSION_OF_NUMBERS, levels.SUPPORTED, "the app"))
    return Progress(settings=history).setting_at(name, 0, without)


def import_key(number: int) -> bytes:
    """Return the key of the record that says how far an export was imported into this app."""
    return b"#import-%d/0" % number
